// Play: opens sessions, calls tools by forms, forks, and shows what happened in each branch.

import { follow, get, post, text as fetchText } from "./api.js";
import { toolForm } from "./forms.js";
import { blocks, Steps } from "./steps.js";
import { make } from "./visible.js";

/** More forms than the first are laid out as they come into view, and more than the second would stop the page. */
const FORMS_MANY = 100;
const FORMS_MOST = 500;
const place = /** @type {HTMLElement} */ (document.querySelector("#play"));
const status = /** @type {HTMLElement} */ (document.querySelector("#status"));
const opener = /** @type {HTMLFormElement} */ (document.querySelector("#opener"));
const openerPlace = /** @type {HTMLElement} */ (opener.parentElement);
const environment = place.dataset.environment ?? "";

/** @type {Branch[]} */
const branches = [];
/** @type {Branch|null} */
let current = null;
let named = 0;

/** @param {string} words @param {boolean} [bad] */
function say(words, bad = false) {
  status.textContent = words;
  status.className = bad ? "problem" : "soft";
  status.hidden = !words;
}

/** @param {() => Promise<void>} act */
async function trying(act) {
  say("");
  try {
    await act();
  } catch (error) {
    say(/** @type {Error} */ (error).message, true);
  }
}

class Branch {
  /** @param {any} session @param {string} origin */
  constructor(session, origin) {
    this.session = session;
    this.name = `Branch ${++named}`;
    this.origin = origin;
    this.over = false;
    /** Whether the reader waits for the result of a call that he has made. */
    this.waits = false;
    this.log = make("section", { class: "log", role: "log", "aria-labelledby": "log-title" });
    this.steps = new Steps(this.log);
    this.prompt = make("div", "prompt", make("p", "soft", "Setting up…"));
    this.tools = make("div", "tools");
    this.fork = make("button", { type: "button", click: () => trying(() => forkOf(this)) }, "Fork");
    this.close = make("button", { type: "button", click: () => trying(() => closeOf(this)) }, "Close session");
    const python = make("button", { type: "button", class: "quiet", click: () => trying(() => copyOf(this, "python")) }, "Copy as Python");
    const curl = make("button", { type: "button", class: "quiet", click: () => trying(() => copyOf(this, "curl")) }, "Copy as curl");
    this.acts = make("div", "acts", this.fork, this.close, python, curl);
    this.view = make(
      "div",
      "played",
      make("div", "side", make("h2", { tabindex: "-1" }, "Tools"), make("p", "soft hint", "Ctrl + Enter in a field calls its tool."), this.tools),
      make("div", "story", make("h2", {}, "Prompt"), this.prompt, make("div", "story-head", make("h2", { id: "log-title" }, "Log"), this.acts), this.log),
    );
    this.stop = () => {};
  }

  async start() {
    this.listen();
    const [asked, tools] = await Promise.allSettled([get(`${this.session.api}/prompt`), get(`${this.session.api}/tools`)]);
    if (asked.status === "fulfilled") this.prompt.replaceChildren(...blocks(asked.value.blocks ?? [], "the prompt"));
    else this.prompt.replaceChildren(make("p", "problem", asked.reason.message));
    if (tools.status === "rejected") {
      this.tools.replaceChildren(make("p", "problem", tools.reason.message));
      return;
    }
    const call = (/** @type {string} */ name, /** @type {string} */ written) => this.call(name, written);
    const count = tools.value.tools.length;
    this.tools.classList.toggle("many", count > FORMS_MANY);
    this.tools.replaceChildren(...tools.value.tools.slice(0, FORMS_MOST).map((/** @type {any} */ tool) => toolForm(tool, call)));
    if (count === 0) this.tools.append(make("p", "soft", "This task has no tools."));
    if (count > FORMS_MOST) this.tools.append(make("p", "soft", `The first ${FORMS_MOST.toLocaleString("en")} of ${count.toLocaleString("en")} tools have forms.`));
  }

  listen() {
    this.stop();
    if (this.over) return;
    this.stop = follow(
      () => `${this.session.api}/events?after=${this.steps.revision}`,
      (message) => this.hear(message),
      (connected) => {
        if (!connected) this.check();
        else if (status.dataset.lost) {
          delete status.dataset.lost;
          say("");
        }
      },
    );
  }

  /** @param {any} message */
  hear(message) {
    const atEnd = window.innerHeight + window.scrollY > document.body.scrollHeight - 200;
    this.steps.update(message);
    if ((atEnd || this.waits) && current === this && message.steps.length) this.steps.showLast();
    if (message.steps.length && this.steps.settled) this.waits = false;
    if (message.closed) this.end();
    else if (this.steps.finished) say("The episode is over: the last call ended it. Close the session, and open another one.");
  }

  /** Find out why the stream broke. */
  async check() {
    try {
      await get(this.session.api);
    } catch (error) {
      const refused = /** @type {import("./api.js").Refused} */ (error);
      if (refused.status === 0) {
        status.dataset.lost = "yes";
        say("The server does not answer. This page tries again by itself.", true);
      } else if (!this.over) {
        delete status.dataset.lost;
        say("");
        this.steps.close(refused.message);
        this.end();
      }
    }
  }

  /** @param {string} name @param {string} written */
  async call(name, written) {
    await trying(async () => {
      this.waits = true;
      await post(`${this.session.api}/calls`, `{"tool":${JSON.stringify(name)},"arguments":${written}}`);
    });
  }

