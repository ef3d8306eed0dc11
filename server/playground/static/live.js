// Live numbers from /metrics and /server_info, and the switch of the context-KV writer.
// They are read only while the page is visible.

import { CallError, getJson, getText, parseMetrics, post } from "./api.js";
import { announce, byId, el, number, seconds, showNote } from "./dom.js";
import { drawLegend } from "./tokens.js";

const EVERY_MS = 1000;
const INFO_EVERY = 5; // reads of /metrics for each of /server_info
const KEPT = 60; // points of the curve

const rates = [];
let before = null; // the counters of the last read
let firstToken = null; // seconds, of this page's last completion
let reads = 0;
let timer = null;
let onKeyNeeded = () => {};
let hasAsked = false; // for the key; a dialog that is closed does not open again by itself

export function noteFirstToken(value) {
  firstToken = value;
}

/** Begin to read. needKey is called with a message when the server refuses the key. */
export function startLive(needKey) {
  onKeyNeeded = needKey;
  document.addEventListener("visibilitychange", () => (document.hidden ? pause() : resume()));
  for (const radio of byId("kv-mode").querySelectorAll("input")) {
    radio.addEventListener("change", () => switchMode(radio.value));
  }
  resume();
}

/** Read at once, such as after a key was given. */
export function readNow() {
  pause();
  reads = 0;
  hasAsked = false;
  resume();
}

function pause() {
  clearTimeout(timer);
  timer = null;
}

function resume() {
  if (timer === null && !document.hidden) read();
}

async function read() {
  timer = setTimeout(() => {}, 0); // marks that reading goes on
  try {
    if (reads++ % INFO_EVERY === 0) showInfo(await getJson("server_info"));
    showMetrics(parseMetrics(await getText("metrics")));
  } catch (error) {
    before = null;
    reads = 0;
    showNote(byId("live-error"), error.message);
    if (error.status === 401 && !hasAsked) {
      hasAsked = true;
      onKeyNeeded(error.message);
    }
  }
  if (timer !== null && !document.hidden) timer = setTimeout(read, EVERY_MS);
}

/** Return the mode, path and reason of the context-KV writer. */
export const contextKv = async () => (await getJson("server_info")).context_kv;

/** Set the mode of the writer; return its state. */
export const setContextKv = async (mode, options = {}) =>
  post("set_context_kv", { mode }, { isAdmin: true, ...options });

async function switchMode(mode) {
  showNote(byId("kv-error"), "");
  try {
    showContextKv(await setContextKv(mode));
    announce(`Context KV: ${mode}`);
  } catch (error) {
    showNote(byId("kv-error"), error.message);
    if (error instanceof CallError && [401, 403].includes(error.status)) onKeyNeeded(error.message);
    showContextKv(await contextKv().catch(() => null));
  }
}

function showInfo(info) {
  byId("model").textContent = info.served_model_name;
  drawLegend(byId("legend"), info.engine.block_size);
  showContextKv(info.context_kv);
}

export function showContextKv(status) {
  if (!status) return;
  const paths = { stacked: "All layers in one write (stacked)", per_layer: "Layer by layer", none: "No draft, nothing to write" };
  byId("kv-path").textContent = paths[status.path];
  byId("kv-reason").textContent = status.reason ?? "";
  for (const radio of byId("kv-mode").querySelectorAll("input")) radio.checked = radio.value === status.mode;
}

function showMetrics(samples) {
  const value = (name, labels = {}) =>
    samples
      .filter((s) => s.name === name && Object.entries(labels).every(([k, v]) => s.labels[k] === v))
      .reduce((sum, s) => sum + s.value, 0);
  const labelled = (name, label) =>
    samples.filter((s) => s.name === name).map((s) => [s.labels[label], s.value]);
  const now = { at: performance.now(), tokens: value("generation_tokens_total") };
  const rounds = value("spec_decode_num_drafts_total");
  if (before !== null && now.at > before.at) {
    rates.push((1000 * (now.tokens - before.tokens)) / (now.at - before.at));
    if (rates.length > KEPT) rates.shift();
    byId("live-rate").textContent = number(rates.at(-1));
    drawCurve();
  }
  before = now;
  const waits = value("time_to_first_token_seconds_count");
  const meanWait = value("time_to_first_token_seconds_sum") / waits;
  byId("live-ttft").textContent =
    firstToken !== null ? seconds(firstToken) : waits ? seconds(meanWait) : "–";
  byId("live-ttft").title = waits ? `mean since the start: ${seconds(meanWait)}` : "";
  byId("live-accept").textContent = rounds ? number(value("spec_decode_mean_accept_length"), 2) : "–";
  byId("live-running").textContent = value("num_requests_running");
  byId("live-waiting").textContent = value("num_requests_waiting");
  const pages = Object.fromEntries(labelled("kv_pages", "state"));
  byId("live-pages").textContent = `${pages.used} / ${pages.used + pages.cached + pages.free}`;
  byId("live-pages").title = `${pages.cached} more hold cached prefixes`;
  const perPosition = labelled("spec_decode_num_accepted_tokens_per_pos_total", "position");
  drawPositions(perPosition.map(([, count]) => (rounds ? count / rounds : 0)));
  drawSources(labelled("generation_tokens_by_source_total", "source"));
  const isSuspended = value("spec_decode_is_parked") === 1;
  showNote(byId("live-error"), isSuspended ? "Speculation is suspended: drafts do not pay at this load." : "");
}

function drawCurve() {
  const most = Math.max(...rates, 1);
  const points = rates.map((rate, i) => `${(100 * (KEPT - rates.length + i)) / (KEPT - 1)},${(31 - (30 * rate) / most).toFixed(1)}`);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 32");
  svg.setAttribute("preserveAspectRatio", "none");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.join(" "));
  svg.append(line);
  byId("live-spark").replaceChildren(svg);
  byId("live-spark").setAttribute("aria-label", `Tokens per second over the last minute, at most ${number(most)}`);
}

function drawPositions(shares) {
  const bars = shares.map((share, i) => {
    const percent = Math.round(100 * share);
    const bar = el("span", { className: `bar t-d${Math.min(i + 1, 6)}` });
    bar.style.height = `${Math.max(2, percent)}%`;
    return el(
      "div",
      { className: "column", role: "img", "aria-label": `position ${i + 1}: ${percent} %` },
      el("span", { className: "value" }, String(percent)),
      el("div", { className: "well" }, bar),
      el("span", { className: "value" }, String(i + 1)),
    );
  });
  const none = el("p", { className: "quiet small" }, "No draft.");
  byId("live-positions").replaceChildren(...(bars.length ? bars : [none]));
}

function drawSources(sources) {
  const total = sources.reduce((sum, [, count]) => sum + count, 0);
  const stack = el("div", { className: "stack", "aria-hidden": "true" });
  const texts = [];
  for (const [source, count] of sources) {
    const part = el("span", { className: source === "draft" ? "t-d2" : `t-${source}` });
    part.style.flexGrow = count;
    if (count) stack.append(part);
    texts.push(`${source} ${total ? Math.round((100 * count) / total) : 0} %`);
  }
  byId("live-sources").replaceChildren(stack, el("p", { className: "small" }, texts.join(" · ")));
}
