// Elements that several views share: state badge, bar of counts, copy button.

import { clean, fill, h, icon, setAttr, setText } from "./dom.js";
import { GROUPS, inWords, wordOf } from "./format.js";

/** Makes a state badge with icon and word; `update(group, title)` changes it. */
export function stateSign() {
  const word = h("span");
  const element = h("span.state", {}, word);
  let shown = "";
  return {
    element,
    update(group, title = "") {
      setAttr(element, "title", title || null);
      if (group === shown) return;
      shown = group;
      element.dataset.group = group;
      fill(element, icon(group), word);
      setText(word, wordOf(group));
    },
  };
}

/** Makes a bar that shows counts by group; `update(counts)` changes it. */
export function bar() {
  const element = h("div.bar", { role: "img" });
  const parts = new Map();
  for (const { key } of [...GROUPS.slice(3), ...GROUPS.slice(0, 3).reverse()]) {
    const part = h("span", { data: { group: key } });
    parts.set(key, part);
    element.append(part);
  }
  return {
    element,
    update(counts) {
      for (const [key, part] of parts) {
        part.hidden = !counts[key];
        part.style.setProperty("flex-grow", String(counts[key] ?? 0));
      }
      setAttr(element, "aria-label", inWords(counts) || "nothing");
    },
  };
}

/** Makes a labeled bar of a used share; without a bar below 1 %. */
export function meter(label, share, text) {
  const words = h("div.meter-words", {}, h("span", { text: label }), h("span", { text }));
  if (share < 0.01) return h("div.meter", {}, words); // nothing to see in the bar
  const filled = h("span");
  filled.style.setProperty("width", `${Math.min(100, share * 100)}%`);
  const level = share >= 0.9 ? "high" : "fine";
  return h("div.meter", { data: { level } }, words,
    h("div.meter-bar", { role: "img", "aria-label": `${label}: ${text}` }, filled));
}

/** Makes a button that copies text and says so. */
export function copyButton(label, text) {
  const word = h("span.quiet", { role: "status" });
  const button = h("button.plain", { type: "button", "aria-label": label, title: label }, icon("copy"), word);
  button.addEventListener("click", async () => {
    const said = (await copy(typeof text === "function" ? text() : text)) ? "Copied" : "Denied";
    setText(word, said);
    setTimeout(() => setText(word, ""), 1500);
  });
  return button;
}

/** Copies text; returns whether the browser permitted it. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** Makes a name that users chose, isolated from the surrounding text direction. */
export const name = (text, props = {}) => h("bdi", { ...props, text });

/** Remembers a choice in this browser. */
export function remember(key, value) {
  try {
    localStorage.setItem(`farcall.${key}`, value);
  } catch {
    // Without storage it lasts until the page is closed.
  }
}

/** Returns a remembered choice, or "". */
export function remembered(key) {
  try {
    return clean(localStorage.getItem(`farcall.${key}`) ?? "");
  } catch {
    return "";
  }
}
