// The last output lines of a running task, live, at the end of its overview.

import { follow, path } from "./api.js";
import { fill, h } from "./dom.js";
import { Lines } from "./lines.js";

const SHOWN = 10;

/** Makes the section; `show(id)` follows a task's output, and `show(null)` stops. */
export function lastLines() {
  const lines = h("pre.traceback.last-lines", { tabindex: "0", "aria-label": "Last lines", data: { testid: "last-lines" } });
  const element = h("section.part", { hidden: true }, h("h3", {}, "Last lines"), lines);
  let stream = null;
  let shown = null;
  let kept = new Lines();

  function draw() {
    const last = [...kept.kept, ...kept.states.values()].slice(-SHOWN);
    fill(lines, ...last.map((line) => h("div", { data: { stream: line.stream }, text: line.text || "\u200b" })));
    element.hidden = !last.length;
  }

  return {
    element,
    show(id) {
      if (id === shown) return;
      shown = id;
      stream?.close();
      stream = null;
      kept = new Lines();
      draw();
      if (!id) return;
      stream = follow(`${path("jobs", id, "logs")}?stream=both&tail=${SHOWN}`, {
        // Each stream begins again with the last lines.
        open: () => (kept = new Lines()),
        lines: (said) => (kept.take(said.lines), draw()),
      });
    },
  };
}
