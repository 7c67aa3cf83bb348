// "Play from here": the server makes the recorded calls again in a new session, and the reader goes on by hand.

import { make, plain, visible } from "./visible.js";

const TOKEN = document.querySelector('meta[name="toolyard-token"]')?.getAttribute("content") ?? "";

/** @param {HTMLDialogElement} dialog @param {any} one @param {string} api @param {number} step @param {boolean} served */
export function offerPlay(dialog, one, api, step, served) {
  const title = make("h2", { id: "play-title" }, `Play from step ${step.toLocaleString("en")}`);
  const close = () => make("button", { type: "button", class: "plain", click: () => dialog.close() }, "Close");
  if (!served) {
    dialog.replaceChildren(title, make("p", {}, "This server does not serve the environment ", make("strong", {}, make("bdi", {}, plain(one.environment))), ". Start it with that environment, and the same store, to play from here."), close());
    dialog.showModal();
    return;
  }
  const said = make("p", { role: "status" }, `A new session of this task is opened, the ${step === 1 ? "first call is" : `first ${step.toLocaleString("en")} calls are`} made again in it, and then it is yours. The record stays as it is.`);
  const bar = /** @type {HTMLProgressElement} */ (make("progress", { max: step, value: 0, hidden: true, "aria-label": "Calls made again" }));
  const buttons = make("p", "buttons");
  const stop = new AbortController();
  const start = make("button", { type: "button", class: "primary", click: async () => {
    buttons.replaceChildren(make("button", { type: "button", class: "plain", click: () => stop.abort() }, "Stop"));
    bar.hidden = false;
    const ended = await replay(api, step, stop.signal, (done) => {
      bar.value = done;
      said.textContent = `${done.toLocaleString("en")} of ${step.toLocaleString("en")} calls are made again.`;
    });
    bar.hidden = true;
    if (ended.session && !ended.differs) {
      said.textContent = "The session is yours.";
      location.assign(ended.href);
      return;
    }
    if (ended.session) {
      said.textContent = `Step ${ended.differs.step} came back otherwise than recorded: this environment, or what it depends on, has changed or is not the same every time. You can go on from what came back now.`;
      dialog.insertBefore(make("pre", { class: "text", tabindex: "0", role: "group", "aria-label": "The difference" }, visible(ended.differs.difference)), buttons);
      buttons.replaceChildren(make("a", { class: "button primary", href: ended.href }, "Go on anyway"), " ", close());
    } else {
      said.textContent = ended.said;
      buttons.replaceChildren(close());
    }
    /** @type {HTMLElement|null} */ (buttons.querySelector("a, button"))?.focus();
  } }, "Open the session");
  buttons.append(start, " ", close());
  dialog.replaceChildren(title, said, bar, buttons);
  dialog.addEventListener("close", () => stop.abort(), { once: true });
  dialog.showModal();
  start.focus();
}

/** @param {string} api @param {number} step @param {AbortSignal} signal @param {(done: number) => void} heard */
async function replay(api, step, signal, heard) {
  try {
    const answer = await fetch(`${api}/play`, { method: "POST", signal, headers: { "Content-Type": "application/json", "X-Toolyard-Token": TOKEN }, body: JSON.stringify({ step }) });
    if (!answer.ok || !answer.body) return { said: (await answer.json().catch(() => ({}))).error ?? `The server answered ${answer.status}.` };
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return { said: "The server stopped before the calls were made." };
      text += value;
      const lines = text.split("\n");
      text = lines.pop() ?? "";
      for (const line of lines.filter(Boolean)) {
        const found = JSON.parse(line);
        if (found.done !== undefined) heard(found.done);
        else return found;
      }
    }
  } catch (error) {
    return { said: signal.aborted ? "Stopped. The session is closed." : "The server does not answer. Does it still run?" };
  }
}
