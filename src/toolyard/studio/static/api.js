// Asks the server: JSON in and out, and streams that come back after a break.

const TOKEN = document.querySelector('meta[name="toolyard-token"]')?.getAttribute("content") ?? "";

/** What the server said, as a sentence. `status` is 0 if it did not answer. */
export class Refused extends Error {
  /** @param {string} words @param {number} status */
  constructor(words, status) {
    super(words);
    this.status = status;
  }
}

/** @param {string} address @param {RequestInit} [how] */
async function ask(address, how) {
  let answer;
  try {
    answer = await fetch(address, how);
  } catch {
    throw new Refused("The server does not answer. Does it still run?", 0);
  }
  if (answer.status === 401) {
    location.reload();
    throw new Refused("This server asks for its key again.", 401);
  }
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    const words = typeof said.error === "string" ? said.error : `The server answered ${answer.status}.`;
    throw new Refused(words, answer.status);
  }
  return answer;
}

/** @param {string} address */
export async function get(address) {
  return (await ask(address)).json();
}

/** @param {string} address */
export async function text(address) {
  return (await ask(address)).text();
}

/** @param {string} address @param {string} body JSON */
export async function post(address, body = "{}") {
  const headers = { "Content-Type": "application/json", "X-Toolyard-Token": TOKEN };
  return (await ask(address, { method: "POST", headers, body })).json();
}

/** Follow a stream while the page is in view. `address` is asked again after each break. Returns what ends it.
 * @param {() => string} address @param {(event: any) => void} heard @param {(connected: boolean) => void} changed */
export function follow(address, heard, changed = () => {}) {
  /** @type {EventSource|null} */
  let source = null;
  let ended = false;
  let pause = 500;
  /** @type {number|undefined} */
  let waiting;

  function open() {
    clearTimeout(waiting);
    if (ended || source || document.hidden) return;
    source = new EventSource(address());
    source.onmessage = (message) => {
      pause = 500;
      changed(true);
      heard(JSON.parse(message.data));
    };
    source.onerror = () => {
      shut();
      changed(false);
      waiting = setTimeout(open, pause);
      pause = Math.min(pause * 2, 10000);
    };
  }
  function shut() {
    source?.close();
    source = null;
  }
  function seen() {
    if (document.hidden) shut();
    else open();
  }
  document.addEventListener("visibilitychange", seen);
  open();
  return () => {
    ended = true;
    clearTimeout(waiting);
    document.removeEventListener("visibilitychange", seen);
    shut();
  };
}
