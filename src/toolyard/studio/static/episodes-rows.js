// The table of episodes. Only rows in view are elements, only pages near them are in memory, and it never jumps by itself.

import { get } from "./api.js";
import { duration, make, number, plain } from "./visible.js";

const API = "/studio/api/v1/episodes";
const PAGE = 100;
const PAGES_MOST = 12;
const ABOVE = 12;
const REMEMBERED_MOST = 500;
const COLUMNS = [
  ["opened", "Opened"],
  ["", "Environment"],
  ["", "Task"],
  ["", "Run"],
  ["steps", "Steps"],
  ["return", "Return"],
  ["", "Ended"],
  ["duration", "Time"],
];
const REWARDS_MOST = 6;
const NUMERIC = new Set(["Steps", "Return", "Time"]);

/** @param {number} seconds */
export function when(seconds) {
  const date = new Date(seconds * 1000);
  const today = new Date().toDateString() === date.toDateString();
  const time = date.toLocaleTimeString("en-GB");
  return today ? time : `${date.toLocaleDateString("en-CA")} ${time.slice(0, 5)}`;
}

/** @param {any} row */
export function taskOf(row) {
  if (row.index !== null && row.index !== undefined) return `${row.split ?? ""} ${row.index}`.trim();
  return row.task ? plain(String(row.task).slice(0, 120)) : "–";
}

/** @param {string} outcome */
export function chipOf(outcome) {
  const kind = { finished: "good", open: "running", failed: "bad", lost: "bad" }[outcome] ?? "";
  return make("span", `chip ${kind}`, plain(outcome));
}

/**
 * @typedef {{after: string, rows: any[]|null, size: number, asked: boolean}} Part
 */

export class Rows {
  /** @param {{into: HTMLElement, end: HTMLElement, arrived: HTMLElement, compare: HTMLElement, sort: (by: string) => void, problem: (words: string) => void, noticed: (found: any) => void, counted: (count: number) => void}} given */
  constructor(given) {
    Object.assign(this, given);
    this.given = given;
    this.count = this.latest = 0;
    this.query = new URLSearchParams();
    /** @type {Part[]} */
    this.parts = [];
    this.whole = false;
    this.turn = 0;
    /** @type {string[]} */
    this.rewards = [];
    /** @type {Set<string>} */
    this.chosen = new Set();
    /** @type {Map<string, HTMLElement>} */
    this.made = new Map();
    this.height = 40;
    this.table = make("table", { class: "rows", "aria-label": "Episodes" });
    this.head = make("thead");
    this.body = make("tbody");
    this.above = make("tr", { "aria-hidden": "true", class: "spacer" }, make("td"));
    this.below = make("tr", { "aria-hidden": "true", class: "spacer" }, make("td"));
    this.table.append(this.head, this.body);
    this.body.append(this.above, this.below);
    given.into.append(this.table);
    let drawing = false;
    const soon = () => {
      if (drawing) return;
      drawing = true;
      requestAnimationFrame(() => {
        drawing = false;
        this.draw();
      });
    };
    addEventListener("scroll", soon, { passive: true });
    addEventListener("resize", soon);
    given.into.addEventListener("keydown", (event) => this.key(event));
    given.into.addEventListener("click", (event) => this.clicked(event));
  }

  /** Start anew with another filter or order. @param {URLSearchParams} query */
  async load(query, again = false) {
    const turn = ++this.turn;
    this.query = new URLSearchParams(query);
    const back = again ? null : history.state;
    const limit = Math.min(Math.max(back?.rows ?? PAGE, PAGE), REMEMBERED_MOST);
    this.given.into.setAttribute("aria-busy", "true");
    try {
      const found = await get(`${API}?${this.query}&limit=${limit}`);
      if (turn !== this.turn) return;
      this.begin(found, limit);
      if (!again && back?.scroll) scrollTo(0, back.scroll);
      this.given.problem("");
      this.given.noticed(found);
    } catch (error) {
      if (turn === this.turn) this.given.problem(/** @type {Error} */ (error).message);
    }
    if (turn === this.turn) this.given.into.removeAttribute("aria-busy");
  }

  /** @param {any} found @param {number} limit */
  begin(found, limit) {
    this.count = this.latest = found.count;
    this.parts = [];
    this.made.clear();
    for (let at = 0; at < found.rows.length; at += PAGE) {
      const rows = found.rows.slice(at, at + PAGE);
      this.parts.push({ after: at ? found.rows[at - 1].place : "", rows, size: rows.length, asked: false });
    }
    this.whole = found.rows.length < limit;
    this.rewards = [];
    this.learn(found.rows);
    this.arrive(0);
    this.drawHead();
    this.draw(true);
  }

