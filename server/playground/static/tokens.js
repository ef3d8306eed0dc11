// Shows tokens coloured by their source: the draft at each position, lookup, or the target.

import { announce, byId, el } from "./dom.js";

const SHADES = 6; // draft positions with a colour each; later ones share the last

/** Return the class of a token's colour. */
export function shade(source, position) {
  return source === "draft" ? `t-d${Math.min(position, SHADES)}` : `t-${source}`;
}

/** Turn one token's event into what is shown and kept of it. */
export function tokenOf(event, round) {
  const [each] = event.meta_info.rounds;
  const isDrafted = each && each.position < each.accepted;
  const entry = event.meta_info.output_token_logprobs?.[0];
  return {
    text: event.text,
    id: event.output_ids[0],
    source: isDrafted ? each.source : "target",
    position: (each?.position ?? 0) + 1,
    round,
    drafted: each?.drafted ?? 0,
    accepted: each?.accepted ?? 0,
    probability: entry ? Math.exp(entry[0]) : null,
  };
}

/** Describe a token in one sentence. */
export function describe(token) {
  const origin = {
    draft: `draft model, position ${token.position}`,
    lookup: `lookup, position ${token.position}`,
    target: token.drafted ? "the target's own, after the draft" : "the target's own, no draft",
  }[token.source];
  const parts = [origin];
  if (token.probability !== null) parts.push(`probability ${(100 * token.probability).toFixed(1)} %`);
  const accepted = token.drafted ? `, ${token.accepted} of ${token.drafted} drafts accepted` : "";
  parts.push(`round ${token.round}${accepted}`);
  return parts.join(" · ");
}

/** A text whose tokens are added one by one. Arrow keys and the pointer show each token's source. */
export class TokenView {
  constructor(tokens = []) {
    this.tokens = [];
    this.node = el("div", {
      className: "tokens",
      tabIndex: 0,
      role: "group",
      "aria-label": "Tokens of the completion; the arrow keys move through them",
    });
    this._rounds = 0;
    this._current = -1;
    this.node.addEventListener("pointerover", (e) => this._show(this._index(e.target), e));
    this.node.addEventListener("pointerleave", () => this._hide());
    this.node.addEventListener("blur", () => this._hide());
    this.node.addEventListener("keydown", (e) => this._move(e));
    for (const token of tokens) this._append(token);
  }

  get text() {
    return this.tokens.map((token) => token.text).join("");
  }

  /** Add the token of an event; an event without a token only ends the text. */
  push(event) {
    if (!event.output_ids.length) {
      if (event.text) this.node.append(event.text);
      return;
    }
    const starts = event.meta_info.rounds[0]?.position === 0;
    this._rounds += starts || !this._rounds ? 1 : 0;
    this._append(tokenOf(event, this._rounds));
  }

  _append(token) {
    const span = el("span", {
      className: `token ${shade(token.source, token.position)}`,
      textContent: token.text,
      dataset: { source: token.source, position: token.position },
    });
    if (token.position === 1) span.classList.add("first");
    this.tokens.push(token);
    this.node.append(span);
  }

  _index(target) {
    return Array.prototype.indexOf.call(this.node.children, target);
  }

  _move(event) {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    if (event.key === "Escape") return this._hide();
    if (!(event.key in steps) || !this.tokens.length) return;
    event.preventDefault();
    const next = this._current < 0 ? 0 : this._current + steps[event.key];
    this._show(Math.max(0, Math.min(next, this.tokens.length - 1)));
    const token = this.tokens[this._current];
    announce(`${token.text.trim() || "blank"}: ${describe(token)}`);
  }

  _show(index, pointer) {
    const token = this.tokens[index];
    if (!token || this.node.closest(".is-plain")) return this._hide();
    this._hide();
    this._current = index;
    this.tokens.forEach((each, i) => {
      this.node.children[i].classList.toggle("same-round", each.round === token.round);
    });
    const span = this.node.children[index];
    span.classList.add("current");
    const tip = byId("tip");
    tip.textContent = describe(token);
    tip.hidden = false;
    const box = (pointer ? span.getClientRects()[0] : span.getBoundingClientRect()) ?? { left: 0, bottom: 0, top: 0 };
    const left = Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8));
    const below = box.bottom + 6;
    const isLow = below + tip.offsetHeight > innerHeight;
    tip.style.left = `${left}px`;
    tip.style.top = `${isLow ? box.top - tip.offsetHeight - 6 : below}px`;
  }

  _hide() {
    byId("tip").hidden = true;
    for (const span of this.node.querySelectorAll(".current, .same-round")) {
      span.classList.remove("current", "same-round");
    }
    this._current = -1;
  }
}

/** Fill the legend: a colour for each draft position up to the server's block size. */
export function drawLegend(node, blockSize) {
  const item = (className, text) =>
    el("span", { role: "listitem" }, el("span", { className: `swatch ${className}` }), ` ${text}`);
  const shown = Math.min(blockSize, SHADES);
  const drafts = Array.from({ length: shown }, (_, i) =>
    item(`t-d${i + 1}`, i === 0 ? "draft 1" : `${i + 1}${i + 1 === SHADES && blockSize > SHADES ? "+" : ""}`),
  );
  node.replaceChildren(...drafts, item("t-lookup", "lookup"), item("t-target", "target"));
}
