// The middle column: one run or all runs, with timeline and tasks.

import { childrenOf } from "./children.js";
import { fill, h, icon, setAttr, setText } from "./dom.js";
import { fitsJob, fitsRun, isFiltered } from "./filters.js";
import { inWords, many } from "./format.js";
import { hoursOf, inHours } from "./resource_hours.js";
import { bar, copyButton, remember, remembered } from "./parts.js";
import { reasonsSection } from "./reasons.js";
import { called } from "./rows.js";
import { runName, runSentence } from "./runs.js";
import { store } from "./store.js";
import { TaskTable, selectionBar } from "./tasks.js";
import { Timeline } from "./timeline.js";

// Maximum number of children in a run's timeline, in addition to its jobs.
const MOST_DRAWN = 20000;
// Maximum number of a run's arrays whose children are read automatically, one after the other.
const MOST_READ = 10;

export class MainView {
  /** @param {object} on `open(task)`, `cancelRun(run)`, `cancelTasks(tasks)`, `retry(jobs)` or null, `watch()`; `readOnly` */
  constructor(on) {
    this.on = on;
    this.scope = "all";
    this.title = h("h2", { data: { testid: "run-title" } });
    this.about = h("p.run-about");
    this.hours = h("p.run-about", { data: { testid: "run-hours" } });
    this.bar = bar();
    this.ids = h("span.run-ids");
    this.cancel = on.readOnly ? null : h("button.danger", { type: "button", on: { click: () => on.cancelRun(this.scope) } }, "Cancel workflow…");
    this.timeline = new Timeline({ open: on.open, tallest: () => Math.max(110, Math.min(260, this.element.clientHeight * 0.34)) });
    this.fold = h("button.fold", { type: "button", "aria-expanded": "true" }, icon("chevron"), "Timeline");
    this.fold.addEventListener("click", () => this._fold(this.fold.getAttribute("aria-expanded") === "true"));
    this.reasons = reasonsSection(on.retry);
    this.note = h("div.empty", { hidden: true });
    this.box = h("section.box", {}, this.fold, this.timeline.element);
    const back = h("a.back", { href: "#/" }, icon("back"), "Workflows");
    this.element = h("section.main", { tabindex: "-1", "aria-label": "Workflow" });
    this.table = new TaskTable(this.element, { open: on.open, expand: on.watch, choose: () => this._chose() });
    this.selection = selectionBar({ cancel: on.readOnly ? null : () => on.cancelTasks(this.table.chosenTasks()), clear: () => this.table.clear() });
    this.head = h("header.main-head", {}, back, h("div.main-top", {}, h("div", {}, this.title, this.ids), this.cancel), this.about, this.bar.element, this.hours);
    this.element.append(this.head, this.reasons.element, this.box, this.note, this.table.element, this.selection.element);
    this._fold(remembered("timeline") === "no");
  }

  /** Shows another run, or "all". */
  show(scope) {
    if (scope === this.scope) return;
    this.scope = scope;
    this.table.clear();
    this.timeline.zoom = null;
    this.timeline.back.hidden = true;
    this.element.scrollTop = 0;
  }

  jobs() {
    return this.scope === "all" ? [...store.jobs.values()] : [...(this.scope?.jobs.values() ?? [])];
  }

  /** Returns the arrays whose tasks are loaded: the open ones, and those of a run with few tasks. */
  arrays() {
    const opened = this.table.expandedJobs();
    if (this.scope === "all" || this.folded) return opened;
    const arrays = this.jobs().filter((job) => job.array_size);
    return arrays.length <= MOST_READ ? [...new Set([...opened, ...arrays])] : opened;
  }

  /** Highlights the task that the panel shows. */
  mark(id) {
    this.table.mark(id);
    this.timeline.mark(id);
  }

  /** Updates the view. */
  update({ loading, error }) {
    const all = this.scope === "all";
    const run = all ? null : this.scope;
    const jobs = this.jobs();
    setText(this.title, "");
    fill(this.title, h("bdi", { text: all ? "All tasks" : run ? runName(run) : "Unknown run" }));
    fill(this.ids, run ? h("bdi.mono", { text: run.run, title: run.run }) : null, run ? copyButton("Copy the run", run.run) : null);
    if (this.cancel) {
      this.cancel.hidden = all || !run;
      this.cancel.disabled = !run?.left;
    }
    this.bar.element.hidden = !jobs.length;
    this.bar.update(run?.counts ?? store.totals);
    this.reasons.update(all ? [] : jobs);
    this.table.set(jobs, all);
    this.tick();
    this._empty(jobs, loading, error);
    this._chose();
  }

