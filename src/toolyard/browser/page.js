// Reads a page as text and finds the elements that it numbers. Runs in a world of its own beside the page's scripts:
// they share the document, but neither sees what the other defines.
(() => {
  const NAME_MOST = 150, VALUE_MOST = 200, OPTIONS_MOST = 30, NODES_MOST = 200000, HREF_MOST = 2000, COPIED_MOST = 100000;
  const SKIPPED = new Set(["SCRIPT", "STYLE", "NOSCRIPT", "TEMPLATE", "HEAD", "META", "LINK", "OBJECT", "EMBED"]);
  const ROLES = new Set(["button", "link", "checkbox", "radio", "switch", "tab", "menuitem", "menuitemcheckbox",
    "menuitemradio", "option", "combobox", "textbox", "searchbox", "slider", "spinbutton", "treeitem"]);
  const USED = ["a[href]", "area[href]", "button", "summary", "select", "textarea", "input:not([type=hidden])", "[onclick]",
    ...[...ROLES].map(role => `[role=${role}]`)].join(", ");
  const BUTTONS = new Set(["button", "submit", "reset", "image"]);
  const TYPED = new Set(["text", "search", "email", "url", "tel", "password", "number", ""]);

  const numbers = new WeakMap();  // element -> number
  const elements = new Map();     // number -> WeakRef of element
  let last = 0;

  const numberOf = element => {
    let number = numbers.get(element);
    if (number === undefined) {
      number = ++last;
      numbers.set(element, number);
      elements.set(number, new WeakRef(element));
    }
    return number;
  };

  const squeeze = text => (text || "").replace(/\s+/g, " ").trim();
  const short = (text, most) => text.length > most ? text.slice(0, most) + "…" : text;
  const quoted = (text, most) => JSON.stringify(short(squeeze(text), most));
  const tag = element => element.tagName.toUpperCase();
  const typeOf = element => (element.getAttribute("type") || "text").toLowerCase();

  // What an element is to its user; empty if it does nothing.
  const kindOf = (element, style, parentCursor) => {
    const role = (element.getAttribute("role") || "").trim().split(/\s+/)[0];
    switch (tag(element)) {
      case "A": case "AREA": if (element.hasAttribute("href")) return ROLES.has(role) ? role : "link"; break;
      case "BUTTON": return ROLES.has(role) ? role : "button";
      case "SUMMARY": return "button";
      case "SELECT": return element.multiple ? "listbox" : "combobox";
      case "TEXTAREA": return "textbox";
      case "INPUT": {
        const type = typeOf(element);
        if (type === "hidden") return "";
        if (BUTTONS.has(type)) return "button";
        if (type === "checkbox" || type === "radio") return type;
        return type === "range" ? "slider" : type === "file" ? "file input" : "textbox";
      }
      case "LABEL": return "";
    }
    if (element.isContentEditable && !(element.parentElement && element.parentElement.isContentEditable)) return "textbox";
    if (ROLES.has(role)) return role;
    if (element.hasAttribute("onclick") || (style.cursor === "pointer" && parentCursor !== "pointer")) return "clickable";
    return "";
  };

  const nameOf = element => {
    const root = element.getRootNode();
    const labelled = (element.getAttribute("aria-labelledby") || "").split(/\s+/).filter(Boolean)
      .map(id => root.getElementById && root.getElementById(id)).filter(Boolean).map(one => one.innerText).join(" ");
    const labels = element.labels ? [...element.labels].map(label => label.innerText).join(" ") : "";
    const isField = ["INPUT", "SELECT", "TEXTAREA"].includes(tag(element)) || element.isContentEditable;
    const image = element.querySelector("img[alt], svg[aria-label]");
    const inside = isField ? "" : squeeze(element.innerText) || (image && (image.alt || image.getAttribute("aria-label")));
    const value = tag(element) === "INPUT" && BUTTONS.has(typeOf(element)) ? element.value || element.alt || typeOf(element) : "";
    const candidates = [labelled, element.getAttribute("aria-label"), labels, value, inside,
      element.getAttribute("placeholder"), element.getAttribute("title"), element.getAttribute("alt"), element.getAttribute("name")];
    return candidates.map(squeeze).find(Boolean) || "";
  };

  const stateOf = (element, kind) => {
    const said = [];
    if (kind === "combobox" || kind === "listbox") {
      const options = [...(element.options || [])];
      const chosen = options.filter(option => option.selected).map(option => quoted(option.label, NAME_MOST));
      if (chosen.length) said.push("value " + chosen.join(", "));
      const more = options.length > OPTIONS_MOST ? ` and ${options.length - OPTIONS_MOST} more` : "";
      const listed = options.slice(0, OPTIONS_MOST).map(option => quoted(option.label, NAME_MOST)).join(", ");
      if (options.length) said.push(`options ${listed}${more}`);
    } else if (kind === "textbox" || kind === "slider") {
      const secret = tag(element) === "INPUT" && typeOf(element) === "password";
      const value = "value" in element ? element.value : element.innerText;
      if (value) said.push("value " + (secret ? '"' + "•".repeat(Math.min(value.length, 20)) + '"' : quoted(value, VALUE_MOST)));
    }
    if (element.checked || element.getAttribute("aria-checked") === "true") said.push("checked");
    if (element.getAttribute("aria-selected") === "true") said.push("selected");
    if (element.getAttribute("aria-expanded")) said.push(element.getAttribute("aria-expanded") === "true" ? "expanded" : "collapsed");
    if (isDisabled(element)) said.push("disabled");
    return said;
  };

  const isDisabled = element => element.matches(":disabled") || element.getAttribute("aria-disabled") === "true";

  const described = (element, kind) => {
    const name = nameOf(element);
    return [`[${numberOf(element)}]`, kind, ...(name ? [quoted(name, NAME_MOST)] : []), ...stateOf(element, kind)].join(" ");
  };

  // Rectangles are [left, top, right, bottom] in the window, for elements of all frames.
  const moved = (rect, dx, dy) => [rect.left + dx, rect.top + dy, rect.right + dx, rect.bottom + dy];
  const both = (a, b) => [Math.max(a[0], b[0]), Math.max(a[1], b[1]), Math.min(a[2], b[2]), Math.min(a[3], b[3])];
  const meets = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
  const area = rect => Math.max(0, rect[2] - rect[0]) * Math.max(0, rect[3] - rect[1]);

  class Writer {
    constructor(most) { this.lines = []; this.line = ""; this.prefix = ""; this.most = most; this.length = 0; this.cut = false; this.spaced = false; }
    get full() { return this.length + this.line.length >= this.most; }
    newline() {
      const line = this.line.trimEnd();
      if (line) { this.lines.push(line); this.length += line.length + 1; }
      this.line = "";
    }
    add(text) {
      if (!text) return;
      if (this.full) { this.cut = true; return; }
      if (!this.line) { text = text.replace(/^ +/, ""); if (!text) return; this.line = this.prefix; this.prefix = ""; }
      else if (this.line.endsWith(" ")) text = text.replace(/^ +/, "");
      if (this.spaced && /^[.,;:!?)\]]/.test(text)) this.line = this.line.trimEnd();
      this.spaced = false;
      this.line += text;
    }
    item(text) { this.add(this.line && !this.line.endsWith(" ") ? " " : ""); this.add(text); this.add(" "); this.spaced = true; }
    raw(text) {
      text.split("\n").forEach((part, i) => {
        if (i) { this.newline(); }
        if (this.full) { this.cut ||= !!part; return; }
        if (!this.line) { this.line = this.prefix; this.prefix = ""; }
        this.line += part;
      });
    }
    text() { this.newline(); return this.lines.join("\n"); }
  }

  // The part of a text that is in view, cut between words; texts taller than the window are read screen by screen.
  const partInView = (node, clip, dy) => {
    const range = node.ownerDocument.createRange();
    const bottomAt = i => { range.setStart(node, i); range.setEnd(node, i + 1); return range.getBoundingClientRect(); };
    const first = predicate => {
      let low = 0, high = node.length;
      while (low < high) { const middle = (low + high) >> 1; if (predicate(bottomAt(middle))) high = middle; else low = middle + 1; }
      return low;
    };
    const start = first(rect => rect.bottom + dy > clip[1]);
    const end = first(rect => rect.top + dy >= clip[3]);
    return node.data.slice(start, Math.max(start, end));
  };

  class Reader {
    // What is in view, with numbers; or, if `whole`, the text of the whole page and its links.
    constructor(most, whole = false) {
      this.out = new Writer(most); this.nodes = 0; this.scroller = null; this.scrollerArea = 0;
      this.whole = whole; this.links = new Map();
    }

    children(element) {
      if (element.shadowRoot) return element.shadowRoot.childNodes;
      if (tag(element) === "SLOT") { const given = element.assignedNodes({flatten: true}); if (given.length) return given; }
      return element.childNodes;
    }

    walk(node, at) {
      if (++this.nodes > NODES_MOST) { this.out.cut = true; return; }
      if (node.nodeType === Node.TEXT_NODE) this.text(node, at);
      else if (node.nodeType === Node.ELEMENT_NODE) this.element(node, at);
    }

    text(node, at) {
      if (at.hidden || !node.length) return;
      if (!node.data.trim()) { if (!at.pre) this.out.add(" "); return; }
      const range = node.ownerDocument.createRange();
      range.selectNodeContents(node);
      const rect = moved(range.getBoundingClientRect(), at.dx, at.dy);
      if (!meets(rect, at.clip)) return;
      const whole = rect[1] >= at.clip[1] && rect[3] <= at.clip[3];
      const data = whole ? node.data : partInView(node, at.clip, at.dy);
      if (at.pre) this.out.raw(data); else this.out.add(data.replace(/\s+/g, " "));
    }

    element(element, at) {
      const name = tag(element);
      if (SKIPPED.has(name)) return;
      const rect = moved(element.getBoundingClientRect(), at.dx, at.dy);
      if (area(rect) && !meets(rect, at.window) && name !== "IFRAME" && name !== "FRAME") return this.away(element, at);
      const view = element.ownerDocument.defaultView;
      const style = view && view.getComputedStyle(element);
      if (!style || style.display === "none" || !element.checkVisibility()) return;
      const hidden = style.visibility !== "visible";
      const inner = {...at, hidden: hidden || style.opacity === "0", pre: /^(pre|break-spaces)/.test(style.whiteSpace), cursor: style.cursor};
      if (style.position === "fixed") inner.clip = at.window;
      if (!this.whole && style.overflowY !== "visible" && element !== element.ownerDocument.body && element !== element.ownerDocument.documentElement) {
        inner.clip = both(inner.clip, rect);
        this.consider(element, style, rect, at);
      }
      const kind = hidden || this.whole ? "" : kindOf(element, style, at.cursor);
      if (this.whole && name === "SELECT") return;
      if (this.whole && name === "A" && !inner.hidden) this.link(element);
      if (name === "BR") return this.break(at);
      if (name === "HR") { this.break(at); if (meets(rect, inner.clip)) this.out.add("---"); return this.break(at); }
      if (name === "IFRAME" || name === "FRAME") return this.frame(element, rect, inner);
      if (kind && kind !== "clickable") return this.control(element, kind, rect, inner, style);
      if (name === "IMG") { if (element.alt && !inner.hidden && meets(rect, inner.clip)) this.out.item(`image ${quoted(element.alt, NAME_MOST)}`); return; }
      if (name === "SVG" || name === "CANVAS") return;
      this.block(element, name, style, rect, inner, kind);
    }

    link(element) {
      const href = element.href, name = short(nameOf(element), NAME_MOST), here = document.URL.split("#")[0];
      if (typeof href !== "string" || !name || href.length > HREF_MOST || !/^https?:/.test(href) || href.startsWith(here + "#")) return;
      this.links.set(`${name} ${href}`, [name, href]);
    }

    // Out of view: number it, and go on, since its children may be elsewhere.
    away(element, at) {
      if (element.matches(USED)) numberOf(element);
      for (const child of this.children(element)) if (child.nodeType === Node.ELEMENT_NODE) this.walk(child, at);
    }

    break(at) { if (at.cell) this.out.add(" "); else this.out.newline(); }

    block(element, name, style, rect, at, kind) {
      const isBlock = !/^(inline|contents|ruby)/.test(style.display);
      const isCell = name === "TD" || name === "TH";
      if (isCell) {
        if (element.cellIndex > 0 && this.out.line) this.out.add(" | ");
        at.cell = at.cell || !element.querySelector("table");
      } else if (isBlock) this.break(at);
      else if (style.display !== "inline") this.out.add(" ");
      const level = /^H([1-6])$/.exec(name);
      if (level) this.out.prefix = "#".repeat(level[1]) + " ";
      if (name === "UL" || name === "OL") { at.depth = (at.depth || 0) + 1; at.count = name === "OL" ? {next: element.start || 1} : null; }
      if (name === "LI") {
        const mark = at.count ? `${element.hasAttribute("value") ? element.value : at.count.next++}.` : "-";
        this.out.prefix = "  ".repeat(Math.max(0, (at.depth || 1) - 1)) + mark + " ";
      }
      if (kind) { const said = `[${numberOf(element)}] clickable`; if (meets(rect, at.clip)) this.out.item(said + this.nameless(element)); }
      for (const child of this.children(element)) this.walk(child, at);
      if (level || name === "LI") this.out.prefix = "";
      if (isBlock && !isCell) this.break(at);
      else if (style.display !== "inline" && !isCell) this.out.add(" ");
    }

    // A clickable element's own text follows; one without text needs its label.
    nameless(element) { return squeeze(element.innerText) ? "" : " " + quoted(nameOf(element), NAME_MOST); }

    control(element, kind, rect, at, style) {
      numberOf(element);
      if (kind === "link" && !area(rect)) {  // its content has a place of its own
        const child = [...element.children].find(one => area(moved(one.getBoundingClientRect(), 0, 0)));
        if (child) rect = moved(child.getBoundingClientRect(), at.dx, at.dy);
      }
      const isBlock = !/^(inline|contents)/.test(style.display);
      if (isBlock) this.break(at);
      if (meets(rect, at.clip)) this.out.item(described(element, kind));
      if (isBlock) this.break(at);
      if (kind !== "link" && kind !== "button") return;
      for (const inner of element.querySelectorAll("a[href], button, input, select, textarea")) this.walk(inner, at);
    }

    frame(element, rect, at) {
      let inside = null;
      try { inside = element.contentDocument; } catch (error) { inside = null; }
      this.break(at);
      if (inside && inside.body) {
        const dx = rect[0] + element.clientLeft, dy = rect[1] + element.clientTop;
        const clip = this.whole ? at.clip : both(at.clip, [dx, dy, dx + element.clientWidth, dy + element.clientHeight]);
        this.walk(inside.body, {...at, dx, dy, clip, window: clip, cell: false});
      } else if (meets(rect, at.clip) && element.src) {
        this.out.add(`(a frame with a page of another site: ${short(element.src, NAME_MOST)})`);
      }
      this.break(at);
    }

    // The largest box that scrolls, for pages whose body does not.
    consider(element, style, rect, at) {
      if (!/auto|scroll/.test(style.overflowY) || element.scrollHeight <= element.clientHeight + 4) return;
      const size = area(both(rect, at.clip));
      if (size > this.scrollerArea) { this.scrollerArea = size; this.scroller = element; }
    }
  }

  const mainScroller = found => {
    const page = document.scrollingElement || document.documentElement;
    const scrolls = page.scrollHeight > page.clientHeight + 4 && getComputedStyle(page).overflowY !== "hidden";
    return scrolls || !found ? page : found;
  };

  let scroller = null;

  const look = most => {
    const window_ = [0, 0, innerWidth, innerHeight];
    const reader = new Reader(most);
    if (document.body) reader.walk(document.body, {clip: window_, window: window_, dx: 0, dy: 0, cursor: "auto"});
    scroller = mainScroller(reader.scroller);
    return {
      title: short(squeeze(document.title), 300), url: short(location.href, 2000), text: reader.out.text(), cut: reader.out.cut,
      top: scroller.scrollTop, height: scroller.clientHeight, whole: scroller.scrollHeight,
    };
  };

  const read = (most, linksMost) => {
    const everywhere = [-Infinity, -Infinity, Infinity, Infinity];
    const reader = new Reader(most, true);
    if (document.body) reader.walk(document.body, {clip: everywhere, window: everywhere, dx: 0, dy: 0, cursor: "auto"});
    const links = [...reader.links.values()].slice(0, linksMost);
    return {title: short(squeeze(document.title), 300), text: reader.out.text(), cut: reader.out.cut, links};
  };

  const scroll = direction => {
    if (!scroller || !scroller.isConnected) look(0);
    scroller.scrollBy({top: direction * scroller.clientHeight, behavior: "instant"});
  };

  const find = number => {
    const reference = elements.get(number);
    const element = reference && reference.deref();
    return element && element.isConnected ? element : null;
  };

  // The place of a frame in the window, through all frames around it.
  const offset = element => {
    let dx = 0, dy = 0;
    for (let frame = element.ownerDocument.defaultView.frameElement; frame; frame = frame.ownerDocument.defaultView.frameElement) {
      const rect = frame.getBoundingClientRect();
      dx += rect.left + frame.clientLeft;
      dy += rect.top + frame.clientTop;
    }
    return [dx, dy];
  };

  const isHit = (element, x, y) => {
    let hit = element.getRootNode().elementFromPoint(x, y);
    for (; hit; hit = hit.parentNode || hit.host) if (hit === element) return true;
    return false;
  };

  // Where to put the mouse; null if no point of the element can be reached.
  const place = element => {
    const first = element.getBoundingClientRect();
    if (first.top < 0 || first.left < 0 || first.bottom > innerHeight || first.right > innerWidth || element.ownerDocument !== document)
      element.scrollIntoView({block: "center", inline: "nearest", behavior: "instant"});
    const [dx, dy] = offset(element);
    for (const rect of element.getClientRects()) {
      const x = rect.left + rect.width / 2, y = rect.top + rect.height / 2;
      if (rect.width && rect.height && isHit(element, x, y)) return {x: x + dx, y: y + dy};
    }
    const child = [...element.querySelectorAll("*")].find(one => one.getBoundingClientRect().width > 0);
    if (!child) return null;
    const rect = child.getBoundingClientRect(), x = rect.left + rect.width / 2, y = rect.top + rect.height / 2;
    return isHit(element, x, y) ? {x: x + dx, y: y + dy} : null;
  };

  const usable = number => {
    const element = find(number);
    if (!element) return {problem: `there is no element [${number}] on the page`};
    if (isDisabled(element)) return {problem: `element [${number}] is disabled`};
    if (tag(element) === "INPUT" && typeOf(element) === "file") return {problem: "files cannot be uploaded"};
    return {element};
  };

  // A place to click; clicks at once what no mouse reaches.
  const aim = number => {
    const {element, problem} = usable(number);
    if (problem) return {problem};
    const found = place(element);
    if (!found) element.click();
    return found || {clicked: true};
  };

  const point = number => {
    const {element, problem} = usable(number);
    return problem ? {problem} : place(element) || {problem: `element [${number}] is covered by another`};
  };

  const changed = element => {
    element.dispatchEvent(new Event("input", {bubbles: true, composed: true}));
    element.dispatchEvent(new Event("change", {bubbles: true}));
    return {done: true};
  };

  const choose = (element, text) => {
    const wanted = squeeze(text);
    const options = [...element.options];
    const option = options.find(one => squeeze(one.label) === wanted || one.value === wanted)
      || options.find(one => squeeze(one.label).toLowerCase() === wanted.toLowerCase());
    if (!option) return {problem: `there is no option ${JSON.stringify(wanted)}; there are ${options.slice(0, OPTIONS_MOST).map(one => quoted(one.label, NAME_MOST)).join(", ")}`};
    if (option.disabled) return {problem: `the option ${JSON.stringify(wanted)} is disabled`};
    option.selected = true;
    return changed(element);
  };

  // Focuses an element and selects its content for the keyboard, or fills it where a keyboard is no use.
  const fill = (number, text) => {
    const {element, problem} = usable(number);
    if (problem) return {problem};
    if (tag(element) === "SELECT") return choose(element, text);
    if (element.readOnly) return {problem: `element [${number}] cannot be changed`};
    if (tag(element) === "INPUT" && !TYPED.has(typeOf(element))) {
      if (BUTTONS.has(typeOf(element)) || ["checkbox", "radio"].includes(typeOf(element))) return {problem: `element [${number}] takes no text: click it`};
      element.value = text;
      return element.value || !text ? changed(element) : {problem: `element [${number}] does not take ${JSON.stringify(text)}`};
    }
    const isField = ["INPUT", "TEXTAREA"].includes(tag(element));
    if (!isField && !element.isContentEditable && !["textbox", "searchbox", "combobox", "spinbutton"].includes(element.getAttribute("role")))
      return {problem: `element [${number}] takes no text`};
    element.scrollIntoView({block: "nearest", behavior: "instant"});
    element.focus();
    if (isField) element.select(); else element.ownerDocument.getSelection().selectAllChildren(element);
    return {ready: true};
  };

  // The selection, in a field or in the page, in the frame or shadow tree that has the focus.
  const selected = () => {
    let active = document.activeElement;
    for (let inner = active; inner; active = inner || active)
      inner = (active.shadowRoot && active.shadowRoot.activeElement) || (active.contentDocument && active.contentDocument.activeElement);
    const isSecret = active && tag(active) === "INPUT" && typeOf(active) === "password";
    if (isSecret) return "";
    const text = active && typeof active.selectionStart === "number" ? active.value.slice(active.selectionStart, active.selectionEnd)
      : String((active ? active.ownerDocument : document).getSelection());
    return text.slice(0, COPIED_MOST);
  };

  // Resolves when nothing in the document has changed for a while.
  const quiet = (still, most) => new Promise(resolve => {
    const end = () => { observer.disconnect(); resolve(true); };
    let timer = setTimeout(end, still);
    const observer = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(end, still); });
    observer.observe(document, {subtree: true, childList: true, characterData: true, attributes: true});
    setTimeout(end, most);
  });

  globalThis.toolyard = {look, read, scroll, aim, point, fill, selected, quiet};
})()
