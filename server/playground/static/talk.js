// Chats and completions: streaming, stopping, copying, and their history in this browser.

import { CallError, generate } from "./api.js";
import { announce, byId, copyText, el, number, seconds, showNote, store, stored } from "./dom.js";
import { noteFirstToken } from "./live.js";
import { samplingParams } from "./sampling.js";
import { TokenView } from "./tokens.js";

const MOST_TALKS = 30; // in the history

let mode = "chat";
let talk = newTalk();
let controller = null; // of the completion that is being streamed
let askForKey = () => {};

function newTalk() {
  return { id: crypto.randomUUID?.() ?? String(Date.now()), mode, system: "", messages: [] };
}

/** Wire the composer. onKeyNeeded is called with a message when the server refuses the key. */
export function startTalk(onKeyNeeded) {
  askForKey = onKeyNeeded;
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    sendPrompt();
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      byId("composer").requestSubmit();
    }
  });
  byId("stop").addEventListener("click", () => controller?.abort());
  byId("new").addEventListener("click", () => {
    controller?.abort();
    talk = newTalk();
    drawTalk();
    byId("prompt").focus();
  });
  byId("plain").checked = stored("plain", false);
  byId("plain").addEventListener("change", showColours);
  byId("clear-history").addEventListener("click", () => {
    store("history", []);
    drawHistory();
  });
  showColours();
  setMode("chat");
}

function showColours() {
  const isPlain = byId("plain").checked;
  document.body.classList.toggle("is-plain", isPlain);
  store("plain", isPlain);
}

/** Show the chat or the completion mode; a change of mode begins a new talk. */
export function setMode(next) {
  if (next !== mode) {
    controller?.abort();
    mode = next;
    talk = newTalk();
  }
  byId("system-row").hidden = mode !== "chat";
  const label = mode === "chat" ? "Message" : "Text to continue";
  byId("prompt").setAttribute("aria-label", label);
  byId("prompt").placeholder = mode === "chat" ? "Write a message" : "Write a beginning; the model continues it";
  drawTalk();
}

function drawTalk() {
  const list = byId("messages");
  list.replaceChildren();
  if (!talk.messages.length) {
    const hint = mode === "chat" ? "Ask something: every token shows where it came from." : "Begin a text: the model continues it, token by token.";
    list.append(el("p", { className: "empty", textContent: hint }));
  }
  if (talk.system) byId("system").value = talk.system;
  for (const message of talk.messages) {
    const view = message.role === "assistant" ? new TokenView(message.tokens) : null;
    addMessage(message.role, view ? view.node : message.content, message.summary, () => message.content);
  }
}