  /** Keep in the history where the reader is, for when he comes back. */
  remember() {
    history.replaceState({ scroll: scrollY, rows: this.loaded }, "");
  }

  get loaded() {
    return this.parts.reduce((sum, part) => sum + part.size, 0);
  }

  /** Named rewards become columns as they turn up. @param {any[]} rows */
  learn(rows) {
    const before = this.rewards.length;
    for (const row of rows) {
      for (const name of Object.keys(row.rewards)) {
        if (!this.rewards.includes(name) && this.rewards.length < REWARDS_MOST) this.rewards.push(name);
      }
    }
    return this.rewards.length !== before;
  }

  drawHead() {
    const by = this.query.get("by") ?? "opened";
    const rising = this.query.has("rising");
    const cells = [make("th", { class: "choose" }, make("span", "unseen", "Compare"))];
    for (const [name, title] of COLUMNS) {
      const attributes = { scope: "col", class: `${NUMERIC.has(title) ? "number" : ""} column-${title.toLowerCase()}` };
      if (!name) {
        cells.push(make("th", attributes, title));
      } else {
        const sorted = by === name;
        const arrow = make("span", { "aria-hidden": "true", class: "arrow" }, sorted ? (rising ? "↑" : "↓") : "");
        const button = make("button", { type: "button", class: "sort", click: () => this.given.sort(name) }, title, arrow);
        cells.push(make("th", { ...attributes, "aria-sort": sorted ? (rising ? "ascending" : "descending") : "none" }, button));
      }
      if (title === "Return") cells.push(...this.rewards.map((reward) => make("th", { scope: "col", class: "number named" }, make("bdi", {}, plain(reward)))));
    }
    const focus = this.head.querySelector("button:focus")?.textContent;
    this.head.replaceChildren(make("tr", {}, ...cells));
    if (focus) [...this.head.querySelectorAll("button")].find((one) => one.textContent?.slice(0, 4) === focus.slice(0, 4))?.focus();
    this.table.setAttribute("aria-colcount", String(cells.length));
    for (const spacer of [this.above, this.below]) spacer.firstElementChild?.setAttribute("colspan", String(cells.length));
  }

