// The task table: sorted, filtered, selectable, with array tasks and nodes below their jobs.

import { childrenOf } from "./children.js";
import { h, setAttr, setText } from "./dom.js";
import { fitsChild, fitsJob } from "./filters.js";
import { isOver } from "./format.js";
import { COLUMNS, isNode, makeRow, partCount, partsOfId, updateRow } from "./rows.js";
import { VirtualList } from "./virtual.js";

export class TaskTable {
  /**
   * @param {HTMLElement} scroller what scrolls
   * @param {object} on `open(job)`, `expand()` after an array was opened or closed,
   *   `choose()` after a choice
   */
  constructor(scroller, on) {
    this.on = on;
    this.jobs = [];
    this.expandable = [];
    this.chosen = new Set();
    this.expanded = new Set();
    this.sort = { column: COLUMNS[0], way: -1 };
    this.active = null;
    this.opened = null;
    this.sizer = h("div.rows", { role: "rowgroup" });
    this.all = h("input", { type: "checkbox", "aria-label": "Select all", on: { change: () => this._chooseAll(this.all.checked) } });
    this.heads = COLUMNS.map((column) => this._head(column));
    this.top = h("div.head", { role: "row", "aria-rowindex": "1" }, h("div.cell.pick", { role: "columnheader", "aria-label": "Selected" }, this.all), ...this.heads);
    this.element = h("div.tasks", { role: "treegrid", "aria-label": "Tasks", "aria-multiselectable": "true", tabindex: "0" }, h("div.top", { role: "rowgroup" }, this.top), this.sizer);
    this.list = new VirtualList(scroller, this.sizer, {
      key: (job) => job.id,
      create: () => this._row(),
      update: (row, job, position) => updateRow(row, job, this._how(job, position)),
    });
    this.element.addEventListener("keydown", (event) => this._key(event));
  }

  /** Shows the matching jobs; `all` is true if they belong to several runs. */
  set(jobs, all = this.element.classList.contains("all")) {
    this.element.classList.toggle("all", all);
    this.jobs = jobs.filter(fitsJob);
    const now = Date.now();
    const { column, way } = this.sort;
    const keys = new Map(this.jobs.map((job) => [job, column.value(job, now)]));
    this.jobs.sort((a, b) => way * compared(keys.get(a), keys.get(b)) || b.created - a.created || (a.id < b.id ? -1 : 1));
    this._lay();
  }

  /** Draws the visible rows. */
  tick() {
    this.list.refresh();
  }

  /** Returns the arrays whose tasks are shown, the last opened one first. */
  expandedJobs() {
    const opened = new Map(this.expandable.filter((job) => this.expanded.has(job.id)).map((job) => [job.id, job]));
    return [...this.expanded].reverse().map((id) => opened.get(id)).filter(Boolean);
  }

  /** Returns the selected jobs and array tasks that are still shown. */
  chosenTasks() {
    return this.list.items.filter((job) => this.chosen.has(job.id));
  }

  /** Returns the task at the cursor, if any. */
  activeTasks() {
    return this.list.items.filter((job) => job.id === this.active);
  }

  /** Clears the selection. */
  clear() {
    this.chosen.clear();
    this._chose();
  }

  /** Marks the task that the panel shows. */
  mark(id) {
    this.opened = id;
    if (id) this.active = id;
    this.list.refresh();
  }

  _lay() {
    const items = [];
    for (const job of this.jobs) {
      items.push(job);
      if (!this.expanded.has(job.id)) continue;
      for (const child of childrenOf(job.id).list) if (child && fitsChild(child)) items.push(child);
    }
    this.expandable = this.jobs.filter(partCount);
    this.element.classList.toggle("arrays", this.expandable.length > 0);
    setAttr(this.element, "aria-rowcount", items.length + 1);
    this.heads.forEach((head, n) => {
      const here = COLUMNS[n] === this.sort.column;
      setAttr(head, "aria-sort", here ? (this.sort.way > 0 ? "ascending" : "descending") : null);
    });
    this.list.set(items);
    this._chose(false);
  }

