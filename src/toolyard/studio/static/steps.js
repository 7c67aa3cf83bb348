// Shows what happened in a session: prompts, calls and their results.

import { text as fetchText } from "./api.js";
import { duration, make, number, plain, visible } from "./visible.js";

const STEPS_MOST = 500;

const MEANS = {
  no_such_tool: "There is no tool of this name here.",
  bad_arguments: "The arguments do not fit the tool.",
  tool_failed: "The tool refused, and says why.",
  episode_finished: "Nothing ran: the episode is over.",
  tool_raised: "The tool broke: it raised an error that its author did not expect.",
  timed_out: "The call took too long, and the server stopped it.",
  lost: "The call is lost: its environment, or something that it needs, is gone. This is not the agent's fault.",
  overloaded: "Nothing ran: the server has too many calls already.",
  cancelled: "The call was stopped before it ended.",
};
const OURS = new Set(["timed_out", "lost", "overloaded", "cancelled", "tool_raised"]);

/** How many characters a text has, as the server counts them.
 * @param {string} text */
function characters(text) {
  let count = 0;
  for (const _ of text) count++;
  return count;
}

/** A text from a tool. The rest of a long one is fetched when it is asked for.
 * @param {{text: string, length: number, href: string|null}} part @param {string} what */
export function textPart(part, what) {
  if (!part.length) return make("p", "soft", "An empty text.");
  const shown = make("pre", { class: "output", tabindex: "0" }, visible(part.text));
  if (!part.href) return shown;
  let at = characters(part.text);
  const said = make("span", "soft");
  const more = make("button", { type: "button", class: "quiet" }, "Show more");
  const rest = make("p", "rest", said, " ", more, " ");
  rest.append(make("a", { href: `${part.href}?save`, download: "result.txt" }, "Save all of it"));
  const tell = () => {
    said.textContent = `${at.toLocaleString("en")} of ${part.length.toLocaleString("en")} characters of ${what}.`;
    more.hidden = at >= part.length;
  };
  more.addEventListener("click", async () => {
    more.setAttribute("disabled", "");
    try {
      const next = await fetchText(`${part.href}?start=${at}`);
      shown.append(visible(next));
      at = next ? at + characters(next) : part.length;
      tell();
    } catch (error) {
      said.textContent = String(/** @type {Error} */ (error).message);
    }
    more.removeAttribute("disabled");
  });
  tell();
  return make("div", {}, shown, rest);
}

/** What a tool returned, or a prompt: texts and images.
 * @param {any[]} blocks @param {string} what */
export function blocks(blocks, what) {
  return blocks.map((block) => {
    if (block.type === "text") return textPart(block, what);
    if (block.type === "left") return make("p", "soft", `${block.count.toLocaleString("en")} more parts of ${what} are not shown.`);
    const size = `${plain(block.kind)}, ${Math.ceil(block.bytes / 1024)} KB`;
    if (!block.shown) {
      return make("p", "soft", `An image that browsers do not show safely (${size}). `, make("a", { href: block.href, download: "image" }, "Save it"));
    }
    const image = make("img", { src: block.href, alt: `Image in ${what}, ${size}`, loading: "lazy" });
    image.addEventListener("error", () => image.replaceWith(make("p", "soft", `An image that cannot be shown (${size}): its data is broken.`)));
    return make("p", "picture", image);
  });
}

/** @param {string} written JSON */
function argumentsOf(written) {
  try {
    const entries = Object.entries(JSON.parse(written));
    const short = entries.every(([, value]) => typeof value !== "string" || (value.length < 80 && !value.includes("\n")));
    if (short && written.length < 160) return null;
    return entries;
  } catch {
    return null;
  }
}

/** A value as JSON in lines, unless their beginnings would be most of it.
 * @param {unknown} value */
function spread(value) {
  const short = JSON.stringify(value);
  const lines = JSON.stringify(value, null, 1);
  return lines.length > 4 * short.length + 200 ? short : lines;
}

/** One call, as it is known by now.
 * @param {any} step */
