// Races one prompt through two or three lanes, one after another, and compares their tokens.

import { CallError, generate } from "./api.js";
import { announce, byId, el, number, seconds, showNote } from "./dom.js";
import { contextKv, setContextKv, showContextKv } from "./live.js";
import { TokenView } from "./tokens.js";

// A lane's settings: fields of sampling_params, and the mode of the context-KV writer.
const PRESETS = [
  { name: "Speculation", params: {} },
  { name: "Plain decoding", params: { num_draft_tokens: 0 } },
  { name: "2 draft tokens", params: { num_draft_tokens: 2 } },
  { name: "Stacked context KV", params: {}, kv: "on" },
  { name: "Per-layer context KV", params: {}, kv: "off" },
];

let controller = null;
let lanes = [];
let askForKey = () => {};
let toRestore = null; // the mode of the context-KV writer while a race has changed it

export function startRace(onKeyNeeded) {
  askForKey = onKeyNeeded;
  drawLanes();
  byId("race-third").addEventListener("change", drawLanes);
  byId("race-stop").addEventListener("click", () => controller?.abort());
  byId("race-form").addEventListener("submit", (event) => {
    event.preventDefault();
    race();
  });
  // A page that is closed in a race still sets the mode back.
  addEventListener("pagehide", () => {
    controller?.abort();
    if (toRestore !== null) setContextKv(toRestore, { keepalive: true }).catch(() => {});
  });
}

function drawLanes() {
  const count = byId("race-third").checked ? 3 : 2;
  lanes = lanes.slice(0, count);
  while (lanes.length < count) lanes.push(newLane(lanes.length));
  byId("lanes").replaceChildren(...lanes.map((lane) => lane.node));
}

function newLane(index) {
  const name = `Lane ${index + 1}`;
  const select = el("select", { "aria-label": `Settings of ${name}` });
  PRESETS.forEach((preset, i) => select.append(el("option", { value: i, textContent: preset.name })));
  select.value = index;
  const more = el("input", {
    placeholder: '{"top_k": 20}',
    "aria-label": `More sampling parameters of ${name}, as JSON`,
    spellcheck: false,
  });
  const result = el("p", { className: "result" }, "–");
  const detail = el("p", { className: "quiet small" });
  const output = el("div", { className: "lane-output" });
  const note = el("p", { className: "note", hidden: true, role: "alert" });
  const node = el(
    "section",
    { className: "lane card", "aria-label": name },
    el("div", { className: "lane-head" }, el("h2", {}, name), select),
    more,
    result,
    detail,
    note,
    output,
  );
  return { index, name, node, select, more, result, detail, output, note };
}

/** Return a lane's parameters and mode. Throws CallError for text that is not a JSON object. */
function settingsOf(lane) {
  const { params, kv } = PRESETS[lane.select.value];
  let more = {};
  if (lane.more.value.trim()) {
    try {
      more = JSON.parse(lane.more.value);
    } catch {
      more = null;
    }
    if (more === null || typeof more !== "object" || Array.isArray(more)) {
      throw new CallError(`${lane.name}: more parameters must be a JSON object.`);
    }
  }
  return { params: { ...params, ...more }, kv };
}

async function confirmSwitch() {
  const dialog = byId("switch-dialog");
  dialog.returnValue = "cancel";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  return dialog.returnValue === "go";
}

async function race() {
  if (controller) return;
  showVerdict("");
  for (const lane of lanes) clear(lane);
  let settings;
  try {
    settings = lanes.map(settingsOf);
  } catch (error) {
    return showVerdict(error.message, "bad");
  }
  const switches = settings.some(({ kv }) => kv);
  if (switches && !(await confirmSwitch())) return;
  controller = new AbortController();
  setBusy(true);
  try {
    if (switches) toRestore = (await contextKv()).mode;
    for (const [i, lane] of lanes.entries()) {
      announce(`${lane.name} runs.`);
      await run(lane, settings[i]);
      if (controller.signal.aborted) break;
    }
    if (controller.signal.aborted) showVerdict("Stopped.");
    else judge(settings);
  } catch (error) {
    report(error);
  } finally {
    await restore();
    controller = null;
    setBusy(false);
  }
}

async function restore() {
  if (toRestore === null) return;
  try {
    showContextKv(await setContextKv(toRestore));
    toRestore = null;
  } catch (error) {
    showVerdict(`The context-KV mode could not be set back to ${toRestore}: ${error.message}`, "bad");
    toRestore = null;
  }
}

