// The page of one episode: its steps in a window, jumps to what matters, forks and other episodes of its task.

import { get, text } from "./api.js";
import { offerPlay } from "./episode-play.js";
import { blocksOf, longText, stepElement } from "./episode-steps.js";
import { Window, fetching } from "./episode-window.js";
import { svg } from "./episodes-plots.js";
import { chipOf, taskOf, when } from "./episodes-rows.js";
import { duration, make, number, plain } from "./visible.js";

const byId = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
const place = byId("episode");
const id = place.dataset.id ?? "";
const api = `/studio/api/v1/episodes/${encodeURIComponent(id)}`;
const field = /** @type {HTMLInputElement} */ (byId("step"));
const words = /** @type {HTMLInputElement} */ (byId("words"));
const LOOK_AGAIN = 2000;

/** @type {any} */
let one;
let current = 1;
/** @type {Window} */
let steps;

/** @param {string} said */
function problem(said) {
  byId("problem").textContent = said;
  byId("problem").hidden = !said;
}

/** @param {string} said */
function say(said) {
  byId("said").textContent = said;
}

/** @param {string} name @param {string|Node|null} value */
function fact(name, value) {
  return value === null || value === "" ? [] : [make("span", "fact", make("span", "soft", `${name} `), value)];
}

function drawFacts() {
  byId("task-name").replaceChildren(make("bdi", {}, one.index !== null ? taskOf(one) : "a task of its client's own"));
  document.title = `${plain(one.environment)} ${one.index !== null ? taskOf(one) : ""} · Episode · Toolyard`;
  const rewards = Object.entries(one.rewards).map(([name, value]) => make("span", "chip named", make("bdi", {}, plain(name)), ` ${number(/** @type {number} */ (value))}`));
  const took = one.closed === null ? null : duration(one.closed - one.opened);
  byId("facts").replaceChildren(
    chipOf(one.outcome),
    ...(one.complete || one.outcome === "open" ? [] : [make("span", "chip warn", "not complete")]),
    make("span", "fact strong-fact", one.return === null ? "no return" : `return ${number(one.return)}`),
    ...rewards,
    ...fact("steps", one.steps.toLocaleString("en")),
    ...fact("opened", when(one.opened)),
    ...fact("took", took),
    ...fact("run", one.run ? make("a", { href: `/studio/episodes?run=${encodeURIComponent(one.run)}` }, make("bdi", {}, plain(one.run))) : null),
    ...fact("over", plain(one.wire)),
    ...Object.entries(one.labels).slice(0, 12).map(([name, value]) => make("span", "chip label", make("bdi", {}, `${plain(name)}=${plain(String(value)).slice(0, 60)}`))),
  );
}

