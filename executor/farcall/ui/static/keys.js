// Keyboard shortcuts, which work everywhere except in text fields.

/**
 * Begins to listen.
 * @param {object} on `page()` gives the page's parts or null, `closeTask()`, `help()`
 */
export function listenForKeys(on) {
  let gone = 0;
  document.addEventListener("keydown", (event) => {
    const page = on.page();
    if (!page || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const typing = event.target.closest("input:not([type=checkbox]), select, textarea");
    if (event.key === "Escape") {
      if (typing) return event.target.blur();
      return on.closeTask();
    }
    if (typing) return;
    const table = page.main.table;
    const afterG = Date.now() - gone < 1500;
    gone = 0;
    if (event.key === "/") page.filters.search.focus();
    else if (event.key === "?") on.help();
    else if (event.key === "c") page.cancel();
    else if (event.key === "g") gone = Date.now();
    else if (afterG && event.key === "w") page.runs.element.querySelector("a")?.focus();
    else if (afterG && event.key === "t") table.element.focus();
    else if (event.key === "o" && page.detail.id && !page.detail.whole())
      page.detail.choose(page.detail.tab === "output" ? "overview" : "output");
    else if (["j", "k"].includes(event.key)) {
      table.element.focus();
      table.element.dispatchEvent(new KeyboardEvent("keydown", { key: event.key, cancelable: true }));
    } else return;
    event.preventDefault();
  });
}
