// Small plots that move: the last five minutes, drawn as SVG.

import { make } from "./visible.js";

const SPANS = [60, 300];
const WIDTH = 600;
const HEIGHT = 110;
const NS = "http://www.w3.org/2000/svg";

/** @param {string} tag @param {Record<string, string|number>} attributes */
export function svg(tag, attributes) {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}

/** The next round number: 1, 2 or 5 times a power of ten.
 * @param {number} value */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 5, 10]) if (step * power >= value) return step * power;
  return 10 * power;
}

export class Plot {
  /** `series`: name, class of the line and how to read it from a sample. `write` turns a value into words.
   * @param {HTMLElement} into
   * @param {{name: string, kind: string, read: (sample: any) => number|null}[]} series
   * @param {(value: number) => string} write @param {number} [least] the least that the scale shows */
  constructor(into, series, write, least = 1) {
    this.series = series;
    this.write = write;
    this.least = least;
    this.top = make("span", "top");
    this.image = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": "No calls yet" });
    for (const at of [0, 0.5, 1]) {
      this.image.append(svg("line", { x1: 0, x2: WIDTH, y1: at * (HEIGHT - 2) + 1, y2: at * (HEIGHT - 2) + 1, class: "grid" }));
    }
    this.lines = series.map((one) => {
      const line = svg("path", { class: `line ${one.kind}`, d: "" });
      const area = svg("path", { class: `area ${one.kind}`, d: "" });
      this.image.append(area, line);
      return { line, area };
    });
    const keys = series.length > 1 ? make("p", "keys", ...series.map((one) => make("span", "key", make("span", `swatch ${one.kind}`), one.name))) : null;
    this.from = make("span", {}, "1 minute ago");
    into.append(make("div", "canvas", this.top, this.image), make("p", "axis", this.from, make("span", {}, "now")));
    if (keys) into.append(keys);
    this.title = into.querySelector("figcaption")?.textContent ?? "";
  }

  /** @param {any[]} samples */
  draw(samples) {
    if (!samples.length) return;
    const last = samples[samples.length - 1].second;
    const span = last - samples[0].second < SPANS[0] ? SPANS[0] : SPANS[1];
    this.from.textContent = span === SPANS[0] ? "1 minute ago" : "5 minutes ago";
    const values = this.series.map((one) => samples.map((sample) => one.read(sample)));
    const most = roundUp(Math.max(this.least, ...values.flat().map((value) => value ?? 0)));
    this.top.textContent = this.write(most);
    this.series.forEach((one, number) => {
      let path = "";
      let area = "";
      let open = -1;
      let x = 0;
      samples.forEach((sample, at) => {
        const value = values[number][at];
        const gap = value === null || (at > 0 && sample.second - samples[at - 1].second > 5);
        if (gap && open >= 0) {
          path += "h0"; // so that a single sample shows as a dot
          area += `L${x} ${HEIGHT}L${open} ${HEIGHT}Z`;
          open = -1;
        }
        if (value === null) return;
        x = Math.round((WIDTH * (sample.second - last + span) * 10) / span) / 10;
        const y = Math.round((HEIGHT - 1 - (HEIGHT - 2) * (value / most)) * 10) / 10;
        path += `${open < 0 ? "M" : "L"}${x} ${y}`;
        area += `${open < 0 ? "M" : "L"}${x} ${y}`;
        if (open < 0) open = x;
      });
      if (open >= 0) path += "h0";
      if (open >= 0) area += `L${x} ${HEIGHT}L${open} ${HEIGHT}Z`;
      this.lines[number].line.setAttribute("d", path);
      this.lines[number].area.setAttribute("d", area);
    });
    const now = this.series.map((one, number) => {
      const value = values[number][samples.length - 1];
      return `${one.name} ${value === null ? "unknown" : this.write(value)}`;
    });
    this.image.setAttribute("aria-label", `${this.title}, now: ${now.join(", ")}`);
  }
}
