// Shows recorded steps: what the model wrote, the call with its arguments, what came back. Long texts come in parts.

import { get } from "./api.js";
import { duration, make, number, plain, visible } from "./visible.js";

const PARTS_MOST = 4;

const MEANS = {
  no_such_tool: "there was no tool of this name",
  bad_arguments: "the arguments did not fit the tool",
  tool_failed: "the tool refused, and said why",
  episode_finished: "nothing ran: the episode was over",
  tool_raised: "the tool broke: it raised an error that its author did not expect",
  timed_out: "the call took too long, and the server stopped it",
  lost: "the call was lost with its environment, or something that it needs; that is not the agent's fault",
  overloaded: "nothing ran: the server had too many calls already",
  cancelled: "the call was stopped before it ended",
};
const AGENTS = new Set(["no_such_tool", "bad_arguments", "tool_failed", "episode_finished"]);

/** @param {number} bytes */
export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  return bytes < 2 ** 20 ? `${Math.round(bytes / 1024)} KB` : `${(bytes / 2 ** 20).toFixed(1)} MB`;
}

/** A text that may be long: its beginning, and more of it on demand. A few parts stay in the page, however long it is.
 * @param {any} part @param {string} api of the episode @param {number} step @param {string} name @param {string} label */
export function longText(part, api, step, name, label) {
  const shown = make("pre", { class: "text", tabindex: part.end < part.of || part.text.length > 600 ? "0" : false, role: "group", "aria-label": label });
  /** @type {{element: HTMLElement, start: number, end: number}[]} */
  const parts = [];
  const add = (/** @type {any} */ found, before = false) => {
    const element = make("span", {}, visible(found.text));
    const one = { element, start: found.start, end: found.end };
    if (before) {
      parts.unshift(one);
      shown.prepend(element);
      if (parts.length > PARTS_MOST) parts.pop()?.element.remove();
    } else {
      parts.push(one);
      shown.append(element);
      if (parts.length > PARTS_MOST) parts.shift()?.element.remove();
    }
  };
  add(part);
  if (part.end >= part.of) return shown;
  const address = `${api}/text?step=${step}&name=${encodeURIComponent(name)}`;
  const said = make("span", { role: "status" });
  const fetchPart = async (/** @type {boolean} */ before) => {
    const chunk = 64 * 1024;
    const start = before ? Math.max(parts[0].start - chunk, 0) : /** @type {any} */ (parts.at(-1)).end;
    try {
      const found = await get(`${address}&start=${start}`);
      if (before && found.end > parts[0].start) found.text = new TextDecoder().decode(new TextEncoder().encode(found.text).slice(0, parts[0].start - found.start));
      if (before) found.end = parts[0].start;
      add(found, before);
      tell();
    } catch (error) {
      said.textContent = /** @type {Error} */ (error).message;
    }
  };
  const earlier = make("button", { type: "button", class: "plain", click: () => fetchPart(true) }, "Show what is before");
  const more = make("button", { type: "button", class: "plain", click: () => fetchPart(false) }, "Show more");
  const file = make("a", { href: `${api}/file?step=${step}&name=${encodeURIComponent(name)}`, download: "" }, "Save all of it");
  const tell = () => {
    const [first, last] = [parts[0].start, /** @type {any} */ (parts.at(-1)).end];
    said.textContent = first ? `${size(first)} to ${size(last)} of ${size(part.of)}` : `${size(last)} of ${size(part.of)}`;
    earlier.hidden = first === 0;
    more.hidden = last >= part.of;
  };
  tell();
  return make("div", "long", shown, make("p", "rest soft", said, " ", earlier, " ", more, " ", file));
}

/** @param {any[]} blocks @param {string} api @param {number} step @param {string} what */
export function blocksOf(blocks, api, step, what) {
  return blocks.map((block, place) => {
    if (block.type === "text" && !block.of) return make("p", "soft not-shown", "An empty text.");
    if (block.type === "text") return longText(block, api, step, `block.${place}`, what);
    if (!block.shown) return make("p", "soft not-shown", `An image of the type ${plain(block.kind) || "that it does not name"}, which is not shown: only PNG, JPEG, GIF and WebP are.`);
    const image = make("img", { src: `${api}/image?step=${step}&block=${place}`, alt: `Image ${place + 1} in ${what}`, loading: "lazy", decoding: "async" });
    image.addEventListener("error", () => image.replaceWith(make("p", "soft not-shown", `Something that calls itself ${plain(block.kind)} and is no such image.`)));
    return image;
  });
}

/** @param {string} text */
function pretty(text) {
  try {
    const value = JSON.parse(text);
    const back = JSON.stringify(value);
    return back.replace(/\s/g, "") === text.replace(/\s/g, "") ? JSON.stringify(value, null, 2) : text;
  } catch {
    return text;
  }
}

