// The list of runs, grouped by workflow with the newest run shown; the workflow that ran last is
// first.

import { h, icon, setAttr, setText } from "./dom.js";
import { fitsRun } from "./filters.js";
import { ago, brief, clock, count, inWords, many, moment, span } from "./format.js";
import { bar } from "./parts.js";
import { store } from "./store.js";
import { VirtualList } from "./virtual.js";

/** Returns the address of a run in this page. */
export const runHash = (run) => `#/run/${encodeURIComponent(run.run)}/${encodeURIComponent(run.workflow)}`;

/** Returns a run's name for people. */
export const runName = (run) => run.workflow || "(no name)";

/** Makes the list; `update(chosen)` updates it. */
export function runsList() {
  const all = h("a.run.all", { href: "#/all" }, h("span.run-name", { text: "All tasks" }), h("span.run-when"));
  const sizer = h("div.rows", { role: "list" });
  const note = h("p.note", { hidden: true });
  const element = h("nav.runs", { "aria-label": "Workflows" }, h("h2.pane-title", { text: "Workflows" }), all, note, sizer);
  const opened = new Set();
  let chosen = null;
  let groups = [];
  const list = new VirtualList(element, sizer, {
    key: ({ run }) => run.key,
    create: () => makeCard(toggle),
    update: (card, item) => updateCard(card, item, item.run === chosen),
  });

  function lay() {
    list.set(groups.flatMap(({ name, runs: [newest, ...earlier] }) => {
      const isOpen = opened.has(name);
      const head = { run: newest, name, earlier, isOpen };
      return [head, ...(isOpen ? earlier.map((run) => ({ run, name, isEarlier: true })) : [])];
    }));
  }

  function toggle(name, open = !opened.has(name)) {
    if (open) opened.add(name);
    else opened.delete(name);
    lay();
  }

  element.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    const way = { ArrowRight: true, ArrowLeft: false }[event.key];
    const key = event.target.closest("[data-key]")?.dataset.key;
    if ((!step && way === undefined) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const at = key === undefined ? -1 : list.items.findIndex(({ run }) => run.key === key);
    if (way !== undefined) return at < 0 ? undefined : toggle(list.items[at].name, way);
    const next = at + step;
    if (next < 0) return all.focus();
    if (!list.items[next]) return;
    list.reveal(next);
    list.shown.get(list.items[next].run.key)?.parts.link.focus();
  });

  return {
    element,
    tick: () => list.refresh(),
    update(scope, loading) {
      const before = chosen;
      chosen = scope === "all" ? null : scope;
      setAttr(all, "aria-current", scope === "all" ? "true" : null);
      const tasks = Object.values(store.totals).reduce((a, b) => a + b, 0);
      setText(all.lastChild, tasks ? count(tasks) : "");
      const runs = store.newest().filter(fitsRun);
      note.hidden = runs.length > 0;
      if (!runs.length) setText(note, store.runs.size ? "No workflows match the filter." : loading ? "Loading…" : "No workflows yet.");
      groups = grouped(runs);
      // A link to an earlier run opens its group.
      if (chosen !== before) for (const { name, runs: some } of groups) if (some.indexOf(chosen) > 0) opened.add(name);
      lay();
    },
  };
}

// Runs by workflow and user, ordered by the newest run.
function grouped(runs) {
  const found = new Map();
  for (const run of runs) {
    const name = `${run.user}/${run.workflow}`;
    if (!found.has(name)) found.set(name, { name, runs: [] });
    found.get(name).runs.push(run);
  }
  return [...found.values()];
}

function makeCard(toggle) {
  const parts = { name: h("bdi.run-name"), when: h("span.run-when"), bar: bar(), who: h("bdi.run-who"), bad: h("span.run-bad"), said: h("span.run-said"), number: h("span") };
  parts.link = h("a.run", { data: { testid: "run" } },
    h("span.run-top", {}, parts.name, parts.when), h("span.run-mid", {}, parts.who, h("span.run-news", {}, parts.bad, parts.said)), parts.bar.element);
  parts.more = h("button.plain.earlier", { type: "button", on: { click: () => toggle(card.dataset.name) } }, icon("chevron"), parts.number);
  const card = h("div.row", { role: "listitem" }, parts.link, parts.more);
  card.parts = parts;
  return card;
}

function updateCard(card, { run, name, earlier = [], isOpen = false, isEarlier = false }, chosen) {
  const { parts } = card;
  const now = Date.now();
  const known = Number.isFinite(run.created);
  Object.assign(card.dataset, { key: run.key, name });
  card.classList.toggle("is-earlier", isEarlier);
  setText(parts.name, isEarlier && known ? clock(run.created, now, false) : runName(run));
  setText(parts.when, known ? ago(run.created, now) : "");
  setText(parts.who, !isEarlier && store.users.size > 1 ? run.user : "");
  setText(parts.bad, run.counts.failed ? `${count(run.counts.failed)} failed · ` : "");
  setText(parts.said, said(run, now));
  parts.bar.update(run.counts);
  setAttr(parts.link, "href", runHash(run));
  setAttr(parts.link, "title", `${run.run}\nsubmitted ${known ? moment(run.created) : ""}`);
  setAttr(parts.link, "aria-current", chosen ? "true" : null);
  Object.assign(parts.link.dataset, { run: run.run, workflow: run.workflow });
  parts.more.hidden = !earlier.length;
  const bad = earlier.filter((one) => one.counts.failed).length;
  const about = `${many(earlier.length, "earlier run")} of ${runName(run)}${bad ? `, ${count(bad)} with failures` : ""}`;
  setText(parts.number, earlier.length ? `+${count(earlier.length)}` : "");
  parts.more.classList.toggle("bad", bad > 0);
  setAttr(parts.more, "aria-expanded", String(isOpen));
  setAttr(parts.more, "aria-label", `${isOpen ? "Hide" : "Show"} ${about}`);
  setAttr(parts.more, "title", about);
}

// Next to the failures, the card shows one more number: that of the current state.
function said(run, now) {
  const first = ["running", "starting", "waiting"].find((key) => run.counts[key]);
  const ended = inWords(run.counts, ["cancelled"]) || (run.counts.failed ? "" : many(run.size, "task"));
  const news = first ? inWords(run.counts, [first]) : ended;
  const time = brief((run.left || !run.stopped ? now : run.stopped) - run.created);
  return [news, time].filter(Boolean).join(" · ");
}

/** Says in a sentence how a run is. */
export function runSentence(run, now) {
  const time = run.left || !run.stopped ? `running for ${span(now - run.created)}` : `in ${span(run.stopped - run.created)}`;
  return `${many(run.size, "task")}: ${inWords(run.counts)}; ${time}, since ${clock(run.created, now)}`;
}
