// The form that asks for the token, the help, and the choice of light and dark.

import { fill, h, icon, setAttr } from "./dom.js";
import { remember, remembered } from "./parts.js";

/** Makes the form that asks for the token; `take(token)` gets it. */
export function tokenForm(take) {
  const input = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true });
  const trouble = h("p.trouble", { role: "alert", hidden: true });
  const form = h("form", { "aria-label": "Token" },
    h("h1.brand", {}, "farcall"),
    h("p", {}, "This page acts for you in AWS, so it opens only with the token of this session. ", h("code", {}, "farcall ui"), " printed it: the last part of the address, after ", h("code", {}, "#token="), "."),
    trouble, h("label", { for: "token" }, "Token"), input, h("div.buttons", {}, h("button.strong", { type: "submit" }, "Open")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    // The whole address is as good.
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
  ["/", "Filter by words"],
  ["j, k or ↓, ↑", "Next and previous workflow or task"],
  ["Enter", "Open the task"],
  ["→, ←", "Show and hide the children of an array"],
  ["x or Space", "Select the task; with Shift up to it"],
  ["c", "Cancel what is selected, else the task in the panel, else the workflow"],
  ["g then w, g then t", "Go to the workflows, to the tasks"],
  ["o", "The task's output, and back to its overview"],
  ["Esc", "Close the panel, or end the zoom of a timeline"],
  ["?", "This help"],
];

/** Opens the help. */
export function openHelp() {
  if (document.querySelector("dialog[open]")) return;
  const close = h("button.strong", { type: "button", on: { click: () => dialog.close() } }, "Close");
  const dialog = h("dialog.help", { "aria-label": "Help" }, h("h2", {}, "Keys"),
    h("dl", {}, ...KEYS.flatMap(([keys, text]) => [h("dt", {}, h("kbd", { text: keys })), h("dd", { text })])),
    h("h2", {}, "Timeline"),
    h("p", {}, "A row for each task: pale while it waits, solid while it runs. Of more than 100 tasks it shows how many ran at a time, and a mark when one failed. Drag across to see a part of the time; double-click for all of it. A cross marks what failed, a stroke what was cancelled."),
    h("div.buttons", {}, close));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

const THEMES = ["system", "light", "dark"];

/** Makes the button that goes from the system's theme to light and dark. */
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
