// Two episodes side by side: steps with the same place stand beside each other, and what differs is marked.

import { get } from "./api.js";
import { stepElement } from "./episode-steps.js";
import { Window, fetching } from "./episode-window.js";
import { chipOf, taskOf, when } from "./episodes-rows.js";
import { make, number, plain } from "./visible.js";

const byId = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
const place = byId("compare");
const [a, b] = [place.dataset.a ?? "", place.dataset.b ?? ""];
const ahead = Number(place.dataset.ahead);
/** What both have in common: steps before the one was forked from the other. */
const shared = Math.max(-ahead, 0);
const api = (/** @type {string} */ id) => `/studio/api/v1/episodes/${encodeURIComponent(id)}`;
const field = /** @type {HTMLInputElement} */ (byId("step"));
/** @type {Window} */
let steps;

/** @param {string} said */
function problem(said) {
  byId("problem").textContent = said;
  byId("problem").hidden = !said;
}

/** @param {any} one @param {string} name */
function head(one, name) {
  return make("section", { class: "one-of-two", "aria-label": name }, make("h2", {}, `${name}: `, make("a", { href: `/studio/episodes/${encodeURIComponent(one.id)}` }, make("bdi", {}, plain(one.environment)), " ", make("bdi", {}, taskOf(one)))), make("p", "outline", chipOf(one.outcome), make("span", "strong-fact", one.return === null ? "no return" : `return ${number(one.return)}`), make("span", "soft", `${one.steps.toLocaleString("en")} steps`), make("span", "soft", when(one.opened)), one.run ? make("bdi", "soft", plain(one.run)) : null));
}

/** In which ways two steps differ, in one word each. @param {any} one @param {any} other */
function unlike(one, other) {
  const found = [];
  if (one.tool !== other.tool) found.push("tool");
  if (one.digests[0] !== other.digests[0]) found.push("arguments");
  if (one.outcome !== other.outcome) found.push("outcome");
  if (one.digests[1] !== other.digests[1]) found.push("result");
  if (one.reward !== other.reward) found.push("reward");
  return found;
}

/** Both windows, joined by place: a place is a step of the first episode, or that of the second behind its last. */
function joined() {
  const [first, second] = [fetching(api(a)), fetching(api(b))];
  return async (/** @type {number} */ from, /** @type {number} */ limit, /** @type {boolean} */ back) => {
    const low = back ? Math.max(from - limit + 1, 1) : from;
    const count = back ? from - low + 1 : limit;
    const start = Math.max(low + ahead, 1);
    const many = low + ahead + count - start;
    const [left, right] = await Promise.all([all(first, low, count), many > 0 ? all(second, start, many) : []]);
    const byNumber = new Map(right.map((step) => [step.number - ahead, step]));
    const places = [];
    for (let number = low; number < low + count; number++) {
      const one = left.find((step) => step.number === number);
      const other = byNumber.get(number);
      if (one || other) places.push({ number, one, other });
    }
    return places;
  };
}

/** Large steps come fewer at once. @param {(first: number, limit: number, back: boolean) => Promise<any[]>} ask @param {number} first @param {number} count */
async function all(ask, first, count) {
  const found = [];
  while (found.length < count) {
    const more = await ask(first + found.length, count - found.length, false);
    if (!more.length) break;
    found.push(...more);
  }
  return found;
}

/** @param {any} pair */
function element({ number, one, other }) {
  const differs = one && other ? unlike(one, other) : [];
  const words = differs.length ? `differs: ${differs.join(", ")}` : "";
  const side = (/** @type {any} */ step, /** @type {string} */ id, /** @type {string} */ name) => (step
    ? stepElement(step, api(id), { differs: words }) : make("p", "absent", number <= shared ? "Before the fork." : `${name} has no such step.`));
  return make("div", { class: "pair-of-steps", "data-step": number, tabindex: "-1", role: "group", "aria-label": `Step ${number}${words ? `, ${words}` : ""}` }, side(one, a, "The first"), side(other, b, "The second"));
}

async function next(from = steps.here) {
  byId("said").textContent = "Comparing…";
  try {
    for (let after = from; ;) {
      const found = await get(`${api(a)}/difference?other=${encodeURIComponent(b)}&after=${after}&ahead=${ahead}`);
      if (found.step !== null) {
        byId("said").textContent = `${from === shared ? "They first differ" : "They differ"} at step ${found.step.toLocaleString("en")}.`;
        await steps.go(found.step, from > shared);
        return;
      }
      if (!found.looked) break;
      after = found.looked;
      byId("said").textContent = `The same up to step ${after.toLocaleString("en")}…`;
    }
    byId("said").textContent = from > shared ? `No difference after step ${from.toLocaleString("en")}.` : "They are the same, step by step.";
    if (from === shared) await steps.go(shared + 1, false);
  } catch (error) {
    problem(/** @type {Error} */ (error).message);
  }
}

async function begin() {
  try {
    const [one, other] = await Promise.all([get(api(a)), get(api(b))]);
    byId("heads").replaceChildren(head(one, "First"), head(other, "Second"));
    const total = Math.max(one.steps, other.steps - ahead);
    byId("of").textContent = `of ${total.toLocaleString("en")}`;
    steps = new Window({ into: byId("timeline"), fetch: joined(), element, moved: (step) => {
      if (document.activeElement !== field) field.value = String(step);
    }, problem, total });
    const wanted = Number(/^#step-(\d+)$/.exec(location.hash)?.[1] ?? 0);
    if (wanted) await steps.go(wanted);
    else await next(shared);
  } catch (error) {
    problem(/** @type {Error} */ (error).message);
    byId("tools").hidden = !steps;
  }
}

byId("difference").addEventListener("click", () => next());
byId("start").addEventListener("click", () => steps.go(1));
field.addEventListener("keydown", (event) => {
  if (event.key === "Enter") steps.go(Number(field.value));
});
document.addEventListener("keydown", (event) => {
  if (!steps || event.ctrlKey || event.metaKey || event.altKey || (event.target instanceof Element && event.target.closest("input, pre"))) return;
  const acts = /** @type {Record<string, () => void>} */ ({ j: () => steps.go(steps.here + 1), k: () => steps.go(steps.here - 1), d: () => next(), Home: () => steps.go(1), End: () => steps.go(steps.total) });
  if (!acts[event.key]) return;
  event.preventDefault();
  acts[event.key]();
});
history.scrollRestoration = "manual";
begin();
