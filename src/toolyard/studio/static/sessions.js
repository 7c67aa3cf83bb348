// The list of live sessions.

import { get } from "./api.js";
import { duration, make, number, plain } from "./visible.js";

const body = /** @type {HTMLElement} */ (document.querySelector("#rows"));
const said = /** @type {HTMLElement} */ (document.querySelector("#said"));
const table = /** @type {HTMLElement} */ (document.querySelector("#table"));
const empty = /** @type {HTMLElement} */ (document.querySelector("#empty"));
const filter = /** @type {HTMLInputElement} */ (document.querySelector("#filter"));
/** @type {Map<string, HTMLElement[]>} */
const cells = new Map();
/** @type {any} */
let last = { count: 0, sessions: [], missing: 0 };

/** @param {any} row */
function contentOf(row) {
  const state = row.running.length ? row.running.map(plain).join(", ") : row.finished ? "finished" : row.state === "ready" ? "" : row.state;
  return [
    row.environment,
    row.split === null ? "own" : `${plain(row.split)} ${row.index}`,
    row.wire,
    plain(row.run),
    duration(row.age),
    String(row.calls),
    number(row.return),
    state,
  ];
}

function show() {
  const wanted = filter.value.trim().toLowerCase();
  const rows = last.sessions.filter((/** @type {any} */ row) => !wanted || [row.id, ...contentOf(row)].join(" ").toLowerCase().includes(wanted));
  const kept = new Set(rows.map((/** @type {any} */ row) => row.id));
  for (const [id, own] of cells) {
    if (!kept.has(id)) {
      own[0].parentElement?.remove();
      cells.delete(id);
    }
  }
  rows.forEach((/** @type {any} */ row, /** @type {number} */ at) => {
    let own = cells.get(row.id);
    const content = contentOf(row);
    if (!own) {
      const link = make("a", { href: row.href, class: "mono" }, plain(row.id.length > 14 ? `${row.id.slice(0, 12)}…` : row.id));
      link.setAttribute("title", plain(row.id));
      own = [make("th", { scope: "row" }, link, row.forked_from ? make("span", "chip fork", "fork") : null), ...content.map((_, column) => make("td", [4, 5, 6].includes(column) ? "number" : {}))];
      cells.set(row.id, own);
      const made = make("tr", {}, ...own);
      body.insertBefore(made, body.children[at] ?? null);
    }
    content.forEach((value, column) => {
      const cell = /** @type {HTMLElement[]} */ (own)[column + 1];
      if (cell.textContent !== value) cell.textContent = value;
    });
  });
  empty.hidden = last.count > 0;
  table.hidden = rows.length === 0;
  const more = last.count > last.sessions.length ? ` The newest ${last.sessions.length} are listed.` : "";
  const missing = last.missing ? ` ${last.missing} of the gateways did not answer.` : "";
  const few = wanted && last.count ? ` ${rows.length ? rows.length.toLocaleString("en") : "None"} of them ${rows.length === 1 ? "matches" : "match"} the filter.` : "";
  const count = `${last.count.toLocaleString("en")} ${last.count === 1 ? "session is" : "sessions are"} open.${more}${few}${missing}`;
  if (said.textContent !== count) said.textContent = count;
}

async function look() {
  if (document.hidden) return;
  try {
    last = await get("/studio/api/v1/sessions");
    show();
  } catch (error) {
    said.textContent = /** @type {Error} */ (error).message;
  }
}

filter.addEventListener("input", show);
await look();
setInterval(look, 2000);
document.addEventListener("visibilitychange", look);