/** @param {any} step @param {string} api */
function argumentsOf(step, api) {
  if (!step.arguments.length) return null;
  const list = make("dl", "arguments");
  step.arguments.forEach((/** @type {any} */ one, /** @type {number} */ place) => {
    const shown = one.json && one.end >= one.of && one.of > 60 ? { ...one, text: pretty(one.text) } : one;
    const short = one.end >= one.of && shown.text.length < 100 && !shown.text.includes("\n");
    list.append(make("div", short ? "short" : "tall", make("dt", {}, make("bdi", {}, plain(one.name))), make("dd", {}, short ? make("code", {}, visible(shown.text)) : longText(shown, api, step.number, `argument.${place}`, `argument ${plain(one.name)}`))));
  });
  return list;
}

/** @param {any} step */
export function chipsOf(step) {
  const chips = make("span", "marks");
  if (step.outcome !== "ok") chips.append(make("span", { class: `chip ${AGENTS.has(step.outcome) ? "warn" : "bad"}`, title: MEANS[/** @type {keyof typeof MEANS} */ (step.outcome)] ?? "" }, plain(step.outcome).replaceAll("_", " ")));
  if (step.reward !== null) chips.append(make("span", `chip ${step.reward > 0 ? "good" : ""}`, `reward ${number(step.reward)}`));
  for (const [name, value] of Object.entries(rewardsOf(step))) chips.append(make("span", "chip named", make("bdi", {}, plain(name)), ` ${typeof value === "number" ? number(value) : plain(String(value))}`));
  if (step.finished) chips.append(make("span", "chip", "ends the episode"));
  return chips;
}

/** @param {any} step @returns {Record<string, unknown>} */
function rewardsOf(step) {
  try {
    const found = JSON.parse(step.rewards ?? "{}");
    return found && typeof found === "object" ? Object.fromEntries(Object.entries(found).slice(0, 20)) : {};
  } catch {
    return {};
  }
}

/** One step. @param {any} step @param {string} api @param {{play?: (step: number) => void, differs?: string}} about */
export function stepElement(step, api, about = {}) {
  const time = step.ran === null ? "" : duration(step.ran);
  const queued = step.queued > 0.0005 ? `, after ${duration(step.queued)} in the queue` : "";
  const name = `step-${step.number}`;
  const head = make("header", {},
    make("a", { class: "place", href: `#${name}`, "aria-label": `Step ${step.number}` }, step.number.toLocaleString("en")),
    make("h3", { class: "recorded-tool", id: `${name}-tool` }, make("bdi", {}, plain(step.tool))),
    chipsOf(step),
    about.differs ? make("span", "chip differs", about.differs) : null,
    make("span", { class: "took soft", title: new Date(step.at * 1000).toISOString() }, `${time}${queued}`),
    about.play ? make("button", { type: "button", class: "play-from", click: () => about.play?.(step.number), "aria-label": `Play from step ${step.number}` }, "Play from here") : null,
  );
  const body = make("div", "recorded-body");
  if (step.said) body.append(make("div", "wrote", make("span", "kind soft", "the model wrote"), longText(step.said, api, step.number, "said", "what the model wrote")));
  const given = argumentsOf(step, api);
  if (given) body.append(given);
  if (step.altered) body.append(make("p", "soft", "Something of this call was not recorded: a secret, or what its author leaves out."));
  if (step.outcome !== "ok" && MEANS[/** @type {keyof typeof MEANS} */ (step.outcome)]) body.append(make("p", "meaning soft", `${plain(step.outcome)}: ${MEANS[/** @type {keyof typeof MEANS} */ (step.outcome)]}.`));
  const result = make("div", "result", ...blocksOf(step.blocks, api, step.number, `the result of step ${step.number}`));
  if (!step.blocks.length) result.append(make("p", "soft", "It returned nothing."));
  if (step.more_blocks) result.append(make("p", "soft", `${step.more_blocks.toLocaleString("en")} more blocks are in the saved file.`));
  body.append(result);
  if (step.metadata) body.append(make("details", "meta", make("summary", {}, "Metadata"), longText(step.metadata.end >= step.metadata.of ? { ...step.metadata, text: pretty(step.metadata.text) } : step.metadata, api, step.number, "metadata", "metadata")));
  const failed = step.outcome !== "ok" ? ` failed ${AGENTS.has(step.outcome) ? "" : "ours"}` : "";
  return make("article", { class: `recorded${failed}${about.differs ? " unlike" : ""}`, id: about.differs === undefined ? name : false, "data-step": step.number, tabindex: "-1", "aria-labelledby": about.differs === undefined ? `${name}-tool` : false }, head, body);
}
