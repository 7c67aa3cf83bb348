// Small plots over a list of episodes, each with the same in words and as a table.

import { duration, make, number, plain } from "./visible.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 360;
const HEIGHT = 150;
const LEFT = 38;
const BOTTOM = 22;
const TOP = 8;
const RIGHT = 10;

/** @param {string} tag @param {Record<string, string|number>} attributes @param {...(Node|string)} children */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/** @param {string[]} heads @param {string[][]} rows */
function asTable(heads, rows) {
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))));
  table.append(make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell, place) => make(place ? "td" : "th", place ? {} : { scope: "row" }, make("bdi", {}, cell)))))));
  return make("details", "as-table", make("summary", {}, "As a table"), make("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": "Table" }, table));
}

/** What is below the caption. A table that is open stays open. @param {HTMLElement} figure @param {...Node} children */
function fill(figure, ...children) {
  const caption = /** @type {HTMLElement} */ (figure.querySelector("figcaption"));
  const open = figure.querySelector("details")?.open;
  figure.replaceChildren(caption, ...children);
  const details = figure.querySelector("details");
  if (details && open) details.open = true;
}

/** @param {string} said */
function frame(said) {
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": said, class: "chart" });
}

/** Lines at round values. Returns where a value stands. @param {SVGElement} chart @param {number} low @param {number} high @param {(value: number) => string} words */
function scale(chart, low, high, words) {
  const rough = (high - low) / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 2.5, 5].find((one) => one * power >= rough) ?? 10) * power;
  const [first, last] = [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)];
  const place = (/** @type {number} */ value) => HEIGHT - BOTTOM - ((value / step - first) / (last - first)) * (HEIGHT - BOTTOM - TOP);
  for (let tick = first; tick <= last; tick++) {
    const value = tick * step;
    chart.append(svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: place(value), y2: place(value), class: tick === 0 ? "grid zero" : "grid" }));
    chart.append(svg("text", { x: LEFT - 6, y: place(value) + 3.5, "text-anchor": "end" }, words(value)));
  }
  return place;
}

/** @param {number} value */
function short(value) {
  if (Math.abs(value) >= 1e6) return `${number(Math.round(value / 1e5) / 10)}M`;
  if (Math.abs(value) >= 1e4) return `${Math.round(value / 1e3)}k`;
  return number(Number(value.toPrecision(3)));
}

/** @param {HTMLElement} figure @param {any} found @param {(least: number, most: number) => void} narrow */
export function drawHistogram(figure, found, narrow) {
  const all = found.scored + found.unscored;
  const said = found.scored
    ? `${found.scored.toLocaleString("en")} of ${all.toLocaleString("en")} episodes have a return; the mean is ${number(found.mean)}.`
    : "No episode here has a return: no reward was given.";
  if (!found.bars.length) {
    fill(figure, make("p", "soft said-plot", said));
    return;
  }
  const chart = frame(`Histogram of returns. ${said}`);
  const most = Math.max(...found.bars.map((/** @type {any} */ bar) => bar.n));
  const place = scale(chart, 0, most, short);
  const low = found.bars[0].from;
  const high = found.bars.at(-1).to;
  const room = WIDTH - LEFT - RIGHT;
  const few = !found.width;
  found.bars.forEach((/** @type {any} */ bar, /** @type {number} */ index) => {
    const slot = few ? room / found.bars.length : (room * found.width) / (high - low);
    const x = few ? LEFT + index * slot : LEFT + (room * (bar.from - low)) / (high - low);
    const width = few ? Math.min(slot * 0.7, 60) : Math.max(slot - 1, 1);
    const left = few ? x + (slot - width) / 2 : x;
    const range = few ? number(bar.from) : `${number(bar.from)} to ${number(bar.to)}`;
    const shape = svg("rect", { x: left, y: place(bar.n), width, height: Math.max(HEIGHT - BOTTOM - place(bar.n), 1), rx: 2, class: "bar-of-plot" }, svg("title", {}, `${range}: ${bar.n.toLocaleString("en")}`));
    shape.addEventListener("click", () => narrow(bar.from, bar.to));
    chart.append(shape);
    if (few && found.bars.length <= 8) chart.append(svg("text", { x: left + width / 2, y: HEIGHT - 7, "text-anchor": "middle" }, number(bar.from)));
  });
  if (!few || found.bars.length > 8) {
    chart.append(svg("text", { x: LEFT, y: HEIGHT - 7 }, number(low)), svg("text", { x: WIDTH - RIGHT, y: HEIGHT - 7, "text-anchor": "end" }, number(high)));
  }
  const rows = found.bars.map((/** @type {any} */ bar) => [few ? number(bar.from) : `${number(bar.from)} to ${number(bar.to)}`, bar.n.toLocaleString("en")]);
  fill(figure, make("p", "soft said-plot", said), chart, asTable(["Return", "Episodes"], rows));
}