  _how(job, position) {
    const active = job.id === this.active;
    if (active) setAttr(this.element, "aria-activedescendant", `row-${job.id}`);
    const expanded = this.expanded.has(job.id);
    // The row of an array task is hidden while its array is collapsed.
    const open = job.id === this.opened || (!expanded && job.id === partsOfId(this.opened ?? "")[0]);
    return { position, active, chosen: this.chosen.has(job.id), open, expanded };
  }

  _head(column) {
    const button = h("button.sort", { type: "button" }, column.word);
    button.addEventListener("click", () => {
      const way = this.sort.column === column ? -this.sort.way : column.first;
      this.sort = { column, way };
      this.set(this.jobs);
    });
    return h(`div.cell.${column.cell}`, { role: "columnheader" }, button);
  }

  _row() {
    const row = makeRow();
    const job = () => this.list.items.find((one) => one.id === row.dataset.id);
    row.parts.check.addEventListener("click", (event) => this._choose(job(), event.shiftKey));
    row.parts.more.addEventListener("click", () => this._expand(job()));
    row.addEventListener("click", (event) => {
      if (event.target.closest("input, button, a") || String(getSelection())) return;
      if (event.target.closest(".pick")) this._choose(job(), event.shiftKey);
      else this.on.open(job());
    });
    return row;
  }

  _expand(job, open = !this.expanded.has(job.id)) {
    if (!partCount(job) || open === this.expanded.has(job.id)) return;
    if (open) this.expanded.add(job.id);
    else this.expanded.delete(job.id);
    this._lay();
    this.on.expand();
  }

  _choose(job, range = false) {
    const on = !this.chosen.has(job.id);
    const { items } = this.list;
    const to = items.indexOf(job);
    const from = range ? items.findIndex((one) => one.id === this.last) : -1;
    const some = from < 0 ? [job] : items.slice(Math.min(from, to), Math.max(from, to) + 1);
    for (const one of some.filter((each) => !isNode(each))) if (on) this.chosen.add(one.id);
      else this.chosen.delete(one.id);
    this.last = job.id;
    this.active = job.id;
    this._chose();
  }

  _chooseAll(on) {
    this.chosen.clear();
    if (on) for (const job of this.jobs) this.chosen.add(job.id);
    this._chose();
  }

  _chose(tell = true) {
    const here = this.jobs.filter((job) => this.chosen.has(job.id)).length;
    this.all.checked = here > 0 && here === this.jobs.length;
    this.all.indeterminate = here > 0 && here < this.jobs.length;
    this.list.refresh();
    if (tell) this.on.choose();
  }

  _key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("button")) return;
    const { items } = this.list;
    const at = items.findIndex((job) => job.id === this.active);
    const job = items[at];
    const page = Math.max(1, Math.floor(this.list.scroller.clientHeight / (this.list.height || 48)) - 2);
    const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in moves) this._goto(Math.max(0, Math.min(items.length - 1, at + moves[event.key])));
    else if (!job) return;
    else if (event.key === "Enter") this.on.open(job);
    else if (event.key === "x" || event.key === " ") this._choose(job, event.shiftKey);
    else if (event.key === "ArrowRight") this._expand(job, true);
    else if (event.key === "ArrowLeft" && this.expanded.has(job.id)) this._expand(job, false);
    else if (event.key === "ArrowLeft" && job.parent) this._goto(items.findIndex((one) => one.id === job.parent));
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Moves the cursor to a row. */
  _goto(at) {
    const job = this.list.items[at];
    if (!job) return;
    this.active = job.id;
    this.list.reveal(at, this.top.offsetHeight);
  }
}

const compared = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

/** Shows the number of selected tasks, and buttons for them. */
export function selectionBar({ cancel, clear }) {
  const words = h("span", { role: "status" });
  const button = cancel && h("button.danger", { type: "button", on: { click: cancel } }, "Cancel selected…");
  const element = h("div.selection", { hidden: true, data: { testid: "selection" } }, words, h("span.gap"), button,
    h("button", { type: "button", on: { click: clear } }, "Clear selection"));
  return {
    element,
    update(tasks) {
      element.hidden = !tasks.length;
      setText(words, `${tasks.length} selected`);
      if (button) button.disabled = tasks.every((job) => isOver(job.group));
    },
  };
}
