// The token form, the help, and the theme switch.

import { fill, h, icon, setAttr } from "./dom.js";
import { remember, remembered } from "./parts.js";

/** Makes the token form; it calls `take(token)`. */
export function tokenForm(take) {
  const input = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const trouble = h("p.trouble", { role: "alert", hidden: true });
  const form = h("form", { "aria-label": "Token" },
    h("h1.brand", {}, "farcall"),
    h("p", {}, "The web UI acts on your behalf in AWS, so it requires the token of this session. ", h("code", {}, "farcall ui"), " printed it: the last part of the address, after ", h("code", {}, "#token="), "."),
    trouble, h("label", { for: "token" }, "Token"), input, h("div.buttons", {}, h("button.strong", { type: "submit" }, "Open")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    // The complete address is accepted, too.
    const said = input.value.trim();
    if (said) take(decodeURIComponent(said.split("token=").pop()));
    input.value = "";
  });
  const element = h("main.token", { hidden: true }, form);
  return {
    element,
    show(message) {
      element.hidden = false;
      trouble.hidden = !message;
      fill(trouble, message ?? "");
      input.focus();
    },
    hide: () => (element.hidden = true),
  };
}

const KEYS = [
  ["/", "Focus the filter"],
  ["j, k or ↓, ↑", "Next and previous workflow or task"],
  ["Enter", "Open the task"],
  ["→, ←", "Show or hide an array's tasks"],
  ["x or Space", "Select the task; with Shift, the range up to it"],
  ["c", "Cancel the selection, the open task or the workflow"],
  ["g then w, g then t", "Go to the workflows or the tasks"],
  ["o", "Switch between the task's output and overview"],
  ["Esc", "Close the panel, or reset the timeline's zoom"],
  ["?", "Show this help"],
];

/** Opens the help. */
export function openHelp() {
  if (document.querySelector("dialog[open]")) return;
  const close = h("button.strong", { type: "button", on: { click: () => dialog.close() } }, "Close");
  const dialog = h("dialog.help", { "aria-label": "Help" }, h("h2", {}, "Keys"),
    h("dl", {}, ...KEYS.flatMap(([keys, text]) => [h("dt", {}, h("kbd", { text: keys })), h("dd", { text })])),
    h("h2", {}, "Timeline"),
    h("p", {}, "Each task has a row: pale while it waits, solid while it runs. A cross marks a failed task, a line a cancelled one. With more than 100 tasks, the timeline shows how many ran at a time. Drag to zoom in; double-click to reset the zoom."),
    h("div.buttons", {}, close));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

const THEMES = ["system", "light", "dark"];

/** Makes the button that switches between the system's theme, light and dark. */
export function themeButton() {
  const button = h("button.plain", { type: "button" });
  let theme = THEMES.includes(remembered("theme")) ? remembered("theme") : "system";
  const apply = () => {
    setAttr(document.documentElement, "data-theme", theme === "system" ? null : theme);
    setAttr(button, "aria-label", `Theme: ${theme}`);
    setAttr(button, "title", `Theme: ${theme}`);
    fill(button, icon(theme));
    document.dispatchEvent(new Event("farcall:theme"));
  };
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    remember("theme", theme);
    apply();
  });
  apply();
  return button;
}