/** @param {HTMLElement} figure @param {any} found @param {(run: string) => void} narrow */
export function drawCurves(figure, found, narrow) {
  const points = found.runs.flatMap((/** @type {any} */ run) => run.points);
  if (!points.length) {
    fill(figure, make("p", "soft said-plot", "There is no return to draw."));
    return;
  }
  let low = Math.min(0, ...points.map((/** @type {any} */ point) => point.mean));
  let high = Math.max(...points.map((/** @type {any} */ point) => point.mean));
  if (high - low < 1e-9) high = low + 1;
  const span = found.seconds;
  const trend = (/** @type {any} */ run) => `${plain(run.run) || "no run"}: from ${number(run.points[0].mean)} to ${number(run.points.at(-1).mean)}`;
  const chart = frame(`Mean return over time, by run. ${found.runs.map(trend).join("; ")}.`);
  const place = scale(chart, low, high, short);
  const across = (/** @type {any} */ point) => LEFT + Math.min(point.at / span, 1) * (WIDTH - LEFT - RIGHT);
  const legend = make("ul", "legend");
  found.runs.forEach((/** @type {any} */ run, /** @type {number} */ index) => {
    const line = run.points.map((/** @type {any} */ point) => `${across(point).toFixed(1)},${place(point.mean).toFixed(1)}`);
    if (line.length > 1) chart.append(svg("polyline", { points: line.join(" "), class: `curve curve-${index}` }, svg("title", {}, trend(run))));
    else chart.append(svg("circle", { cx: line[0].split(",")[0], cy: line[0].split(",")[1], r: 3, class: `dot curve-${index}` }, svg("title", {}, trend(run))));
    const name = plain(run.run) || "no run";
    legend.append(make("li", {}, make("button", { type: "button", class: "key", title: trend(run), click: () => narrow(run.run) }, make("span", { class: `swatch curve-${index}`, "aria-hidden": "true" }), make("bdi", {}, name), make("span", "soft", ` ${run.n.toLocaleString("en")}`))));
  });
  chart.append(svg("text", { x: LEFT, y: HEIGHT - 7 }, "0"), svg("text", { x: WIDTH - RIGHT, y: HEIGHT - 7, "text-anchor": "end" }, duration(span)));
  const rows = found.runs.flatMap((/** @type {any} */ run) => run.points.map((/** @type {any} */ point) => [plain(run.run) || "no run", duration(point.at), number(point.mean), String(point.n)]));
  fill(figure, chart, legend, asTable(["Run", "After", "Mean return", "Episodes"], rows));
}

/** @param {HTMLElement} figure @param {any[]} tasks @param {(values: Record<string, any>) => void} narrow @param {() => Promise<any[]>} all @param {boolean} several whether there are tasks of other environments, too */
export function drawTasks(figure, tasks, narrow, all, several) {
  if (!tasks.length) {
    fill(figure, make("p", "soft said-plot", "No task was scored."));
    return;
  }
  const body = make("tbody");
  const write = (/** @type {any[]} */ rows) => body.replaceChildren(...rows.map((task) => {
    const listed = task.task_index !== null;
    const name = listed ? [several ? plain(task.environment) : "", plain(task.split ?? ""), task.task_index].filter((part) => part !== "").join(" ") : plain(String(task.task ?? "").slice(0, 60));
    const chosen = listed ? { environment: task.environment, split: task.split, index: task.task_index } : { like: task.example };
    const bar = svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", class: "meter", "aria-hidden": "true" }, svg("rect", { x: 0, y: 0, width: 100, height: 8, class: "rest" }), svg("rect", { x: 0, y: 0, width: task.passed * 100, height: 8, class: "share" }));
    return make("tr", {}, make("th", { scope: "row" }, make("button", { type: "button", class: "key", click: () => narrow(chosen) }, make("bdi", {}, name))), make("td", "meter-cell", bar), make("td", "number", `${Math.round(task.passed * 100)}%`), make("td", "number soft", task.n.toLocaleString("en")), make("td", "number soft", task.mean.toFixed(2)));
  }));
  write(tasks);
  const heads = [["Task", ""], ["", ""], ["Passed", "number"], ["Tries", "number"], ["Mean", "number"]];
  const table = make("table", "by-task", make("thead", {}, make("tr", {}, ...heads.map(([head, kind]) => (head ? make("th", { scope: "col", class: kind }, head) : make("td"))))), body);
  const more = make("button", { type: "button", class: "quiet", click: async () => {
    try {
      write(await all());
      more.hidden = true;
    } catch (error) {
      more.textContent = /** @type {Error} */ (error).message;
    }
  } }, "Show more tasks");
  more.hidden = tasks.length < 12;
  fill(figure, make("div", { class: "scrolled", tabindex: "0", role: "group", "aria-label": "Tasks" }, table), more);
}
