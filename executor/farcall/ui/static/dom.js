// Makes elements and text. Untrusted text enters the page only here, always by textContent and
// never as markup, with all control characters made visible.

const SVG = "http://www.w3.org/2000/svg";

// C0 and C1 controls except tab and newline, and characters that change the text direction.
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
const DIRECTIONS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Returns text with control characters made visible. */
export function clean(text) {
  return String(text ?? "")
    .replace(CONTROLS, (c) => (c < " " ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : "\ufffd"))
    .replace(DIRECTIONS, "\ufffd");
}

/**
 * Makes an element.
 * @param {string} tag its name, with classes: "div.card.wide"
 * @param {object} [props] attributes; text: its text; on: listeners; data: data-*; a value of
 *   false or null leaves an attribute out, true sets it empty.
 * @param {...(Node|string|null|false)} children
 */
export function h(tag, props = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.classList.add(...classes);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "text") element.textContent = clean(value);
    else if (key === "on") for (const [event, f] of Object.entries(value)) element.addEventListener(event, f);
    else if (key === "data") Object.assign(element.dataset, value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

/** Appends children; null and false are skipped. */
export function add(element, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(typeof child === "string" ? clean(child) : child);
  }
}

/** Replaces an element's children. */
export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
}

/** Sets text if it differs, so that an unchanged row causes no layout. */
export function setText(element, text) {
  const said = clean(text);
  if (element.textContent !== said) element.textContent = said;
}

/** Sets an attribute if it differs; null removes it. */
export function setAttr(element, name, value) {
  if (value === null || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Makes a link to another site, or only text if the address is not https. */
export function outside(url, text) {
  let parsed = null;
  try {
    parsed = new URL(url);
  } catch {
    // Not a URL.
  }
  if (parsed?.protocol !== "https:") return h("span", { text });
  return h("a.outside", { href: parsed.href, target: "_blank", rel: "noopener noreferrer" }, text, icon("out"));
}

// Lines on a grid of 16 by 16.
const PATHS = {
  waiting: ["M8 2.2a5.8 5.8 0 1 0 0 11.6a5.8 5.8 0 0 0 0-11.6", "M8 5v3.2l2.1 1.3"],
  starting: ["M8 2.2a5.8 5.8 0 0 1 5.8 5.8", "M13 10.9a5.8 5.8 0 0 1-2.1 2.1", "M8 13.8a5.8 5.8 0 0 1-4.6-2.3", "M2.2 8a5.8 5.8 0 0 1 2.1-4.5"],
  running: ["M8 2.2a5.8 5.8 0 1 0 0 11.6a5.8 5.8 0 0 0 0-11.6", "M6.8 5.7v4.6L10.4 8z"],
  succeeded: ["M8 2.2a5.8 5.8 0 1 0 0 11.6a5.8 5.8 0 0 0 0-11.6", "M5.4 8.2l1.8 1.8l3.4-3.8"],
  failed: ["M8 2.2a5.8 5.8 0 1 0 0 11.6a5.8 5.8 0 0 0 0-11.6", "M6 6l4 4", "M10 6l-4 4"],
  cancelled: ["M8 2.2a5.8 5.8 0 1 0 0 11.6a5.8 5.8 0 0 0 0-11.6", "M4 4l8 8"],
  blocked: ["M8 2.4L14.2 13.4H1.8z", "M8 6.4v3.2", "M8 11.4v.2"],
  out: ["M6 3.5H3.5v9h9V10", "M9 3h4v4", "M13 3L7.6 8.4"],
  chevron: ["M6 3.8L10.2 8L6 12.2"],
  back: ["M10 3.8L5.8 8L10 12.2"],
  close: ["M4 4l8 8", "M12 4l-8 8"],
  copy: ["M6 6h7v7H6z", "M3 10V3h7"],
  search: ["M7 2.8a4.2 4.2 0 1 0 0 8.4a4.2 4.2 0 0 0 0-8.4", "M10.2 10.2L13.4 13.4"],
  system: ["M2.5 3.5h11v7h-11z", "M5.5 13.2h5"],
  light: ["M8 5.3a2.7 2.7 0 1 0 0 5.4a2.7 2.7 0 0 0 0-5.4", "M8 1.6v1.4", "M8 13v1.4", "M1.6 8H3", "M13 8h1.4", "M3.5 3.5l1 1", "M11.5 11.5l1 1", "M12.5 3.5l-1 1", "M4.5 11.5l-1 1"],
  dark: ["M13 9.6A5.4 5.4 0 0 1 6.4 3a5.4 5.4 0 1 0 6.6 6.6"],
  help: ["M8 2.2a5.8 5.8 0 1 0 0 11.6a5.8 5.8 0 0 0 0-11.6", "M6.3 6.5a1.7 1.7 0 1 1 2.4 1.6c-.5.3-.7.6-.7 1.1", "M8 11.2v.2"],
  wide: ["M2.5 3h11v10h-11z", "M9.5 3v10"],
  columns: ["M2.5 3h11v10h-11z", "M8 3v10"],
  wrap: ["M2.5 4h11", "M2.5 8h8.8a2 2 0 0 1 0 4H8", "M9.6 10.4L8 12l1.6 1.6", "M2.5 12h2.5"],
  follow: ["M8 2.5v8.5", "M4.5 7.6L8 11l3.5-3.4", "M3.5 13.5h9"],
  download: ["M8 2.5v7", "M5 6.8L8 9.8l3-3", "M2.8 11v2.5h10.4V11"],
  up: ["M4 10l4-4l4 4"],
  down: ["M4 6l4 4l4-4"],
};

/** Draws an icon; a screen reader ignores it, so a word follows or names it. */
export function icon(name, extra = "") {
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" }))
    svg.setAttribute(key, value);
  svg.setAttribute("class", `icon icon-${name} ${extra}`.trim());
  for (const d of PATHS[name] ?? []) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
}

const waiting = new Set();
let asked = 0;

/** Calls a function once before the next frame, however often it is requested until then. */
export function frame(f) {
  waiting.add(f);
  asked ||= requestAnimationFrame(run);
}

function run() {
  asked = 0;
  const now = [...waiting];
  waiting.clear();
  for (const f of now) {
    try {
      f();
    } catch (error) {
      reportError(error); // What else is due is drawn anyway.
    }
  }
}
