// The panel of one task: failure reason, output, and for an array its tasks.

import { get, path } from "./api.js";
import { childrenOf, learnEnded } from "./children.js";
import { fill, h, icon, setAttr, setText } from "./dom.js";
import { count, groupOf, inWords, isOver, many, ms, span } from "./format.js";
import { attemptsSection, jobSection, soFar, timesSection, usageSection, whySection } from "./facts.js";
import { lastLines } from "./last_lines.js";
import { Output } from "./output.js";
import { bar, remember, remembered, stateSign } from "./parts.js";
import { reasonsSection } from "./reasons.js";
import { isNode, jobHash, partCount, partsOfId, ran, taskName, waited, why } from "./rows.js";
import { openRetry } from "./retry.js";
import { countsOf, store } from "./store.js";
import { Timeline } from "./timeline.js";

// Interval between requests for an unfinished task: its place in the queue changes without a new state.
const AGAIN_MS = 10000;

// The final state that each kind of explanation means. A result is stored before the platform reports it.
const ENDED = { returned: "SUCCEEDED", failed: "FAILED", cancelled: "CANCELLED" };

export class Detail {
  /** @param {object} on `close()`, `cancel(job)`, `open(job)`; `readOnly()` returns whether canceling is disabled */
  constructor(on) {
    this.on = on;
    this.id = null;
    this.said = null;
    this.state = stateSign();
    this.title = h("h2", { tabindex: "-1", data: { testid: "task-title" } });
    this.state.element.dataset.testid = "task-state";
    this.clock = h("span.quiet");
    this.cancel = h("button.danger", { type: "button", on: { click: () => on.cancel(this.task()) } });
    this.again = h("button", { type: "button", on: { click: () => openRetry(this.task(), (id) => (location.hash = jobHash(id))) } }, "Retry…");
    const wide = h("button.plain.widen", { type: "button", "aria-pressed": "false", "aria-label": "Wide panel", title: "Wide panel" }, icon("wide"));
    const widen = (yes) => (document.body.classList.toggle("wide-panel", yes), setAttr(wide, "aria-pressed", String(yes)));
    wide.addEventListener("click", () => {
      const yes = !document.body.classList.contains("wide-panel");
      widen(yes);
      remember("wide", yes ? "yes" : "no");
    });
    widen(remembered("wide") === "yes");
    const close = h("button.plain", { type: "button", "aria-label": "Close", title: "Close (Esc)", on: { click: on.close } }, icon("close"));
    this.progress = bar();
    this.progressWords = h("p.quiet");
    this.overview = h("div.sections");
    this.last = lastLines();
    this.soFar = soFar();
    this.output = new Output();
    this.timeline = new Timeline({ open: on.open, tallest: () => 320 });
    this.reasons = reasonsSection();
    this.failed = h("ul.failed-children");
    this.children = h("div.sections", {}, this.reasons.element, this.timeline.element, this.failed);
    this.trouble = h("p.trouble", { role: "alert", hidden: true });
    this.parts = new Map();
    const panels = { overview: this.overview, output: this.output.element, children: this.children };
    this.tabs = Object.entries({ overview: "Overview", output: "Output", children: "Tasks" }).map(([key, word]) => {
      const panel = h("div.tabpanel", { role: "tabpanel", id: `panel-${key}`, "aria-labelledby": `tab-${key}` }, panels[key]);
      const tab = h("button.tab", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": `panel-${key}`, on: { click: () => this.choose(key) } }, word);
      return { key, tab, panel };
    });
    const list = h("div.tabs", { role: "tablist", "aria-label": "Task" }, ...this.tabs.map(({ tab }) => tab));
    list.addEventListener("keydown", (event) => this._tabKey(event));
    this.element = h("aside.detail", { "aria-label": "Task", hidden: true },
      h("header.detail-head", {}, h("div.detail-top", {}, this.title, wide, close),
        h("div.detail-state", {}, this.state.element, this.clock, h("span.gap"), this.again, this.cancel), this.progress.element, this.progressWords),
      list, this.trouble, ...this.tabs.map(({ panel }) => panel));
    setInterval(() => this.id && !document.hidden && !this._over() && this._ask(), AGAIN_MS);
  }

  /** Returns the shown task: from the store, from its array's tasks, or as last received. */
  task() {
    if (!this.id) return null;
    const [parent, index] = partsOfId(this.id);
    const known = index === undefined ? store.jobs.get(parent) : childrenOf(parent).list[Number(index)];
    return known ?? this.told;
  }

  /** Shows a task; null shows none. */
  show(id) {
    if (id === this.id) return;
    this.id = id;
    this.said = null;
    this.told = null;
    this.seen = null;
    this.parts.clear();
    this.trouble.hidden = true;
    this.element.hidden = !id;
    this.output.show(null);
    this.last.show(null);
    this.timeline.cursor = -1;
    this.timeline._zoomTo(null);
    fill(this.overview, h("p.note", {}, "Loading…"));
    this.update();
    if (!id) return;
    this.choose(this.whole() ? (remembered("tab") === "overview" ? "overview" : "children") : remembered("tab") === "output" ? "output" : "overview", false);
    this._ask();
  }

  /** Returns the array, or job on several nodes, that is shown as a whole, or null. */
  whole() {
    const task = this.task();
    return task && partCount(task) ? task : null;
  }

  /** Chooses a tab. */
  choose(key, keep = true) {
    if (keep) remember("tab", key === "children" ? "output" : key);
    this.tab = key;
    for (const { key: one, tab, panel } of this.tabs) {
      setAttr(tab, "aria-selected", String(one === key));
      setAttr(tab, "tabindex", one === key ? "0" : "-1");
      panel.hidden = one !== key;
    }
    this.output.show(key === "output" && !this.whole() ? this.id : null);
    this._failOutput();
    this.update();
  }

  _failOutput() {
    if (this.said) this.output.fail(this.said.explanation.traceback);
  }

  /** Stops following while the panel is hidden, and follows again. */
  rest(yes) {
    this.rests = yes;
    this.output.rest(yes);
    this._follow();
  }

  // The overview of a running task shows its last lines of output.
  _follow() {
    const task = this.task();
    const runs = task && this.tab === "overview" && !this.whole() && task.group === "running";
    this.last.show(runs && !this.rests ? this.id : null);
  }

  /** Updates the panel. */
  update() {
    const task = this.task();
    if (!this.id) return;
    const now = Date.now();
    const array = Boolean(task?.array_size);
    const whole = Boolean(this.whole());
    fill(this.title, h("bdi", { text: task ? taskName(task) : this.id }));
    this.state.element.hidden = !task;
    for (const { key, tab } of this.tabs) {
      tab.hidden = key === (whole ? "output" : "children");
      if (key === "children") setText(tab, array ? "Tasks" : "Nodes");
    }
    if (this.tab === (whole ? "output" : "children")) this.choose(whole ? "children" : "output", false);
    this.progress.element.hidden = this.progressWords.hidden = !array;
    this.cancel.hidden = this.on.readOnly() || !task || isOver(task.group) || isNode(task);
    this.again.hidden = this.on.readOnly() || !task || !canRetry(task);
    setText(this.cancel, array ? "Cancel array…" : "Cancel task…");
    if (!task) return;
    this._follow();
    this.soFar.update(task, now);
    this.state.update(task.group, `${task.platform ?? "State"}: ${task.state}`);
    setText(this.clock, times(task, now));
    if (array) {
      this.progress.update(task.by);
      setText(this.progressWords, `${many(task.array_size, "task")}: ${inWords(task.by)}`);
    }
    if (whole && this.tab === "children") this._showChildren(task);
    if (this.seen !== task.changed) {
      const first = this.seen === null;
      this.seen = task.changed;
      if (!first) this._ask();
    }
  }

  _over() {
    const task = this.task();
    return Boolean(this.said && task && isOver(task.group) && isOver(groupOf(this.said.job.state)));
  }

  // At most one request at a time, and one more after it if something changed meanwhile.
  async _ask() {
    if (this.asking) return void (this.askAgain = true);
    const id = this.id;
    if (!id) return;
    this.asking = true;
    try {
      const said = await get(path("jobs", id));
      if (id === this.id) this._tell(said);
    } catch (error) {
      if (id === this.id) {
        setText(this.trouble, error.message);
        this.trouble.hidden = false;
        if (!this.said) fill(this.overview);
      }
    } finally {
      this.asking = false;
      if (this.askAgain || id !== this.id) {
        this.askAgain = false;
        setTimeout(() => this._ask(), id === this.id ? 1000 : 0);
      }
    }
  }

  _tell(said) {
    this.trouble.hidden = true;
    const first = !this.said;
    this.said = said;
    const { job } = said;
    const ended = ENDED[said.explanation.kind];
    if (ended && !job.array_size) learnEnded(job.id, ended);
    job.state = store.stateOf(job.id, job.state);
    const by = this.task()?.by ?? countsOf(job);
    this.told = { ...job, by, size: job.array_size || 1, group: groupOf(job.state), created: ms(job.created_at), started: ms(job.started_at), stopped: ms(job.stopped_at), parent: job.parent || undefined };
    const given = { record: job, explanation: said.explanation, attempts: said.attempts, position: said.position, links: said.links, electron: said.electron, retries: said.retries ?? [], usage: said.usage ?? said.explanation?.usage };
    this._failOutput();
    if (first) fill(this.overview);
    const kind = said.explanation?.kind ?? "";
    this._part("why", whySection, given).dataset.kind = kind;
    if (first) this.overview.append(this.last.element, this.soFar.element);
    this._part("usage", usageSection, given);
    this._part("attempts", attemptsSection, given);
    this._part("times", timesSection, given);
    this._part("job", jobSection, given);
    this.update();
  }

  // A section is replaced only if it changed, so that a text selection in it stays.
  _part(key, make, given) {
    let part = this.parts.get(key);
    const state = JSON.stringify(key === "why" ? [given.explanation, given.position, given.record.reason, given.record.remedy, given.record.warning] : key === "attempts" ? given.attempts : key === "usage" ? [given.usage, given.record] : [given.record, given.links, given.electron, given.retries]);
    if (!part) {
      part = { element: h(`section.part.part-${key}`), state: null };
      this.parts.set(key, part);
      this.overview.append(part.element);
    }
    if (part.state !== state) {
      part.state = state;
      fill(part.element, ...make(given));
    }
    return part.element;
  }

  _showChildren(task) {
    const known = childrenOf(task.id);
    const list = known.list.filter(Boolean);
    this.timeline.set(list, `${task.id} ${known.version}`);
    this.timeline.refresh();
    const failed = list.filter((child) => child.group === "failed");
    this.reasons.update(task.array_size ? [task] : []);
    const state = `${task.id} ${failed.map((child) => child.index + child.error).join()}`;
    if (this.failedState === state) return;
    this.failedState = state;
    fill(this.failed, ...failed.slice(0, 100).map((child) => h("li", {}, icon("failed"),
      h("div", {}, h("a", { href: jobHash(child.id) }, `[${child.index}] failed`), " ", h("bdi.task-call", { text: child.call }), h("div.quiet", {}, h("bdi", { text: why(child) }))))),
      failed.length > 100 ? h("li", {}, `and ${count(failed.length - 100)} more`) : null);
  }

  _tabKey(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const open = this.tabs.filter(({ tab }) => !tab.hidden);
    const next = open[(open.findIndex(({ key }) => key === this.tab) + step + open.length) % open.length];
    this.choose(next.key);
    next.tab.focus();
  }
}

// Commands and nodes have no stored call.
function canRetry(task) {
  const ended = task.by ? task.by.failed + task.by.cancelled > 0 : task.group === "failed" || task.group === "cancelled";
  return ended && task.kind !== "command" && !isNode(task);
}

function times(task, now) {
  if (task.array_size) return isOver(task.group) ? `took ${span(task.stopped - task.created)}` : `for ${span(now - task.created)}`;
  const wait = `waited ${span(waited(task, now))}`;
  const run = ran(task, now);
  return run === null ? wait : `${wait}, ran ${span(run)}`;
}