function report(error) {
  showVerdict(error.message, "bad");
  if ([401, 403].includes(error.status)) askForKey(error.message);
}

async function run(lane, { params, kv }) {
  lane.node.classList.add("is-running");
  const view = new TokenView();
  lane.output.replaceChildren(view.node);
  const started = performance.now();
  let first = null;
  try {
    // A lane without a mode runs under the mode that the server had.
    if (toRestore !== null) showContextKv(await setContextKv(kv ?? toRestore));
    for await (const event of generate(bodyOf(params), controller.signal)) {
      if (first === null) first = (performance.now() - started) / 1000;
      view.push(event);
      lane.last = event.meta_info;
      lane.result.textContent = `${view.tokens.length} tokens`;
    }
    finish(lane, view, first);
  } catch (error) {
    if (error.name !== "AbortError") {
      showNote(lane.note, error.message);
      if ([401, 403].includes(error.status)) askForKey(error.message);
    }
  } finally {
    lane.node.classList.remove("is-running");
  }
}

function bodyOf(params) {
  const text = byId("race-prompt").value;
  const prompt = byId("race-chat").checked ? { messages: [{ role: "user", content: text }] } : { text };
  const common = {
    max_new_tokens: Number(byId("race-tokens").value),
    temperature: Number(byId("race-temperature").value),
  };
  if (byId("race-seed").value !== "") common.seed = Number(byId("race-seed").value);
  return { ...prompt, sampling_params: { ...common, ...params } };
}

function finish(lane, view, first) {
  const meta = lane.last;
  lane.tokens = view.tokens;
  lane.rate = meta.decode_time > 0 ? (meta.completion_tokens - 1) / meta.decode_time : NaN;
  lane.result.replaceChildren(el("strong", {}, number(lane.rate)), " tok/s");
  const parts = [`${meta.completion_tokens} tokens`, `TTFT ${seconds(first)}`];
  if (meta.spec_verify_ct) parts.push(`accept length ${number(meta.spec_accept_length, 2)}`);
  if (meta.cached_tokens) parts.push(`${meta.cached_tokens} prompt tokens cached`);
  lane.detail.textContent = parts.join(" · ");
}

function judge(settings) {
  const ran = lanes.filter((lane) => lane.tokens);
  if (ran.length < 2) return showVerdict("Fewer than two lanes finished, so there is nothing to compare.", "bad");
  const fastest = ran.reduce((best, lane) => (lane.rate > best.rate ? lane : best));
  const slowest = ran.reduce((worst, lane) => (lane.rate < worst.rate ? lane : worst));
  const ratio = fastest.rate / slowest.rate;
  const speed = Number.isFinite(ratio) && fastest !== slowest ? ` ${fastest.name} decodes ${number(ratio, 2)} times as fast as ${slowest.name}.` : "";
  const temperatures = settings.map(({ params }) => params.temperature ?? Number(byId("race-temperature").value));
  if (Math.max(...temperatures) > 0) {
    return showVerdict(`Above temperature 0 lanes share only the distribution, so their tokens may differ.${speed}`);
  }
  for (const lane of ran.slice(1)) {
    const at = difference(ran[0].tokens, lane.tokens);
    if (at < 0) continue;
    const said = (tokens) => (tokens[at] ? JSON.stringify(tokens[at].text) : "its end");
    const text = `First difference at token ${at + 1}: ${ran[0].name} has ${said(ran[0].tokens)}, ${lane.name} has ${said(lane.tokens)}.`;
    return showVerdict(text + speed, "bad");
  }
  showVerdict(`Same tokens in all lanes.${speed}`, "good");
}

/** Return the place of the first token that differs; -1 for the same tokens. */
function difference(one, other) {
  const most = Math.max(one.length, other.length);
  for (let i = 0; i < most; i++) if (one[i]?.id !== other[i]?.id) return i;
  return -1;
}

function clear(lane) {
  lane.result.textContent = "–";
  lane.detail.textContent = "";
  lane.output.replaceChildren();
  lane.tokens = null;
  lane.last = null;
  showNote(lane.note, "");
}

function showVerdict(text, kind = "") {
  const node = byId("verdict");
  node.className = `verdict ${kind}`;
  showNote(node, text);
  if (text) announce(text);
}

function setBusy(isBusy) {
  byId("race-start").hidden = isBusy;
  byId("race-stop").hidden = !isBusy;
}
