// Shows text that nobody vouches for. It never becomes markup, and characters that would hide or turn it are named.

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;
const MARKED_MOST = 2000;

/** @param {string} found */
function nameOf(found) {
  const code = found.codePointAt(0) ?? 0;
  if (code === 0x1b) return "ESC";
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** The text in one line, for names and attributes: what cannot be seen is named in it.
 * @param {string} text */
export function plain(text) {
  return text.replace(HIDDEN, nameOf).replace(/[\n\t]+/g, " ");
}

/** The text as nodes, with what cannot be seen marked.
 * @param {string} text */
export function visible(text) {
  const made = document.createDocumentFragment();
  let at = 0;
  let marked = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found[0] === "\r" && text[found.index + 1] === "\n") continue;
    if (++marked > MARKED_MOST) break;
    made.append(text.slice(at, found.index));
    const mark = document.createElement("span");
    mark.className = "unseen-character";
    mark.textContent = nameOf(found[0]);
    made.append(mark);
    at = found.index + found[0].length;
  }
  made.append(marked > MARKED_MOST ? text.slice(at).replace(HIDDEN, nameOf) : text.slice(at));
  return made;
}

/** An element with classes and children: strings become text.
 * @param {string} tag @param {string|Record<string, unknown>} about @param {...(Node|string|null|undefined)} children */
export function make(tag, about = {}, ...children) {
  const element = document.createElement(tag);
  const attributes = typeof about === "string" ? { class: about } : about;
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, /** @type {EventListener} */ (value));
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A number as people read it: 1, 0.25, 1e-9.
 * @param {number|null|undefined} value */
export function number(value) {
  if (value === null || value === undefined) return "";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value);
  return String(Number(value.toPrecision(4)));
}

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 0.0005) return "<1 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}