  /** @param {boolean} able */
  enable(able) {
    for (const control of [this.fork, this.close, ...this.tools.querySelectorAll("button, input, select, textarea")]) {
      control.toggleAttribute("disabled", !able);
    }
  }

  end() {
    this.over = true;
    this.stop();
    this.enable(false);
    if (branches.every((branch) => branch.over)) offer();
    else tabs();
  }
}

/** Offer to open a session again. */
function offer() {
  tabs();
  if (!opener.isConnected) openerPlace.append(opener);
}

/** The control that had the focus is gone or disabled: go on with another. @param {HTMLElement|null} next */
function goOn(next) {
  const focused = document.activeElement;
  if (!focused || focused === document.body || focused.matches(":disabled")) next?.focus({ preventScroll: true });
}

/** The branches to choose from, if there are several. */
function tabs() {
  const list = /** @type {HTMLElement} */ (document.querySelector("#branches"));
  list.hidden = branches.length < 2;
  list.replaceChildren(
    ...branches.map((branch) =>
      make(
        "button",
        { type: "button", class: "tab", "aria-pressed": String(branch === current), click: () => show(branch) },
        branch.name,
        make("span", "soft", `${branch.origin ? ` · ${branch.origin}` : ""}${branch.over ? " · closed" : ""}`),
      ),
    ),
  );
}

/** @param {Branch} branch */
function show(branch) {
  if (current !== branch) {
    current?.stop();
    current = branch;
    place.replaceChildren(branch.view);
    branch.listen();
  }
  say("");
  tabs();
}

/** @param {any} session @param {string} origin */
function add(session, origin) {
  const branch = new Branch(session, origin);
  branches.push(branch);
  opener.remove();
  show(branch);
  remember();
  goOn(branch.view.querySelector("h2"));
  return branch.start();
}

/** Keep the sessions in the address, so that a page that is loaded again goes on with them. */
function remember() {
  const ids = branches.filter((branch) => !branch.over).map((branch) => `session=${encodeURIComponent(branch.session.id)}`);
  history.replaceState(null, "", `${location.pathname}${ids.length ? `?${ids.join("&")}` : ""}`);
}

/** @param {Branch} branch */
async function forkOf(branch) {
  branch.enable(false); // what is typed now would be meant for the fork
  say("Forking…");
  try {
    const made = await post(`${branch.session.api}/fork`);
    const last = Math.max(0, ...branch.steps.shown.keys());
    await add(made, last ? `after call ${last}` : "from the start");
    say(`This is ${current?.name}, which goes on from where ${branch.name} is. Both can be played: choose one above.`);
  } finally {
    if (!branch.over) branch.enable(true);
  }
}

/** @param {Branch} branch */
async function closeOf(branch) {
  await post(`${branch.session.api}/close`);
  branch.steps.close("This session is closed.");
  branch.end();
  remember();
  goOn(opener.isConnected ? opener.querySelector("button") : document.querySelector("#branches button"));
}

/** @param {Branch} branch @param {string} how */
async function copyOf(branch, how) {
  const written = await fetchText(`${branch.session.api}/copy/${how}?scheme=${location.protocol.slice(0, -1)}`);
  const shown = make("pre", { class: "output", tabindex: "0" }, written);
  const said = make("span", { class: "soft", role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(written);
      said.textContent = "Copied.";
    } catch {
      getSelection()?.selectAllChildren(shown);
      said.textContent = "The browser does not let this page copy: press Ctrl + C.";
    }
  };
  const dialog = /** @type {HTMLDialogElement} */ (
    make("dialog", { "aria-label": `This episode as ${how}` }, shown)
  );
  dialog.append(
    make("p", "acts", make("button", { type: "button", class: "primary", click: copy }, "Copy"), make("button", { type: "button", click: () => dialog.close() }, "Done"), said),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  await copy();
}

/** @type {HTMLButtonElement} */ (opener.querySelector("button")).disabled = false;
opener.addEventListener("submit", (event) => {
  event.preventDefault();
  const button = /** @type {HTMLButtonElement} */ (opener.querySelector("button"));
  const split = /** @type {HTMLSelectElement|null} */ (opener.querySelector("select"));
  const index = /** @type {HTMLInputElement} */ (opener.querySelector("input"));
  const wanted = index.value.trim() || "0";
  if (!/^-?\d{1,15}$/.test(wanted)) {
    say(`The number of the task is ${JSON.stringify(wanted)}; it must be a whole number.`, true);
    index.focus();
    return;
  }
  button.disabled = true;
  trying(async () => {
    say("Opening…");
    const asked = { environment, index: Number(wanted), ...(split ? { split: split.value } : {}) };
    const session = await post("/studio/api/v1/sessions", JSON.stringify(asked));
    say("");
    await add(session, "");
  }).finally(() => {
    button.disabled = false;
  });
});

// A person who reads and writes uses the session, though no call reaches the server.
let pinged = Date.now();
for (const kind of ["keydown", "pointerdown", "scroll"]) {
  document.addEventListener(kind, () => {
    if (Date.now() - pinged < 20000) return;
    pinged = Date.now();
    for (const branch of branches) if (!branch.over) post(`${branch.session.api}/ping`).catch(() => branch.check());
  });
}

const earlier = new URLSearchParams(location.search).getAll("session");
for (const id of earlier) {
  await trying(async () => {
    const session = await get(`/studio/api/v1/sessions/${encodeURIComponent(id)}`);
    await add(session, session.forked_from ? "a fork" : "");
  });
}