  /** Show the rows in view, and ask for what is missing. */
  draw(anew = false) {
    const total = this.loaded;
    const top = this.body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / this.height) - ABOVE);
    const last = Math.min(total, Math.ceil((innerHeight - top) / this.height) + ABOVE);
    /** @type {any[]} */
    const wanted = [];
    let at = 0;
    this.parts.forEach((part, place) => {
      if (at + part.size > first && at < last) {
        if (part.rows) {
          for (let index = Math.max(first - at, 0); index < Math.min(last - at, part.size); index++) wanted.push([at + index, part.rows[index]]);
        } else this.fetch(place);
      }
      at += part.size;
    });
    this.place(wanted, total, anew);
    if (!this.whole && last >= total - PAGE / 2 && total > 0) this.fetch(this.parts.length);
    this.forget(first, last);
    this.given.end.textContent = this.whole || !total ? "" : `${total.toLocaleString("en")} of ${this.count.toLocaleString("en")} loaded; more come as you scroll.`;
  }

  /** @param {any[]} wanted @param {number} total @param {boolean} anew */
  place(wanted, total, anew) {
    const start = wanted.length ? wanted[0][0] : 0;
    /** @type {HTMLElement} */ (this.above.firstElementChild).style.height = `${start * this.height}px`;
    /** @type {HTMLElement} */ (this.below.firstElementChild).style.height = `${Math.max(total - start - wanted.length, 0) * this.height}px`;
    this.above.hidden = start === 0;
    this.below.hidden = start + wanted.length >= total;
    const focused = document.activeElement?.closest("tr");
    const kept = new Map();
    const elements = wanted.map(([index, row]) => {
      const element = (!anew && this.made.get(row.id)) || this.element(row);
      element.setAttribute("aria-rowindex", String(index + 2));
      kept.set(row.id, element);
      return element;
    });
    for (const [id, element] of this.made) if (kept.get(id) !== element && element !== focused) element.remove();
    let before = this.above;
    for (const element of elements) {
      if (before.nextElementSibling !== element) before.after(element);
      before = element;
    }
    for (let after = before.nextElementSibling; after && after !== this.below; after = before.nextElementSibling) after.remove();
    this.made = kept;
    this.table.setAttribute("aria-rowcount", String(this.count + 1));
    if (elements.length > 1 && anew) {
      const measured = elements[0].getBoundingClientRect().height;
      if (measured > 10) this.height = measured;
    }
  }

  /** @param {any} row */
  element(row) {
    const href = `/studio/episodes/${encodeURIComponent(row.id)}`;
    const took = row.closed === null ? null : row.closed - row.opened;
    const box = make("input", { type: "checkbox", "aria-label": `Compare the episode of ${when(row.opened)}`, value: row.id });
    /** @type {HTMLInputElement} */ (box).checked = this.chosen.has(row.id);
    const cells = {
      Opened: make("a", { href, class: "open" }, when(row.opened)),
      Environment: make("bdi", {}, plain(row.environment)),
      Task: make("bdi", { title: taskOf(row) }, taskOf(row)),
      Run: make("bdi", { title: plain(row.run) }, plain(row.run)),
      Steps: row.steps.toLocaleString("en"),
      Return: row.return === null ? make("span", { class: "soft", title: "no reward was given" }, "–") : number(row.return),
      Ended: make("span", {}, chipOf(row.outcome), row.parent ? make("span", { class: "chip fork", title: "it goes on from a step of another episode" }, "fork") : null, row.complete || row.outcome === "open" ? null : make("span", { class: "chip warn", title: "not every step could be kept" }, "partial")),
      Time: took === null ? "" : duration(took),
    };
    const made = make("tr", { "data-id": row.id }, make("td", "choose", box));
    for (const [, title] of COLUMNS) {
      made.append(make("td", `${NUMERIC.has(title) ? "number" : ""} column-${title.toLowerCase()}`, cells[/** @type {keyof typeof cells} */ (title)]));
      if (title === "Return") for (const name of this.rewards) made.append(make("td", { class: "number named", "data-name": plain(name) }, number(row.rewards[name])));
    }
    return made;
  }

  /** @param {number} place @returns {Promise<void>} */
  async fetch(place) {
    const known = this.parts[place];
    const last = this.parts[place - 1];
    if (known ? known.asked : this.asking) return;
    const after = known ? known.after : last?.rows?.at(-1)?.place;
    if (after === undefined) return this.fetch(place - 1);
    if (known) known.asked = true;
    else this.asking = true;
    const turn = this.turn;
    try {
      const found = await get(`${API}?${this.query}&limit=${known?.size || PAGE}${after ? `&after=${encodeURIComponent(after)}` : ""}`);
      if (turn === this.turn) {
        if (known) known.rows = found.rows.concat(Array(Math.max(known.size - found.rows.length, 0)).fill(found.rows.at(-1))).slice(0, known.size);
        else {
          if (found.rows.length) this.parts.push({ after, rows: found.rows, size: found.rows.length, asked: false });
          this.whole = found.rows.length < PAGE;
        }
        if (this.learn(found.rows)) this.drawHead();
        this.draw();
      }
    } catch (error) {
      this.given.problem(/** @type {Error} */ (error).message);
    }
    if (known) known.asked = false;
    else this.asking = false;
  }

  /** Give up pages far from what is in view. They are asked for again. @param {number} first @param {number} last */
  forget(first, last) {
    let kept = this.parts.filter((part) => part.rows).length;
    let at = 0;
    for (const [place, part] of this.parts.entries()) {
      const far = at > last + 3 * PAGE || at + part.size < first - 3 * PAGE;
      if (kept > PAGES_MOST && far && part.rows && place < this.parts.length - 1) {
        part.rows = null;
        kept--;
      }
      at += part.size;
    }
  }

  /** Look what has changed. Rows stay where the reader sees them: new ones wait until he asks, or looks at the top. */
  async refresh() {
    const turn = this.turn;
    const first = this.parts[0];
    try {
      const found = await get(`${API}?${this.query}&limit=${PAGE}`);
      if (turn !== this.turn) return;
      this.given.problem("");
      const known = new Set((first?.rows ?? []).map((row) => row.id));
      const fresh = found.rows.filter((/** @type {any} */ row) => !known.has(row.id)).length;
      const grown = found.count - this.count;
      if (!this.loaded || (fresh && this.loaded <= PAGE * 2 && this.isAtTop())) {
        if (found.rows.length || this.loaded) this.begin(found, PAGE);
        this.given.noticed(found);
        return;
      }
      this.latest = found.count;
      this.given.counted(found.count);
      if (fresh || grown > 0) this.arrive(Math.max(grown, Math.min(fresh, PAGE)));
      await this.update(turn, new Map(found.rows.map((/** @type {any} */ row) => [row.id, row])));
    } catch (error) {
      if (turn === this.turn) this.given.problem(/** @type {Error} */ (error).message);
    }
  }

  /** Whether nobody would notice that rows move down: the top is in view, and neither pointer nor focus is among them. */
  isAtTop() {
    return this.body.getBoundingClientRect().top > 0 && !this.body.matches(":hover") && !this.body.contains(document.activeElement);
  }

  /** Rows in view of episodes that were open. @param {number} turn @param {Map<string, any>} known */
  async update(turn, known) {
    const open = [];
    for (const part of this.parts) for (const row of part.rows ?? []) if (row.outcome === "open" && this.made.has(row.id)) open.push(row.id);
    const missing = open.filter((id) => !known.has(id)).slice(0, 50);
    if (missing.length) for (const row of (await get(`${API}/named?ids=${missing.join(",")}`)).rows) known.set(row.id, row);
    if (turn !== this.turn) return;
    for (const part of this.parts) {
      part.rows?.forEach((row, index) => {
        const now = known.get(row.id);
        if (!now || (now.outcome === row.outcome && now.steps === row.steps && now.return === row.return)) return;
        if (part.rows) part.rows[index] = { ...row, ...now, place: row.place };
        if (this.learn([now])) this.drawHead();
        const old = this.made.get(row.id);
        if (old && !old.contains(document.activeElement)) {
          const made = this.element(now);
          old.replaceWith(made);
          this.made.set(row.id, made);
        }
      });
    }
  }

  /** @param {number} fresh */
  arrive(fresh) {
    if (fresh <= 0) {
      this.given.arrived.replaceChildren();
      return;
    }
    const words = `${fresh.toLocaleString("en")}${fresh >= PAGE ? " or more" : ""} new ${fresh === 1 ? "episode" : "episodes"}`;
    const button = this.given.arrived.querySelector("button") ?? make("button", { type: "button", class: "pill", click: () => {
      scrollTo({ top: 0 });
      this.load(this.query, true);
    } });
    if (button.textContent !== `${words}: show`) button.textContent = `${words}: show`;
    if (!button.isConnected) this.given.arrived.replaceChildren(button);
  }

  /** @param {Event} event */
  clicked(event) {
    const target = /** @type {Element} */ (event.target);
    if (target instanceof HTMLInputElement) {
      if (target.checked) this.chosen.add(target.value);
      else this.chosen.delete(target.value);
      this.drawChosen();
      return;
    }
    if (target.closest("a, button, td.choose") || String(getSelection())) return;
    /** @type {HTMLElement|null|undefined} */ (target.closest("tr")?.querySelector("a.open"))?.click();
  }

  drawChosen() {
    const bar = this.given.compare;
    const ids = [...this.chosen];
    bar.hidden = !ids.length;
    const clear = make("button", { type: "button", class: "quiet", click: () => {
      this.chosen.clear();
      for (const box of this.body.querySelectorAll("input")) box.checked = false;
      this.drawChosen();
    } }, "Clear");
    const said = ids.length === 2 ? make("a", { class: "button", href: `/studio/compare?a=${encodeURIComponent(ids[0])}&b=${encodeURIComponent(ids[1])}` }, "Compare these two") : make("span", {}, ids.length === 1 ? "Choose one more episode to compare with." : `${ids.length} are chosen; two can be compared.`);
    bar.replaceChildren(said, " ", clear);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const down = event.key === "j" || event.key === "ArrowDown";
    const up = event.key === "k" || event.key === "ArrowUp";
    if (!down && !up) return;
    const row = /** @type {Element} */ (event.target).closest("tr");
    let next = row && (down ? row.nextElementSibling : row.previousElementSibling);
    if (row?.parentElement === this.head) next = this.body.querySelector("tr[data-id]");
    const link = /** @type {HTMLElement|null|undefined} */ (next?.querySelector("a.open"));
    if (!link) return;
    event.preventDefault();
    link.focus({ preventScroll: true });
    link.closest("tr")?.scrollIntoView({ block: "nearest" });
  }
}
