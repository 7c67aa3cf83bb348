// The tasks of an environment: those in view are fetched, however many there are.

import { get, text as fetchText } from "./api.js";
import { make, visible } from "./visible.js";

const PAGE = 50;
const place = document.querySelector("#tasks");
if (place instanceof HTMLElement) {
  const base = place.dataset;
  const list = /** @type {HTMLElement} */ (document.querySelector("#list"));
  const told = /** @type {HTMLElement} */ (document.querySelector("#told"));
  const split = /** @type {HTMLSelectElement} */ (document.querySelector("#split"));
  const start = /** @type {HTMLInputElement} */ (document.querySelector("#start"));
  const previous = /** @type {HTMLButtonElement} */ (document.querySelector("#previous"));
  const next = /** @type {HTMLButtonElement} */ (document.querySelector("#next"));
  let at = 0;
  let count = 0;
  let asked = 0;

  /** @param {any} task */
  function row(task) {
    const where = `split=${encodeURIComponent(split.value)}&task=${task.index}`;
    const link = make("a", { href: `${base.play}?${where}` }, `Task ${task.index}`);
    const shown = make("code", "preview", visible(task.text));
    const made = make("li", {}, link, shown);
    if (task.length > task.text.length) {
      const more = make("button", { type: "button", class: "quiet" }, `All ${task.length.toLocaleString("en")} characters`);
      more.addEventListener("click", async () => {
        try {
          shown.replaceChildren(visible(await fetchText(task.href)));
          shown.classList.add("whole");
          more.remove();
        } catch (error) {
          told.textContent = /** @type {Error} */ (error).message;
        }
      });
      made.append(more);
    }
    return made;
  }

  async function look() {
    const mine = ++asked;
    try {
      const found = await get(`${base.api}/tasks?split=${encodeURIComponent(split.value)}&start=${at}&count=${PAGE}`);
      if (mine !== asked) return;
      count = found.total;
      at = found.start;
      list.replaceChildren(...found.tasks.map(row));
      const last = at + found.tasks.length - 1;
      told.textContent = count ? `${at.toLocaleString("en")} to ${last.toLocaleString("en")} of ${count.toLocaleString("en")}` : "This split has no tasks.";
    } catch (error) {
      if (mine !== asked) return;
      list.replaceChildren();
      told.textContent = /** @type {Error} */ (error).message;
    }
    start.value = String(at);
    previous.disabled = at === 0;
    next.disabled = at + PAGE >= count;
  }

  /** @param {number} to */
  function go(to) {
    at = Math.max(0, Math.min(to, Math.max(count - 1, 0)));
    look();
  }

  previous.addEventListener("click", () => go(at - PAGE));
  next.addEventListener("click", () => go(at + PAGE));
  start.addEventListener("change", () => go(/^\d{1,15}$/.test(start.value.trim()) ? Number(start.value) : at));
  split.addEventListener("change", () => {
    at = 0;
    count = Infinity;
    look();
  });
  await look();
}
