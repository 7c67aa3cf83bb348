// The page of episodes: filters and order live in the address, rows come as they scroll into view, new ones by themselves.

import { get } from "./api.js";
import { drawCurves, drawHistogram, drawTasks } from "./episodes-plots.js";
import { Rows } from "./episodes-rows.js";
import { make, plain } from "./visible.js";

const API = "/studio/api/v1/episodes";
const NAMES = ["environment", "split", "index", "run", "outcome", "wire", "least", "most", "label", "words", "like"];
const LOOK_AGAIN = 3000;
const PLOT_AGAIN = 15000;

const byId = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
const form = /** @type {HTMLFormElement} */ (byId("filters"));
const rows = new Rows({ into: byId("table"), end: byId("more"), arrived: byId("arrived"), compare: byId("compare"), sort, problem, noticed, counted });

let asked = 0;
let plotted = 0;
let plottedCount = -1;
let plotAgain = PLOT_AGAIN;
let count = -1;
/** @type {number|undefined} */
let typing;

/** The filter and the order, as the address has them. */
function query() {
  const wanted = new URLSearchParams();
  for (const [name, value] of new URLSearchParams(location.search)) {
    if (value && (NAMES.includes(name) || name === "by" || name === "rising")) wanted.set(name, value);
  }
  return wanted;
}

function filters() {
  const wanted = query();
  wanted.delete("by");
  wanted.delete("rising");
  return wanted;
}

/** Show another filter or order. @param {(wanted: URLSearchParams) => void} change */
function go(change, replace = false) {
  const wanted = query();
  const before = wanted.toString();
  change(wanted);
  const text = wanted.toString();
  if (text === before) return;
  rows.remember();
  const address = text ? `?${text}` : location.pathname;
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  show();
}

/** @param {string} by */
function sort(by) {
  go((wanted) => {
    const falling = (wanted.get("by") ?? "opened") === by && !wanted.has("rising");
    if (by === "opened") wanted.delete("by");
    else wanted.set("by", by);
    if (falling) wanted.set("rising", "1");
    else wanted.delete("rising");
  });
}

/** @param {Record<string, string|number|null|undefined>} values */
export function narrow(values) {
  go((wanted) => {
    for (const [name, value] of Object.entries(values)) {
      if (value === null || value === undefined || value === "") wanted.delete(name);
      else wanted.set(name, String(value));
    }
  });
  form.scrollIntoView({ block: "nearest" });
}

/** @param {string} words */
function problem(words) {
  byId("problem").textContent = words;
  byId("problem").hidden = !words;
}

/** @param {number} many */
function counted(many) {
  byId("count").textContent = many.toLocaleString("en");
}

/** What the first rows said about all. @param {{count: number, indexed: boolean}} found */
function noticed(found) {
  counted(found.count);
  const none = byId("none");
  none.hidden = found.count > 0;
  byId("table").hidden = byId("plots").hidden = found.count === 0;
  if (found.count === 0) {
    none.replaceChildren(
      ...(filters().size
        ? [make("p", {}, found.indexed ? "No episode matches these filters." : "No episode matches so far: the words are still being read."), make("p", {}, make("button", { type: "button", class: "quiet", click: clear }, "Clear filters"))]
        : [make("p", {}, "No episode yet."), make("p", {}, "Every session that opens on this server is recorded, and shows up here within a second.")]),
    );
  }
  if (!found.indexed) {
    byId("more").textContent = "Still reading what was recorded since the last search; this list is not whole yet.";
    setTimeout(() => rows.load(query(), true), 100);
  }
  if (count === 0 && found.count > 0) plot();
  if (count === -1) plottedCount = found.count;
  count = found.count;
}

function clear() {
  go((wanted) => NAMES.forEach((name) => wanted.delete(name)));
  /** @type {HTMLElement} */ (form.elements[0]).focus();
}