function drawAbout() {
  const about = byId("about");
  const parts = [];
  if (one.parent) parts.push(make("p", {}, "It goes on from ", one.parent_step ? `step ${one.parent_step} of ` : "the beginning of ", make("a", { href: `/studio/episodes/${encodeURIComponent(one.parent)}${one.parent_step ? `#step-${one.parent_step}` : ""}` }, "another episode"), ", and has the steps since then. ", make("a", { href: `/studio/compare?a=${encodeURIComponent(one.parent)}&b=${encodeURIComponent(id)}` }, "Compare them")));
  if (one.prompt.length) parts.push(make("details", { class: "fold", open: true }, make("summary", {}, "Prompt"), ...blocksOf(one.prompt, api, 0, "the prompt")));
  parts.push(make("details", "fold", make("summary", {}, "Task"), longText(one.task, api, 0, "task", "the task")));
  const more = [["episode", id], ["session", one.session], ["Toolyard", one.toolyard], ["source", one.source], ["closed because", one.why]].filter(([, value]) => value);
  const list = make("dl", "record", ...more.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, make("code", {}, plain(String(value)))))));
  if (one.scores.length) list.append(make("div", {}, make("dt", {}, "scores since"), make("dd", {}, ...one.scores.map((/** @type {any} */ score) => make("p", {}, `${plain(score.name)} ${number(score.score)}, ${when(score.at)}`)))));
  parts.push(make("details", "fold", make("summary", {}, "Record"), list));
  about.replaceChildren(...parts);
}

function drawStrip() {
  byId("of").textContent = `of ${one.steps.toLocaleString("en")}`;
  const { pieces, failures, rewards } = one.strip;
  for (const [name, found, singular] of [["failures", failures, "failure"], ["rewards", rewards, "reward"]]) {
    const count = found.reduce((/** @type {number} */ sum, /** @type {any} */ piece) => sum + piece.n, 0);
    byId(name).textContent = `${count.toLocaleString("en")} ${count === 1 ? singular : name}`;
    for (const button of [byId(singular), byId(`${singular}-back`)]) /** @type {HTMLButtonElement} */ (button).disabled = count === 0;
  }
  const chart = svg("svg", { viewBox: `0 0 ${pieces} 16`, preserveAspectRatio: "none", class: "strip", role: "img", "aria-label": `Where it failed and was rewarded: ${byId("failures").textContent}, ${byId("rewards").textContent}` });
  chart.append(svg("rect", { x: 0, y: 0, width: pieces, height: 16, class: "strip-all" }));
  const width = Math.max(1, Math.min(pieces / Math.max(one.steps, 1), pieces / 20));
  for (const piece of rewards) chart.append(svg("rect", { x: piece.piece, y: 8, width, height: 8, class: "strip-reward" }));
  for (const piece of failures) chart.append(svg("rect", { x: piece.piece, y: 0, width, height: 8, class: "strip-failure" }));
  chart.append(svg("rect", { x: 0, y: 0, width: 1, height: 16, class: "strip-here", id: "here" }));
  chart.addEventListener("click", (event) => {
    const box = chart.getBoundingClientRect();
    steps.go(Math.ceil(((/** @type {MouseEvent} */ (event).clientX - box.left) / box.width) * one.steps));
  });
  byId("strip").replaceChildren(chart);
  byId("strip").hidden = one.steps < 10;
  drawHere();
}

function drawHere() {
  document.getElementById("here")?.setAttribute("x", String(Math.min(((current - 1) / Math.max(one.steps, 1)) * one.strip.pieces, one.strip.pieces - 1)));
}

/** @type {number|undefined} */
let writing;

/** @param {number} step */
function moved(step) {
  if (step === current) return;
  current = step;
  if (document.activeElement !== field) field.value = String(step);
  drawHere();
  clearTimeout(writing);
  writing = setTimeout(() => history.replaceState(history.state, "", step > 1 ? `#step-${step}` : location.pathname), 300);
}

/** @param {string} kind @param {boolean} back */
async function jump(kind, back) {
  const here = steps.here;
  let from = here;
  const asks = kind === "words" ? `words=${encodeURIComponent(words.value.trim())}` : `kind=${kind}`;
  if (kind === "words" && !words.value.trim()) {
    words.focus();
    return;
  }
  const what = kind === "words" ? `step with “${plain(words.value.trim())}”` : kind;
  try {
    for (;;) {
      const found = await get(`${api}/jump?${asks}&from=${from}${back ? "&back=1" : ""}`);
      if (found.step !== null) {
        say("");
        await steps.go(found.step);
        return;
      }
      if (!found.looked) break;
      from = found.looked;
      say(`Looked ${back ? "back" : "on"} to step ${from.toLocaleString("en")}…`);
    }
    say(back ? `There is no ${what} before step ${here.toLocaleString("en")}.` : `There is no ${what} after step ${here.toLocaleString("en")}.`);
  } catch (error) {
    say(/** @type {Error} */ (error).message);
  }
}

/** @param {number} by */
function walk(by) {
  const focused = /** @type {HTMLElement|null} */ (document.activeElement?.closest("[data-step]"));
  const from = focused ? Number(focused.dataset.step) : current - (by > 0 ? 1 : 0);
  steps.go(from + by);
}

/** @param {KeyboardEvent} event */
function key(event) {
  if (!steps || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target instanceof Element && event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") /** @type {HTMLElement} */ (event.target).blur();
    return;
  }
  const acts = /** @type {Record<string, () => void>} */ ({
    j: () => walk(1),
    k: () => walk(-1),
    f: () => jump("failure", false),
    F: () => jump("failure", true),
    r: () => jump("reward", false),
    R: () => jump("reward", true),
    n: () => jump("words", false),
    N: () => jump("words", true),
    "/": () => words.focus(),
    "?": () => /** @type {HTMLDialogElement} */ (byId("help")).showModal(),
    p: () => play(steps.here),
    Home: () => {
      steps.go(1).then(() => scrollTo(0, 0));
    },
    End: () => steps.go(one.steps),
  });
  const act = acts[event.key];
  if (!act || (event.target instanceof Element && event.target.closest("pre") && (event.key === "Home" || event.key === "End"))) return;
  event.preventDefault();
  act();
}

/** @param {number} step */
function play(step) {
  offerPlay(/** @type {HTMLDialogElement} */ (byId("play")), one, api, step, place.dataset.served === "1");
}

/** @param {any} other */
function line(other) {
  const href = `/studio/episodes/${encodeURIComponent(other.id)}`;
  return [make("a", { href }, when(other.opened)), " ", chipOf(other.outcome), " ", make("span", {}, other.return === null ? "no return" : `return ${number(other.return)}`), make("span", "soft", ` · ${other.steps.toLocaleString("en")} steps`), other.run ? make("span", "soft", " · ", make("bdi", {}, plain(other.run))) : null];
}

async function drawNear() {
  try {
    const { family, siblings } = await get(`${api}/near`);
    const near = byId("near");
    near.replaceChildren();
    if (family.length > 1) {
      const below = (/** @type {string|null} */ parent) => {
        const forks = family.filter((/** @type {any} */ other) => (parent === null ? other === family[0] : other.parent === parent && other !== family[0]));
        if (!forks.length) return null;
        return make("ul", "tree", ...forks.map((/** @type {any} */ other) => make("li", other.id === id ? { "aria-current": "true" } : {}, make("span", "branch", other.parent && parent !== null ? make("span", "soft", `from step ${other.parent_step ?? 0}: `) : null, ...(other.id === id ? [make("strong", {}, "this episode"), make("span", "soft", ` · ${other.return === null ? "no return" : `return ${number(other.return)}`}`)] : line(other)), other.id === id ? null : make("a", { class: "aside", href: `/studio/compare?a=${encodeURIComponent(other.id)}&b=${encodeURIComponent(id)}`, "aria-label": `Compare with the episode of ${when(other.opened)}` }, "compare")), below(other.id))));
      };
      near.append(make("h2", {}, "Forks"), /** @type {Node} */ (below(null)));
    }
    if (siblings.length) {
      near.append(make("h2", {}, "Other episodes of this task"), make("ul", "siblings", ...siblings.slice(0, 12).map((/** @type {any} */ other) => make("li", {}, ...line(other), make("a", { class: "aside", href: `/studio/compare?a=${encodeURIComponent(id)}&b=${encodeURIComponent(other.id)}`, "aria-label": `Compare with the episode of ${when(other.opened)}` }, "compare")))));
      near.append(make("p", {}, make("a", { href: `/studio/episodes?like=${encodeURIComponent(id)}` }, "All episodes of this task")));
      byId("siblings-link").hidden = false;
    }
  } catch (error) {
    problem(/** @type {Error} */ (error).message);
  }
}

async function lookAgain() {
  if (!document.hidden) {
    try {
      const now = await get(api);
      const grown = now.steps - one.steps;
      one = now;
      if (grown) {
        steps.grow(now.steps);
        drawStrip();
      }
      drawFacts();
      problem("");
    } catch (error) {
      problem(/** @type {Error} */ (error).message);
    }
  }
  if (one.outcome === "open") setTimeout(lookAgain, LOOK_AGAIN);
}

function wanted() {
  return Number(/^#step-(\d+)$/.exec(location.hash)?.[1] ?? 1);
}

async function begin() {
  try {
    one = await get(api);
  } catch (error) {
    problem(/** @type {Error} */ (error).message);
    byId("tools").hidden = true;
    return;
  }
  drawFacts();
  drawAbout();
  steps = new Window({ into: byId("timeline"), fetch: fetching(api), element: (step) => stepElement(step, api, { play }), moved, problem, total: one.steps });
  drawStrip();
  current = 0;
  if (wanted() > 1) await steps.go(wanted());
  else await steps.begin();
  drawNear();
  if (one.outcome === "open") setTimeout(lookAgain, LOOK_AGAIN);
}

/** @param {string} how */
async function copyAs(how) {
  const dialog = /** @type {HTMLDialogElement} */ (byId("copy"));
  const status = make("span", { role: "status", class: "soft" });
  try {
    const written = await text(`${api}/copy/${how}?scheme=${location.protocol.slice(0, -1)}`);
    const shown = make("textarea", { class: "json", readonly: true, spellcheck: "false", rows: "14", "aria-label": "The program" });
    /** @type {HTMLTextAreaElement} */ (shown).value = written;
    const copy = async () => {
      try {
        await navigator.clipboard.writeText(written);
        status.textContent = "Copied.";
      } catch {
        /** @type {HTMLTextAreaElement} */ (shown).select();
        status.textContent = "The browser does not let this page copy: press Ctrl + C.";
      }
    };
    dialog.replaceChildren(make("h2", {}, how === "python" ? "As Python" : "As curl"), shown, make("p", "acts", make("button", { type: "button", class: "primary", click: copy }, "Copy"), make("button", { type: "button", click: () => dialog.close() }, "Done"), status));
    dialog.showModal();
    await copy();
  } catch (error) {
    problem(/** @type {Error} */ (error).message);
  }
}

for (const button of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-copy]"))) button.addEventListener("click", () => copyAs(button.dataset.copy ?? ""));
for (const kind of ["failure", "reward"]) {
  byId(kind).addEventListener("click", () => jump(kind, false));
  byId(`${kind}-back`).addEventListener("click", () => jump(kind, true));
}
byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  jump("words", false);
});
byId("words-back").addEventListener("click", () => jump("words", true));
byId("keys").addEventListener("click", () => /** @type {HTMLDialogElement} */ (byId("help")).showModal());
field.addEventListener("keydown", (event) => {
  if (event.key === "Enter") steps.go(Number(field.value));
});
addEventListener("hashchange", () => steps?.go(wanted()));
document.addEventListener("keydown", key);
if (document.referrer.startsWith(`${location.origin}/studio/episodes?`)) /** @type {HTMLAnchorElement} */ (byId("back")).href = document.referrer;
history.scrollRestoration = "manual";
begin();
