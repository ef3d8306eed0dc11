// Calls the server: keys, JSON requests, and streams of /generate. Every address is relative.

const KEYS = { caller: "dspark.key", admin: "dspark.admin-key" };

/** An error with a message for people; `status` is the HTTP status, 0 without a response. */
export class CallError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** Return a stored key; sessionStorage ends with the tab. */
export const key = (kind) => sessionStorage.getItem(KEYS[kind]) ?? "";

export function setKey(kind, value) {
  if (value) sessionStorage.setItem(KEYS[kind], value);
  else sessionStorage.removeItem(KEYS[kind]);
}

function headers(isAdmin) {
  const given = (isAdmin && key("admin")) || key("caller") || key("admin");
  const found = { "content-type": "application/json" };
  if (given) found.authorization = `Bearer ${given}`;
  return found;
}

async function send(path, { body, signal, isAdmin = false, keepalive = false } = {}) {
  const options = { headers: headers(isAdmin), signal, keepalive, cache: "no-store" };
  if (body !== undefined) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError("The server cannot be reached. Is it running?");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

async function failure(response) {
  let message = `${response.status} ${response.statusText}`.trim();
  try {
    message = (await response.json()).error.message;
  } catch {
    // The body is not the server's own error, such as a proxy's page.
  }
  if (response.status === 401) {
    const problem = key("caller") || key("admin") ? "does not accept this key" : "needs a key";
    message = `The server ${problem}: ${message}.`;
  }
  return new CallError(message, response.status);
}

export const getJson = async (path) => (await send(path)).json();
export const getText = async (path) => (await send(path)).text();
export const post = async (path, body, options = {}) =>
  (await send(path, { ...options, body })).json();

/**
 * Yield the events of a streamed completion, one for each token.
 * Throws CallError for a refusal, an error event, and a stream that ends before its completion.
 */
export async function* generate(body, signal) {
  const response = await send("generate", {
    signal,
    body: {
      ...body,
      stream: true,
      incremental_stream_output: true,
      token_by_token: true,
      return_rounds: true,
    },
  });
  let isComplete = false;
  for await (const data of frames(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new CallError(event.error.message, 500);
    isComplete = event.meta_info.finish_reason !== null;
    yield event;
  }
  if (!isComplete) {
    throw new CallError("The server ended the stream before the completion was complete.");
  }
}

/** Yield the data of server-sent events; comments are skipped. */
async function* frames(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      pending += value;
      const parts = pending.split("\n\n");
      pending = parts.pop();
      for (const part of parts) {
        if (part.startsWith("data: ")) yield part.slice(6);
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError("The connection to the server was lost before the completion was complete.");
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Parse Prometheus text into a list of {name, labels, value}. */
export function parseMetrics(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const match = /^dspark:([a-z_]+)(?:\{([^}]*)\})? ([^ ]+)/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(/(\w+)="([^"]*)"/g)) labels[name] = value;
    samples.push({ name: match[1], labels, value: Number(match[3]) });
  }
  return samples;
}
