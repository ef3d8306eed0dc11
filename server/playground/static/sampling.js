// The form of sampling parameters; an empty field leaves the value to the server.

import { byId, el, store, stored } from "./dom.js";

// name, label, step (null: text), least value, placeholder
const FIELDS = [
  ["max_new_tokens", "Most tokens", "1", 1, "server's"],
  ["temperature", "Temperature", "0.1", 0, "model's"],
  ["top_p", "Top p", "0.05", 0, "model's"],
  ["top_k", "Top k", "1", -1, "model's"],
  ["min_p", "Min p", "0.05", 0, "model's"],
  ["repetition_penalty", "Repetition penalty", "0.05", 0.01, "model's"],
  ["seed", "Seed", "1", null, "random"],
  ["num_draft_tokens", "Draft tokens", "1", 0, "server's"],
  ["stop", "Stop at", null, null, "none"],
];

/** Build the form and keep its values in the browser. */
export function drawSampling() {
  const form = byId("sampling");
  const values = stored("sampling", {});
  for (const [name, label, step, least, placeholder] of FIELDS) {
    const input = el("input", { name, placeholder, value: values[name] ?? "" });
    if (step !== null) Object.assign(input, { type: "number", step: "any" });
    if (least !== null) input.min = least;
    form.append(el("label", {}, label, " ", input));
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    store("sampling", Object.fromEntries(new FormData(form)));
  });
}

/** Return the parameters of a request; text that is no number is left to the server to refuse. */
export function samplingParams() {
  const params = {};
  for (const [name, value] of new FormData(byId("sampling"))) {
    if (value !== "") params[name] = name === "stop" ? value : Number(value);
  }
  return params;
}