function addMessage(role, content, summary, text) {
  const names = { user: mode === "chat" ? "You" : "Text", assistant: "Model" };
  const copy = el("button", { type: "button", className: "link", textContent: "Copy" });
  copy.addEventListener("click", async () => {
    await copyText(text());
    copy.textContent = "Copied";
    announce("Copied");
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  const foot = el("p", { className: "foot quiet small" }, summary ?? "");
  const node = el(
    "article",
    { className: `message ${role}`, "aria-label": names[role] },
    el("div", { className: "message-head" }, el("strong", {}, names[role]), copy),
    typeof content === "string" ? el("div", { className: "tokens" }, content) : content,
    foot,
  );
  byId("messages").querySelector(".empty")?.remove();
  byId("messages").append(node);
  scrollDown(true);
  return { node, foot };
}

function scrollDown(always = false) {
  const list = byId("messages");
  const isNear = list.scrollHeight - list.scrollTop - list.clientHeight < 120;
  if (always || isNear) list.scrollTop = list.scrollHeight;
}

function requestBody() {
  const body = { sampling_params: samplingParams(), return_logprob: true };
  if (mode === "completion") {
    body.text = talk.messages.map((message) => message.content).join("");
    return body;
  }
  const messages = talk.messages.map(({ role, content }) => ({ role, content }));
  if (talk.system) messages.unshift({ role: "system", content: talk.system });
  return { ...body, messages };
}

async function sendPrompt() {
  const prompt = byId("prompt");
  if (controller || !prompt.value.trim()) return;
  talk.system = mode === "chat" ? byId("system").value.trim() : "";
  const given = prompt.value;
  talk.messages.push({ role: "user", content: given });
  addMessage("user", given, "", () => given);
  prompt.value = "";
  await streamCompletion(given);
}

async function streamCompletion(given) {
  controller = new AbortController();
  setBusy(true);
  const view = new TokenView();
  const { node, foot } = addMessage("assistant", view.node, "", () => view.text);
  node.setAttribute("aria-busy", "true");
  const started = performance.now();
  let first = null;
  let last = null;
  let problem = "";
  try {
    for await (const event of generate(requestBody(), controller.signal)) {
      if (first === null && event.output_ids.length) {
        first = (performance.now() - started) / 1000;
        noteFirstToken(first);
      }
      view.push(event);
      last = event;
      scrollDown();
    }
  } catch (error) {
    if (error.name !== "AbortError") problem = problemOf(error);
  }
  const isStopped = controller.signal.aborted;
  controller = null;
  setBusy(false);
  node.removeAttribute("aria-busy");
  const summary = summaryOf(last, view, first, isStopped);
  foot.textContent = summary;
  scrollDown();
  if (problem) {
    const note = el("p", { className: "note", role: "alert", textContent: problem });
    node.append(note);
    scrollDown(true);
  }
  if (view.tokens.length) {
    talk.messages.push({ role: "assistant", content: view.text, tokens: view.tokens, summary });
    remember();
  } else {
    talk.messages.pop(); // without an answer the message is not part of the talk
    if (!byId("prompt").value) byId("prompt").value = given;
  }
  announce(problem || (isStopped ? "Stopped." : `Complete. ${summary}`));
  byId("prompt").focus();
}

function problemOf(error) {
  if (error instanceof CallError) {
    if (error.status === 401) askForKey(error.message);
    return error.message;
  }
  return `The page cannot read the answer: ${error.message}`;
}

function setBusy(isBusy) {
  byId("send").hidden = isBusy;
  byId("stop").hidden = !isBusy;
  if (isBusy) byId("stop").focus();
}

function summaryOf(last, view, first, isStopped) {
  const parts = [`${view.tokens.length} tokens`];
  const meta = last?.meta_info;
  if (meta?.finish_reason) {
    if (meta.decode_time > 0) {
      parts.push(`${number((meta.completion_tokens - 1) / meta.decode_time)} tok/s`);
    }
    if (meta.spec_verify_ct) parts.push(`accept length ${number(meta.spec_accept_length, 2)}`);
    if (meta.cached_tokens) parts.push(`${meta.cached_tokens} prompt tokens cached`);
  }
  if (first !== null) parts.push(`TTFT ${seconds(first)}`);
  parts.push(isStopped ? "stopped" : meta?.finish_reason?.type ?? "incomplete");
  return parts.join(" · ");
}

function remember() {
  const others = stored("history", []).filter((each) => each.id !== talk.id);
  const talks = [{ ...talk, at: Date.now() }, ...others].slice(0, MOST_TALKS);
  while (talks.length && !store("history", talks)) talks.pop(); // the oldest go where room ends
}

/** Fill the history's list. onOpen is called with the mode of a talk that is opened. */
export function drawHistory(onOpen = () => {}) {
  const talks = stored("history", []);
  const items = talks.map((each) => {
    const open = el("button", { type: "button", className: "link", textContent: each.messages[0].content.slice(0, 80) });
    open.addEventListener("click", () => {
      onOpen(each.mode);
      talk = each;
      drawTalk();
    });
    const when = `${each.mode}, ${new Date(each.at).toLocaleString()}`;
    return el("li", {}, open, el("span", { className: "quiet small" }, when));
  });
  byId("history").replaceChildren(...(items.length ? items : [el("li", { className: "quiet" }, "Nothing yet.")]));
}