function show() {
  const wanted = query();
  for (const field of form.elements) {
    if ((field instanceof HTMLInputElement || field instanceof HTMLSelectElement) && field !== document.activeElement) {
      const value = wanted.get(field.name) ?? "";
      if (field instanceof HTMLSelectElement && value && ![...field.options].some((option) => option.value === value)) field.append(make("option", { value }, plain(value)));
      field.value = value;
    }
  }
  byId("clear").hidden = filters().size === 0;
  const like = wanted.get("like");
  byId("like").hidden = !like;
  if (like) byId("like").replaceChildren("Episodes of the same task as ", make("a", { href: `/studio/episodes/${encodeURIComponent(like)}` }, plain(like)), ". ", make("button", { type: "button", class: "quiet", click: () => narrow({ like: null }) }, "Show all tasks"));
  problem("");
  count = -1;
  rows.load(wanted);
  plot();
}

/** Whether the list may have tasks of several environments. */
function several() {
  const field = /** @type {HTMLSelectElement} */ (form.elements.namedItem("environment"));
  return !field.value && field.options.length > 2;
}

async function plot() {
  const number = ++plotted;
  const began = performance.now();
  try {
    const wanted = filters();
    const draw = async (/** @type {string} */ which, /** @type {(found: any) => void} */ drawn) => {
      const found = await get(`${API}/plots/${which}?${wanted}`);
      if (number === plotted) drawn(found);
    };
    await Promise.all([
      draw("histogram", (found) => drawHistogram(byId("histogram"), found, (least, most) => narrow({ least, most }))),
      draw("curves", (found) => drawCurves(byId("curves"), found, (run) => narrow({ run }))),
      offered.then(() => draw("tasks", (found) => drawTasks(byId("tasks"), found, narrow, () => get(`${API}/plots/tasks?${wanted}&limit=1000`), several()))),
    ]);
    plotAgain = Math.max(PLOT_AGAIN, 50 * (performance.now() - began));
  } catch (error) {
    problem(/** @type {Error} */ (error).message);
  }
}

async function offer() {
  try {
    const found = await get(`${API}/choices`);
    for (const [name, values] of [["environment", found.environments], ["split", found.splits], ["wire", found.wires]]) {
      const field = /** @type {HTMLSelectElement} */ (form.elements.namedItem(name));
      const known = [...field.options].map((option) => option.value);
      field.append(...values.filter((/** @type {string} */ value) => value && !known.includes(value)).map((/** @type {string} */ value) => make("option", { value }, plain(value))));
      field.value = query().get(name) ?? "";
    }
    byId("runs").replaceChildren(...found.runs.map((/** @type {string} */ run) => make("option", { value: run })));
  } catch (error) {
    problem(/** @type {Error} */ (error).message);
  }
}

function typed() {
  clearTimeout(typing);
  const given = new FormData(form);
  go((wanted) => {
    for (const [name, value] of given) {
      if (String(value).trim()) wanted.set(name, String(value).trim());
      else wanted.delete(name);
    }
  }, Date.now() - asked < 1500);
  asked = Date.now();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  typed();
});
form.addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = setTimeout(typed, event.target instanceof HTMLSelectElement ? 0 : 350);
});
byId("clear").addEventListener("click", clear);
addEventListener("popstate", show);
addEventListener("pagehide", () => rows.remember());
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const writes = event.target instanceof Element && event.target.closest("input, select, textarea");
  if (event.key === "/" && !writes) {
    event.preventDefault();
    /** @type {HTMLElement} */ (form.elements.namedItem("words")).focus();
  }
});

async function lookAgain() {
  let took = 0;
  if (!document.hidden) {
    const began = performance.now();
    await rows.refresh();
    took = performance.now() - began;
  }
  setTimeout(lookAgain, Math.max(LOOK_AGAIN, 20 * took));
}

async function plotLater() {
  if (!document.hidden && rows.latest !== plottedCount && rows.latest > 0) {
    plottedCount = rows.latest;
    await plot();
    await offer();
  }
  setTimeout(plotLater, plotAgain);
}

history.scrollRestoration = "manual";
const offered = offer();
show();
setTimeout(lookAgain, LOOK_AGAIN);
setTimeout(plotLater, PLOT_AGAIN);
