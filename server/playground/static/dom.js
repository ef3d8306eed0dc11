// Builds elements, and holds what several parts of the page share.

export const byId = (id) => document.getElementById(id);

/** Create an element; props are properties, or attributes where the name has a dash. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else if (name === "dataset") Object.assign(node.dataset, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

/** Announce a sentence to screen readers. */
export function announce(text) {
  byId("status").textContent = text;
}

export function showNote(node, text) {
  node.textContent = text;
  node.hidden = !text;
}

export const number = (value, digits = 1) =>
  Number.isFinite(value) ? value.toFixed(digits) : "–";

export const seconds = (value) =>
  value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(2)} s`;

/** Read a value that the browser keeps; the fallback where it has none. */
export function stored(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(`dspark.${name}`)) ?? fallback;
  } catch {
    return fallback;
  }
}

/** Keep a value in the browser; return false where there is no room. */
export function store(name, value) {
  try {
    localStorage.setItem(`dspark.${name}`, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** Copy a text, also where the page is not served over HTTPS. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = el("textarea", { value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
