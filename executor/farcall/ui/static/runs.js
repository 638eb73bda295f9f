// The list of runs, the newest first.

import { h, setAttr, setText } from "./dom.js";
import { fitsRun } from "./filters.js";
import { ago, brief, clock, count, inWords, many, moment, span } from "./format.js";
import { bar } from "./parts.js";
import { store } from "./store.js";
import { VirtualList } from "./virtual.js";

/** Returns the address of a run in this page. */
export const runHash = (run) => `#/run/${encodeURIComponent(run.run)}/${encodeURIComponent(run.workflow)}`;

/** Returns a run's name for people. */
export const runName = (run) => run.workflow || "(no name)";

/** Makes the list; `update(chosen)` shows it as it is by now. */
export function runsList() {
  const all = h("a.run.all", { href: "#/all" }, h("span.run-name", { text: "All tasks" }), h("span.run-when"));
  const sizer = h("div.rows", { role: "list" });
  const note = h("p.note", { hidden: true });
  const element = h("nav.runs", { "aria-label": "Workflows" }, h("h2.pane-title", { text: "Workflows" }), all, note, sizer);
  let chosen = null;
  const list = new VirtualList(element, sizer, {
    key: (run) => run.key,
    create: makeCard,
    update: (card, run) => updateCard(card, run, run === chosen),
  });

  element.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    const key = event.target.dataset?.key;
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const at = key === undefined ? -1 : list.items.findIndex((run) => run.key === key);
    const next = at + step;
    if (next < 0) return all.focus();
    if (!list.items[next]) return;
    list.reveal(next);
    list.shown.get(list.items[next].key)?.firstChild.focus();
  });

  return {
    element,
    tick: () => list.refresh(),
    update(scope, loading) {
      chosen = scope === "all" ? null : scope;
      setAttr(all, "aria-current", scope === "all" ? "true" : null);
      const tasks = Object.values(store.totals).reduce((a, b) => a + b, 0);
      setText(all.lastChild, tasks ? count(tasks) : "");
      const runs = store.newest().filter(fitsRun);
      note.hidden = runs.length > 0;
      if (!runs.length) setText(note, store.runs.size ? "No workflow fits the filter." : loading ? "Asking Batch…" : "None yet.");
      list.set(runs);
    },
  };
}

function makeCard() {
  const parts = { name: h("bdi.run-name"), when: h("span.run-when"), bar: bar(), who: h("bdi.run-who"), bad: h("span.run-bad"), said: h("span.run-said") };
  const link = h("a.run", { data: { testid: "run" } },
    h("span.run-top", {}, parts.name, parts.when), h("span.run-mid", {}, parts.who, h("span.run-news", {}, parts.bad, parts.said)), parts.bar.element);
  const card = h("div.row", { role: "listitem" }, link);
  card.parts = { ...parts, link };
  return card;
}

function updateCard(card, run, chosen) {
  const { parts } = card;
  const now = Date.now();
  setText(parts.name, runName(run));
  setText(parts.when, Number.isFinite(run.created) ? ago(run.created, now) : "");
  setText(parts.who, store.users.size > 1 ? run.user : "");
  setText(parts.bad, run.counts.failed ? `${count(run.counts.failed)} failed · ` : "");
  setText(parts.said, said(run, now));
  parts.bar.update(run.counts);
  setAttr(parts.link, "href", runHash(run));
  setAttr(parts.link, "title", `${run.run}\nsubmitted ${Number.isFinite(run.created) ? moment(run.created) : ""}`);
  setAttr(parts.link, "aria-current", chosen ? "true" : null);
  Object.assign(parts.link.dataset, { key: run.key, run: run.run, workflow: run.workflow });
}

// The card has room for one more number than that of the failures: what it is about now.
function said(run, now) {
  const first = ["running", "starting", "waiting"].find((key) => run.counts[key]);
  const news = first ? inWords(run.counts, [first]) : run.counts.failed ? "" : many(run.size, "task");
  const time = brief((run.left || !run.stopped ? now : run.stopped) - run.created);
  return [news, time].filter(Boolean).join(" · ");
}

/** Says in a sentence how a run is. */
export function runSentence(run, now) {
  const time = run.left || !run.stopped ? `for ${span(now - run.created)} now` : `in ${span(run.stopped - run.created)}`;
  return `${many(run.size, "task")}: ${inWords(run.counts)}; ${time}, since ${clock(run.created, now)}`;
}