  /** Updates what changes with time. */
  tick() {
    const run = this.scope === "all" ? null : this.scope;
    const total = Object.values(store.totals).reduce((a, b) => a + b, 0);
    setText(this.about, run ? runSentence(run, Date.now()) : total ? `${many(total, "task")} of ${many(store.runs.size, "run")}: ${inWords(store.totals)}` : "");
    this._tellHours();
    this.table.tick();
    if (!this.folded) this._draw();
  }

  // For all runs together, array tasks are not loaded, so only one run shows hours.
  _tellHours() {
    const run = this.scope === "all" ? null : this.scope;
    const found = run ? hoursOf(run.jobs.values(), Date.now()) : null;
    this.hours.hidden = !found || !(found.vcpu || found.gb);
    if (!found) return;
    const left = found.left ? `, without ${many(found.left, "array")}; open ${found.left === 1 ? "it" : "them"} to load the tasks` : "";
    setText(this.hours, `${inHours(found)}${left}`);
  }

  _draw() {
    const all = this.scope === "all";
    const drawn = all ? drawnRuns() : drawnTasks(this.jobs().filter(fitsJob));
    const version = all ? 0 : this.table.expandable.reduce((sum, job) => sum + childrenOf(job.id).version, 0);
    this.timeline.set(drawn, `${store.version} ${this.scope?.key ?? "all"} ${version} ${drawn.length}`, all ? "run" : "task");
    if (drawn.some((task) => !task.stopped)) this.timeline.refresh();
  }

  _empty(jobs, loading, error) {
    const shown = jobs.filter(fitsJob).length;
    this.note.hidden = shown > 0;
    this.table.element.hidden = !shown;
    this.box.hidden = !shown;
    if (shown) return;
    const said = loading ? ["Loading…", ""]
      : error && !jobs.length ? ["Nothing to show", "The jobs could not be loaded; see the message at the top."]
      : this.scope === null ? ["Run not found", "It may be older than the listed jobs. Select a longer period in “Submitted within” at the top."]
      : jobs.length && isFiltered() ? ["No tasks match the filter", "Remove a filter at the top to see more."]
      : ["No farcall jobs yet", "New jobs appear here automatically. Select a longer period in “Submitted within” at the top, or run farcall demo."];
    const state = said.join();
    if (this.note.dataset.state === state) return;
    this.note.dataset.state = state;
    fill(this.note, loading ? h("span.spinner", { "aria-hidden": "true" }) : null, h("h3", { text: said[0] }), h("p", { text: said[1] }));
  }

  _chose() {
    this.selection.update(this.table.chosenTasks());
  }

  _fold(yes) {
    this.folded = yes;
    setAttr(this.fold, "aria-expanded", String(!yes));
    this.timeline.element.hidden = yes;
    remember("timeline", yes ? "no" : "yes");
    if (!yes && this.table) this._draw();
    this.on.watch();
  }
}

// The view of all tasks draws runs, because single tasks would be too small to see.
function drawnRuns() {
  return store.newest().filter(fitsRun).map((run) => ({
    id: run.key,
    run,
    label: runName(run),
    created: run.created,
    started: Number.isFinite(run.started) ? run.started : begun(run.counts, run.created),
    stopped: run.left ? null : run.stopped,
    group: run.left ? furthest(run.counts) : run.counts.failed ? "failed" : run.counts.cancelled ? "cancelled" : "succeeded",
    mark: run.counts.failed ? "failed" : undefined,
  }));
}

const furthest = (counts) => ["running", "starting", "waiting"].find((group) => counts[group]);

// Batch does not report when an array's first task started, so it is drawn from its submission.
const begun = (counts, created) => (counts.running + counts.succeeded + counts.failed ? created : null);

// If array tasks are known, they are drawn instead of their array.
function drawnTasks(jobs) {
  const drawn = [];
  for (const job of jobs) {
    const known = job.array_size ? childrenOf(job.id).list : [];
    if (known.length && drawn.length + known.length < MOST_DRAWN) {
      for (const child of known) if (child) drawn.push(child);
    } else {
      const label = job.array_size ? `${called(job)} × ${job.array_size}` : called(job);
      drawn.push({ ...job, label, started: job.started ?? (job.array_size ? begun(job.by, job.created) : null) });
    }
  }
  return drawn;
}