export function stepElement(step) {
  const runs = step.outcome === "";
  const failed = !runs && step.outcome !== "ok";
  const chips = make("span", "chips");
  if (runs) chips.append(make("span", "chip running", "running"));
  if (failed) chips.append(make("span", `chip ${OURS.has(step.outcome) ? "bad" : "warn"}`, step.outcome.replaceAll("_", " ")));
  if (step.reward !== null) chips.append(make("span", `chip reward ${step.reward > 0 ? "good" : ""}`, `reward ${number(step.reward)}`));
  if (step.finished) chips.append(make("span", "chip finished", "finished"));
  if (step.ran !== null && !runs) chips.append(make("span", "time", duration(step.ran)));
  const head = make("header", {}, make("span", "number", String(step.number)), make("bdi", "tool", plain(step.tool)));
  const long = argumentsOf(step.arguments.text);
  if (!long && step.arguments.text !== "{}") head.append(make("code", "arguments", visible(step.arguments.text)));
  head.append(chips);
  const body = make("div", "body");
  if (step.said) body.append(make("div", "said", make("span", "unseen", "The model wrote: "), textPart(step.said, "what the model wrote")));
  if (step.arguments.href) body.append(textPart(step.arguments, "the arguments"));
  else if (long) {
    const list = make("dl", "values");
    for (const [name, value] of long) {
      const written = typeof value === "string" ? value : spread(value);
      list.append(make("dt", {}, plain(name)), make("dd", {}, make("pre", { tabindex: "0" }, visible(written))));
    }
    body.append(list);
  }
  if (failed) body.append(make("p", "means", MEANS[/** @type {keyof typeof MEANS} */ (step.outcome)] ?? ""));
  body.append(...blocks(step.blocks, `the result of call ${step.number}`));
  if (!runs && step.blocks.length === 0) body.append(make("p", "soft", "The tool returned nothing."));
  if (step.rewards) {
    const parts = Object.entries(step.rewards).map(([name, value]) => `${plain(name)} ${number(/** @type {number} */ (value))}`);
    body.append(make("p", "soft", `rewards: ${parts.join(", ")}`));
  }
  return make("article", `step${step.inherited ? " inherited" : ""}`, head, body);
}

/** The log of one session: the steps by number, of which the newest stay. */
export class Steps {
  /** @param {HTMLElement} into */
  constructor(into) {
    this.into = into;
    this.revision = 0;
    /** @type {Map<number, HTMLElement>} */
    this.shown = new Map();
    this.none = make("p", "soft", "No call yet. Each shows here as it is made.");
    this.before = make("p", { class: "soft", hidden: true });
    this.end = make("p", { class: "notice", hidden: true });
    into.append(this.none, this.before, this.end);
    this.finished = false;
  }

  /** @param {any} message */
  update(message) {
    this.revision = message.revision;
    const steps = [...message.steps].sort((one, other) => one.number - other.number);
    for (const step of steps) {
      const made = stepElement(step);
      const old = this.shown.get(step.number);
      if (old) old.replaceWith(made);
      else this.place(step.number, made);
      this.shown.set(step.number, made);
      this.finished = this.finished || step.finished;
    }
    while (this.shown.size > STEPS_MOST) {
      const oldest = Math.min(...this.shown.keys());
      this.shown.get(oldest)?.remove();
      this.shown.delete(oldest);
    }
    const first = this.shown.size ? Math.min(...this.shown.keys()) : message.earlier + message.dropped + 1;
    this.before.hidden = first <= 1;
    this.none.hidden = first > 1 || this.shown.size > 0 || !this.end.hidden;
    this.before.textContent = `${first - 1} earlier ${first === 2 ? "call is" : "calls are"} not shown: this page shows what happens while it is followed.`;
    if (message.closed) this.close(message.closed);
  }

  /** Whether no call runs. */
  get settled() {
    return !this.into.querySelector(".chip.running");
  }

  showLast() {
    this.shown.get(Math.max(...this.shown.keys()))?.scrollIntoView({ block: "nearest" });
  }

  /** @param {number} number @param {HTMLElement} made */
  place(number, made) {
    const later = [...this.shown.keys()].filter((other) => other > number);
    if (later.length) this.shown.get(Math.min(...later))?.before(made);
    else this.end.before(made);
  }

  /** @param {string} words */
  close(words) {
    this.end.hidden = false;
    this.none.hidden = true;
    this.end.textContent = words;
  }
}
