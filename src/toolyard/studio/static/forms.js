// Makes a form from a tool's JSON schema, and reads the arguments from it as JSON text.

import { make, plain, visible } from "./visible.js";

/** More fields, or choices in one of them, would stop the page: they are written as JSON. */
const FIELDS_MOST = 200;
const CHOICES_MOST = 1000;
const SHOWN_MOST = 4000;
const NAMED_MOST = 8;
const DEPTH_MOST = 3;
let made = 0;

/** @param {string} text @param {number} [most] */
function cut(text, most = SHOWN_MOST) {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

/** The one schema that is meant: references followed, and `| None` taken away.
 * @param {any} schema @param {any} root @returns {{schema: any, nullable: boolean}} */
function meant(schema, root, depth = 0) {
  let nullable = false;
  let found = schema && typeof schema === "object" ? schema : {};
  if (typeof found.$ref === "string" && found.$ref.startsWith("#/") && depth < 8) {
    const target = found.$ref.slice(2).split("/").reduce((/** @type {any} */ at, /** @type {string} */ step) => at?.[step], root);
    const inner = meant(target, root, depth + 1);
    return { schema: { ...inner.schema, ...without(found, "$ref") }, nullable: inner.nullable };
  }
  for (const word of ["anyOf", "oneOf"]) {
    if (!Array.isArray(found[word])) continue;
    const choices = found[word].filter((/** @type {any} */ one) => one?.type !== "null");
    nullable = nullable || choices.length < found[word].length;
    if (choices.length === 1 && depth < 8) {
      const inner = meant(choices[0], root, depth + 1);
      return { schema: { ...inner.schema, ...without(found, word) }, nullable: nullable || inner.nullable };
    }
  }
  if (Array.isArray(found.allOf) && found.allOf.length === 1 && depth < 8) {
    const inner = meant(found.allOf[0], root, depth + 1);
    return { schema: { ...inner.schema, ...without(found, "allOf") }, nullable: inner.nullable };
  }
  if (Array.isArray(found.type)) {
    const types = found.type.filter((/** @type {string} */ one) => one !== "null");
    nullable = types.length < found.type.length;
    if (types.length === 1) found = { ...found, type: types[0] };
  }
  return { schema: found, nullable };
}

/** @param {any} found @param {string} word */
function without(found, word) {
  return Object.fromEntries(Object.entries(found).filter(([name]) => name !== word));
}

/** A value that fits a schema, as people would begin to write it.
 * @param {any} given @param {any} root @returns {unknown} */
function exampleOf(given, root, depth = 0) {
  const { schema } = meant(given, root);
  if (schema.default !== undefined && schema.default !== null) return schema.default;
  if (Array.isArray(schema.enum)) return schema.enum[0];
  if (schema.type === "array") return depth < DEPTH_MOST && schema.items ? [exampleOf(schema.items, root, depth + 1)] : [];
  if (schema.type === "object") {
    const required = new Set(Array.isArray(schema.required) ? schema.required : []);
    const named = depth < DEPTH_MOST ? Object.entries(schema.properties ?? {}) : [];
    const free = schema.additionalProperties;
    if (!named.length && depth < DEPTH_MOST && free?.type) return { a: exampleOf(free, root, depth + 1) };
    const wanted = named.filter(([name]) => required.has(name)).concat(named.filter(([name]) => !required.has(name)));
    return Object.fromEntries(wanted.slice(0, NAMED_MOST).map(([name, one]) => [name, exampleOf(one, root, depth + 1)]));
  }
  return /** @type {Record<string, unknown>} */ ({ integer: 1, number: 0.5, boolean: true, null: null })[schema.type] ?? "…";
}

/** The same in a few words: with what the schema names, if it names something.
 * @param {any} schema @param {any} root */
function example(schema, root) {
  const one = cut(JSON.stringify(exampleOf({ ...schema, default: undefined }, root)), 300);
  if (schema.type === "array") return `a list, such as ${one === "[]" || !schema.items?.type && one === '["…"]' ? "[1, 2]" : one}`;
  return schema.type === "object" ? `an object, such as ${one === "{}" ? '{"a": 1}' : one}` : "any value as JSON";
}

/** @param {string} written */
function isJson(written) {
  try {
    JSON.parse(written);
    return true;
  } catch {
    return false;
  }
}

/** One field. `read` returns JSON text, or null if the argument is left out. It throws a sentence.
 * @param {string} name @param {any} given @param {any} root @param {boolean} required */
function field(name, given, root, required) {
  const { schema, nullable } = meant(given, root);
  const id = `field-${++made}`;
  const shown = plain(name);
  const label = make("label", { for: id }, shown);
  const about = make("small", { id: `${id}-about` });
  const wrong = make("p", { id: `${id}-wrong`, class: "wrong", hidden: true });
  const common = { id, "aria-describedby": `${id}-about ${id}-wrong` };
  const hasDefault = "default" in schema;
  /** @type {HTMLElement} */
  let control;
  /** @type {() => string|null} */
  let read;
  const hints = [];
  if (!required) hints.push(hasDefault && schema.default !== null ? `optional, ${cut(JSON.stringify(schema.default), 200)} if left out` : "optional");
  const choices = Array.isArray(schema.enum) && schema.enum.length <= CHOICES_MOST ? schema.enum : "const" in schema ? [schema.const] : null;
  const type = schema.type;
  /** Whether somebody may want to say null who cannot by leaving the field out. */
  const sayable = nullable && (required || (hasDefault && schema.default !== null));
  const none = () => (sayable ? make("option", { value: "null" }, "null") : null);
  if (choices) {
    control = make("select", common);
    if (!required) control.append(make("option", { value: "" }, "—"));
    for (const choice of choices) {
      control.append(make("option", { value: JSON.stringify(choice) }, typeof choice === "string" ? plain(choice) : JSON.stringify(choice)));
    }
    if (!choices.includes(null)) control.append(none() ?? "");
    read = () => /** @type {HTMLSelectElement} */ (control).value || null;
  } else if (type === "boolean" && !nullable && (required || typeof schema.default === "boolean")) {
    control = make("input", { ...common, type: "checkbox", checked: schema.default === true });
    read = () => {
      const { checked } = /** @type {HTMLInputElement} */ (control);
      return !required && checked === schema.default ? null : String(checked);
    };
  } else if (type === "boolean") {
    control = make("select", common, required ? null : make("option", { value: "" }, "—"), make("option", { value: "true" }, "true"), make("option", { value: "false" }, "false"), none());
    read = () => /** @type {HTMLSelectElement} */ (control).value || null;
  } else if (type === "integer" || type === "number") {
    control = make("input", { ...common, type: "text", inputmode: type === "integer" ? "numeric" : "decimal", autocomplete: "off" });
    if (sayable) hints.push(required ? "null if left empty" : "or null");
    if (Number.isFinite(schema.maximum)) hints.unshift(`at most ${schema.maximum}`);
    if (Number.isFinite(schema.minimum)) hints.unshift(`at least ${schema.minimum}`);
    hints.unshift(type === "integer" ? "whole number" : "number");
    read = () => {
      const written = /** @type {HTMLInputElement} */ (control).value.trim();
      if (sayable && (written === "null" || (required && !written))) return "null";
      if (!written) {
        if (required) throw new Error(`${shown} is missing: it is ${type === "integer" ? "a whole number" : "a number"}.`);
        return null;
      }
      if (type === "integer" && !/^-?(0|[1-9]\d*)$/.test(written)) throw new Error(`${shown} is ${JSON.stringify(written)}; it must be a whole number.`);
      if (type === "number" && !(/^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/.test(written) && Number.isFinite(Number(written)))) throw new Error(`${shown} is ${JSON.stringify(written)}; it must be a number, such as 0.5.`);
      return written;
    };
  } else if (type === "string") {
    control = make("textarea", { ...common, rows: "1", spellcheck: "false", autocomplete: "off" });
    if (sayable && required) hints.push("null if left empty");
    read = () => {
      const written = /** @type {HTMLTextAreaElement} */ (control).value;
      if (written) return JSON.stringify(written);
      return !required ? null : sayable ? "null" : '""';
    };
  } else {
    control = make("textarea", { ...common, rows: "2", class: "json", spellcheck: "false", autocomplete: "off" });
    const kind = example(schema, root);
    hints.unshift(`JSON: ${kind}`);
    if (nullable) hints.push("or null");
    const text = !type || (Array.isArray(type) && type.includes("string"));
    read = () => {
      const written = /** @type {HTMLTextAreaElement} */ (control).value.trim();
      if (!written) {
        if (required) throw new Error(`${shown} is missing: write ${kind}.`);
        return null;
      }
      if (!isJson(written)) {
        if (text && !/^[[{"]/.test(written)) return JSON.stringify(written);
        throw new Error(`${shown} is not JSON yet: ${problemOf(written)}`);
      }
      const value = JSON.parse(written);
      if (nullable && value === null) return "null";
      if (type === "array" && !Array.isArray(value)) throw new Error(`${shown} must be ${kind}.`);
      if (type === "object" && (value === null || typeof value !== "object" || Array.isArray(value))) throw new Error(`${shown} must be ${kind}.`);
      return written;
    };
  }
  const described = typeof schema.description === "string" ? cut(schema.description) : "";
  about.textContent = plain([described, hints.length ? `(${hints.join("; ")})` : ""].filter(Boolean).join(" "));
  const checked = () => {
    try {
      const value = read();
      wrong.hidden = true;
      control.removeAttribute("aria-invalid");
      return value;
    } catch (error) {
      wrong.hidden = false;
      wrong.textContent = /** @type {Error} */ (error).message;
      control.setAttribute("aria-invalid", "true");
      throw error;
    }
  };
  const box = make("div", control.getAttribute("type") === "checkbox" ? "field check" : "field", label, control, about, wrong);
  return { name, box, control, read: checked };
}

/** @param {string} written */
function problemOf(written) {
  try {
    JSON.parse(written);
    return "";
  } catch (error) {
    return /** @type {Error} */ (error).message;
  }
}

/** The form of one tool. `call` gets the tool's name and its arguments as JSON text.
 * @param {any} tool @param {(name: string, written: string) => Promise<void>} call */
export function toolForm(tool, call) {
  const schema = meant(tool.input_schema ?? {}, tool.input_schema ?? {}).schema;
  const properties = schema.properties && typeof schema.properties === "object" ? schema.properties : {};
  const required = new Set(Array.isArray(schema.required) ? schema.required : []);
  const entries = Object.entries(properties);
  const many = entries.length > FIELDS_MOST;
  const fields = many ? [] : entries.map(([name, one]) => field(name, one, tool.input_schema, required.has(name)));
  const free = many || (fields.length === 0 && schema.additionalProperties === true);
  if (free) fields.push(field("arguments", { type: "object" }, {}, false));
  const button = make("button", { type: "submit", class: "primary" }, `Call ${plain(tool.name)}`);
  const head = make("div", "tool-head", make("h3", {}, make("bdi", {}, plain(tool.name))));
  if (tool.description) head.append(make("p", "soft description", visible(cut(tool.description))));
  const form = make("form", { class: "tool", novalidate: true }, head, ...fields.map((one) => one.box), button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    /** @type {string[]} */
    const parts = [];
    /** @type {HTMLElement|null} */
    let first = null;
    for (const one of fields) {
      try {
        const value = one.read();
        if (value !== null) parts.push(free ? value : `${JSON.stringify(one.name)}:${value}`);
      } catch {
        first = first ?? one.control;
      }
    }
    if (first) {
      first.focus();
      return;
    }
    button.setAttribute("aria-busy", "true");
    await call(tool.name, free ? parts[0] ?? "{}" : `{${parts.join(",")}}`);
    button.removeAttribute("aria-busy");
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      /** @type {HTMLFormElement} */ (form).requestSubmit();
    }
  });
  return form;
}
