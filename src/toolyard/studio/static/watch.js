// Watches one session: its calls as they come.

import { follow, get, post } from "./api.js";
import { blocks, Steps, textPart } from "./steps.js";
import { duration, make, number, plain } from "./visible.js";

const place = /** @type {HTMLElement} */ (document.querySelector("#session"));
const api = place.dataset.api ?? "";
const log = /** @type {HTMLElement} */ (document.querySelector("#log"));
const status = /** @type {HTMLElement} */ (document.querySelector("#status"));
const facts = /** @type {HTMLElement} */ (document.querySelector("#facts"));
const end = /** @type {HTMLButtonElement} */ (document.querySelector("#end"));
const steps = new Steps(log);
let over = false;
let stop = () => {};

/** @param {any} session */
function tell(session) {
  const rows = [
    ["Environment", make("a", { href: session.environment_href }, session.environment)],
    ["Task", session.split === null ? "its client's own" : `${plain(session.split)} ${session.index}`],
    ["Wire", session.wire || "—"],
    ["State", session.finished ? "finished" : session.state],
    ["Age", duration(session.age)],
    ["Calls", String(session.calls)],
    ["Return", session.return === null ? "—" : number(session.return)],
  ];
  if (session.run) rows.splice(3, 0, ["Run", plain(session.run)]);
  facts.replaceChildren(...rows.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  const task = /** @type {HTMLElement} */ (document.querySelector("#task"));
  if (session.task) task.replaceChildren(textPart(session.task, "the task"));
}

end.disabled = false;

/** @param {string} words */
function finish(words) {
  over = true;
  stop();
  steps.close(words);
  status.hidden = true;
  end.disabled = true;
  document.body.dataset.over = "yes";
}

/** @param {string} [more] */
async function look(more = "") {
  try {
    tell(await get(`${api}${more}`));
    status.hidden = true;
  } catch (error) {
    const refused = /** @type {import("./api.js").Refused} */ (error);
    if (refused.status) finish(refused.message);
    else {
      status.textContent = "The server does not answer. This page tries again by itself.";
      status.hidden = false;
    }
  }
}

end.addEventListener("click", () => /** @type {HTMLDialogElement} */ (document.querySelector("#sure")).showModal());
document.querySelector("#sure")?.addEventListener("close", async (event) => {
  const dialog = /** @type {HTMLDialogElement} */ (event.target);
  if (dialog.returnValue !== "end") return;
  dialog.returnValue = "";
  try {
    await post(`${api}/close`);
  } catch (error) {
    status.textContent = /** @type {Error} */ (error).message;
    status.hidden = false;
  }
});

await look("?task");
stop = follow(
  () => `${api}/events?after=${steps.revision}`,
  (message) => {
    status.hidden = true;
    steps.update(message);
    const prompt = /** @type {HTMLElement} */ (document.querySelector("#prompt"));
    if (message.prompt && prompt.hidden) {
      prompt.hidden = false;
      prompt.append(...blocks(message.prompt, "the prompt"));
    }
    if (message.closed) finish(message.closed);
  },
  (connected) => {
    if (!connected) look();
  },
);
if (over) stop();
setInterval(() => {
  if (!over && !document.hidden) look();
}, 2000);
