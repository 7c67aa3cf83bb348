// A window on the steps of an episode: some are elements, the rest is fetched as the reader moves, and what he sees stays put.

import { get } from "./api.js";
import { make } from "./visible.js";

const AT_ONCE = 30;
const SHOWN_MOST = 90;
const NEAR = 900;

export class Window {
  /** @param {{into: HTMLElement, fetch: (first: number, limit: number, back: boolean) => Promise<any[]>, element: (step: any) => HTMLElement, moved: (step: number) => void, problem: (words: string) => void, total: number}} given */
  constructor(given) {
    this.given = given;
    this.total = given.total;
    /** @type {{number: number, element: HTMLElement}[]} */
    this.shown = [];
    this.turn = 0;
    this.busy = false;
    this.above = make("p", "soft edge");
    this.below = make("p", "soft edge");
    this.list = make("div", "steps");
    given.into.replaceChildren(this.above, this.list, this.below);
    let waits = false;
    addEventListener("scroll", () => {
      if (waits) return;
      waits = true;
      requestAnimationFrame(() => {
        waits = false;
        this.look();
      });
    }, { passive: true });
  }

  get first() {
    return this.shown[0]?.number ?? 0;
  }

  get last() {
    return this.shown.at(-1)?.number ?? 0;
  }

  /** How much of the view the bars above cover. */
  get covered() {
    const tools = /** @type {HTMLElement} */ (document.getElementById("tools"));
    const style = getComputedStyle(tools);
    const bar = document.querySelector("header.bar")?.getBoundingClientRect().height ?? 0;
    return style.position === "sticky" ? parseFloat(style.top) + tools.offsetHeight : bar;
  }

  /** Show a step, with its neighbours. @param {number} step @param {boolean} focus it @param {boolean} still do not scroll */
  async go(step, focus = true, still = false) {
    const wanted = Math.min(Math.max(Math.round(step) || 1, 1), Math.max(this.total, 1));
    if (!this.shown.some((one) => one.number === wanted)) {
      const turn = ++this.turn;
      this.given.into.setAttribute("aria-busy", "true");
      try {
        const [before, after] = await Promise.all([
          wanted > 1 ? this.given.fetch(wanted - 1, 6, true) : [],
          this.given.fetch(wanted, AT_ONCE, false),
        ]);
        if (turn !== this.turn) return;
        this.shown = [...before, ...after].map((one) => ({ number: one.number, element: this.given.element(one) }));
        this.list.replaceChildren(...this.shown.map((one) => one.element));
      } catch (error) {
        this.given.problem(/** @type {Error} */ (error).message);
      }
      if (turn === this.turn) this.given.into.removeAttribute("aria-busy");
    }
    this.mark();
    const found = this.shown.find((one) => one.number >= wanted);
    if (!found) return;
    const box = found.element.getBoundingClientRect();
    if (!still && (focus || box.top < this.covered || box.bottom > innerHeight)) this.align(found.element);
    if (focus) found.element.focus({ preventScroll: true });
    this.given.moved(found.number);
    this.look();
  }

  /** Show the first steps, and leave the page where it is. */
  async begin() {
    await this.go(1, false, true);
  }

  /** @param {HTMLElement} element */
  align(element) {
    scrollBy({ top: element.getBoundingClientRect().top - this.covered - 10, behavior: "instant" });
  }

  /** The step that the reader is at: the one that has the focus, if it is in view, or the first in view. */
  get here() {
    const focused = /** @type {HTMLElement|null} */ (document.activeElement?.closest("[data-step]"));
    const box = focused?.getBoundingClientRect();
    return box && box.top < innerHeight && box.bottom > this.covered ? Number(focused?.dataset.step) : this.current;
  }

  /** The step at the top of the view. */
  get current() {
    const edge = this.covered + 12;
    return this.shown.find((one) => one.element.getBoundingClientRect().bottom > edge)?.number ?? this.last;
  }

  /** Fetch what comes next where the reader is near an end. */
  look() {
    if (!this.shown.length) return;
    this.given.moved(this.current);
    if (this.busy) return;
    const box = this.list.getBoundingClientRect();
    if (box.bottom < innerHeight + NEAR && this.last < this.total) this.extend(false);
    else if (box.top > -NEAR && this.first > 1) this.extend(true);
  }

  /** @param {boolean} back */
  async extend(back) {
    this.busy = true;
    const turn = this.turn;
    try {
      const found = back ? await this.given.fetch(this.first - 1, AT_ONCE, true) : await this.given.fetch(this.last + 1, AT_ONCE, false);
      if (turn === this.turn && found.length) this.add(found, back);
      if (!found.length && !back) this.total = this.last;
    } catch (error) {
      this.given.problem(/** @type {Error} */ (error).message);
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
    this.busy = false;
    if (turn === this.turn) requestAnimationFrame(() => this.look());
  }

  /** @param {any[]} found @param {boolean} back */
  add(found, back) {
    const edge = this.covered;
    const anchor = this.shown.find((one) => one.element.getBoundingClientRect().bottom > edge)?.element ?? this.shown[0].element;
    const before = anchor.getBoundingClientRect().top;
    const made = found.map((one) => ({ number: one.number, element: this.given.element(one) }));
    if (back) {
      this.shown.unshift(...made);
      this.list.prepend(...made.map((one) => one.element));
      while (this.shown.length > SHOWN_MOST && this.shown.at(-1)?.element !== anchor) this.shown.pop()?.element.remove();
    } else {
      this.shown.push(...made);
      this.list.append(...made.map((one) => one.element));
      while (this.shown.length > SHOWN_MOST && this.shown[0].element !== anchor) this.shown.shift()?.element.remove();
    }
    const moved = anchor.getBoundingClientRect().top - before;
    if (moved) scrollBy({ top: moved, behavior: "instant" });
    this.mark();
  }

  mark() {
    this.above.textContent = this.first > 1 ? `${(this.first - 1).toLocaleString("en")} steps before` : "";
    const left = this.total - this.last;
    this.below.textContent = left > 0 ? `${left.toLocaleString("en")} steps after` : this.total ? "The last step." : "No step was recorded.";
  }

  /** The episode goes on. @param {number} total */
  grow(total) {
    const atEnd = this.last >= this.total;
    this.total = total;
    this.mark();
    if (atEnd) this.look();
  }
}

/** @param {string} api */
export function fetching(api) {
  return async (/** @type {number} */ first, /** @type {number} */ limit, /** @type {boolean} */ back) =>
    (await get(`${api}/steps?first=${first}&limit=${limit}${back ? "&back=1" : ""}`)).steps;
}
