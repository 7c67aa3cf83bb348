// The overview: numbers and plots that move, and what is wrong.

import { follow } from "./api.js";
import { Plot } from "./plots.js";
import { duration, make, number, plain } from "./visible.js";

const KEPT = 300;
/** @type {any[]} */
let samples = [];

/** @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** @param {number} value */
const few = (value) => (value < 10 ? number(Math.round(value * 10) / 10) : Math.round(value).toLocaleString("en"));

const plots = [
  new Plot(element("plot-rate"), [{ name: "calls", kind: "good", read: (sample) => sample.calls }], few),
  new Plot(
    element("plot-time"),
    [
      { name: "95 % are faster than", kind: "faint", read: (sample) => sample.slow },
      { name: "average", kind: "good", read: (sample) => sample.mean },
    ],
    duration,
    0.001,
  ),
  new Plot(
    element("plot-failures"),
    [
      { name: "the agent's", kind: "agent", read: (sample) => sample.failures.agent },
      { name: "the tool's", kind: "author", read: (sample) => sample.failures.author },
      { name: "the server's", kind: "bad", read: (sample) => sample.failures.server },
    ],
    few,
  ),
  new Plot(element("plot-sessions"), [{ name: "sessions", kind: "good", read: (sample) => sample.sessions }], few),
];

/** @param {HTMLElement} into @param {string} text */
function write(into, text) {
  if (into.textContent !== text) into.textContent = text;
}

/** @param {any[]} troubles */
function tell(troubles) {
  const place = element("troubles");
  const said = JSON.stringify(troubles);
  if (place.dataset.said === said) return;
  place.dataset.said = said;
  if (!troubles.length) {
    place.replaceChildren(make("p", "fine", "Nothing is wrong."));
    return;
  }
  place.replaceChildren(...troubles.map((one) => make("div", "trouble", make("p", "words", plain(one.words)), make("p", "advice", plain(one.advice)))));
}

/** @param {any} message */
function hear(message) {
  const newer = new Map(samples.map((sample) => [sample.second, sample]));
  for (const sample of message.samples) newer.set(sample.second, sample);
  samples = [...newer.values()].sort((one, other) => one.second - other.second).slice(-KEPT);
  const recent = samples.slice(-10);
  const rate = recent.reduce((sum, sample) => sum + sample.calls, 0) / Math.max(recent.length, 1);
  const failed = recent.reduce((sum, { failures }) => sum + failures.agent + failures.author + failures.server, 0) / Math.max(recent.length, 1);
  const timed = recent.filter((sample) => sample.mean !== null);
  const mean = timed.reduce((sum, sample) => sum + sample.mean * sample.calls, 0) / (timed.reduce((sum, sample) => sum + sample.calls, 0) || 1);
  write(element("sessions"), message.now.sessions.toLocaleString("en"));
  write(element("running"), message.now.running.toLocaleString("en"));
  write(element("waiting"), message.now.waiting ? `, ${message.now.waiting.toLocaleString("en")} waiting` : "");
  write(element("rate"), few(rate));
  write(element("mean"), timed.length ? duration(mean) : "–");
  write(element("failed"), rate ? `${few((100 * failed) / rate)} %` : "–");
  for (const place of document.querySelectorAll("[data-environment]")) {
    const name = /** @type {HTMLElement} */ (place).dataset.environment ?? "";
    const open = message.sessions[name] ?? 0;
    write(/** @type {HTMLElement} */ (place), `${open.toLocaleString("en")} open, ${(message.calls[name] ?? 0).toLocaleString("en")} calls since the start`);
  }
  for (const plot of plots) plot.draw(samples);
  tell(message.troubles);
}

follow(
  () => "/studio/api/v1/pulse",
  hear,
  (connected) => {
    if (!connected) tell([{ words: "The server does not answer.", advice: "Does it still run? This page tries again by itself." }]);
  },
);
