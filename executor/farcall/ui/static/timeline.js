// The timeline, on a canvas: a row per task, pale while it waits, solid while it runs.
// For many tasks, it shows how many ran at a time, and the distribution of their durations.

import { MANY, curve, inParts, ranAt } from "./concurrency.js";
import { fill, frame, h, setAttr, setText } from "./dom.js";
import { GROUPS, clock, count, isOver, many, span, wordOf } from "./format.js";
import { histogram } from "./histogram.js";
import { layout, summary, ticks } from "./timescale.js";

const AXIS = 22;
const GUTTER = 148;
const CURVE_GUTTER = 44;
// Minimum distance in pixels between the names of two rows.
const LINE = 12;
// Maximum distance in pixels between the pointer and a failure mark.
const NEAR = 6;

export class Timeline {
  /**
   * @param {object} options `open(task)` is called for the task that is chosen; `tallest()` gives
   *   the height in CSS pixels that the rows may take
   */
  constructor({ open, tallest }) {
    this.open = open;
    this.tallest = tallest;
    this.tasks = [];
    this.cursor = -1;
    this.zoom = null;
    this.canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": "Timeline", "aria-roledescription": "timeline" });
    this.tip = h("div.tip", { hidden: true, role: "status", data: { testid: "timeline-tip" } });
    this.band = h("div.band", { hidden: true });
    this.back = h("button.small.unzoom", { type: "button", hidden: true, on: { click: () => this._zoomTo(null) } }, "Reset zoom");
    this.summary = h("p.summary", { data: { testid: "timeline-summary" } });
    this.probe = h("span", { hidden: true });
    this.stage = h("div.stage", {}, this.probe, this.canvas, this.band, this.tip, this.back);
    this.durations = histogram("Duration", span);
    this.spread = h("div.spread", {}, this.durations.element);
    this.legend = h("ul.legend", { data: { testid: "timeline-legend" } });
    this.element = h("div.timeline", {}, this.summary, this.stage, this.legend, this.spread);
    this._paint = () => this.paint();
    this._listen();
    new ResizeObserver(() => this.refresh()).observe(this.stage);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.refresh());
    document.addEventListener("farcall:theme", () => this.refresh());
  }

  /** Shows these tasks (or runs: `noun`); each has id, label, created, started, stopped, group. */
  set(tasks, version, noun = "task") {
    if (this.version === version) return;
    this.version = version;
    this.noun = noun;
    const chosen = this.tasks[this.cursor]?.id;
    this.tasks = tasks.filter((task) => task.created !== null).sort((a, b) => a.created - b.created || (a.index ?? 0) - (b.index ?? 0));
    this.cursor = chosen ? this.tasks.findIndex((task) => task.id === chosen) : -1;
    this.curve = noun === "task" && tasks.length > MANY ? curve(this.tasks) : null;
    setAttr(this.element, "data-crowd", String(Boolean(this.curve)));
    setAttr(this.canvas, "aria-label", this.curve ? "Timeline: how many tasks ran at a time" : "Timeline");
    this._spread();
    this._legend();
    this.refresh();
  }

  // Names the colors. A row is pale while its task waits, then has the color of the task's state; the
  // curve has one color, with a tick at the end of each failed or cancelled task.
  _legend() {
    const groups = new Set(this.tasks.map((task) => task.group));
    const ofRow = ({ key }) => key === "waiting" || groups.has(key);
    const ofCurve = ({ key }) => key === "running" || (isMarked(key) && groups.has(key));
    const shown = this.tasks.length ? GROUPS.filter(this.curve ? ofCurve : ofRow) : [];
    const items = shown.map(({ key, word }) => ({ key, word: this.curve && key === "running" ? "Running at a time" : word }));
    const state = items.map(({ word }) => word).join();
    if (state === this.shownLegend) return;
    this.shownLegend = state;
    fill(this.legend, ...items.map(({ key, word }) => h("li", { data: { group: key, ...(this.curve && isMarked(key) && { tick: "" }) } }, h("i"), word)));
  }

  /** Highlights the open task. */
  mark(id) {
    this.marked = id;
    this.refresh();
  }

  /** Draws again in the next frame. */
  refresh() {
    frame(this._paint);
  }

  paint() {
    const width = this.stage.clientWidth;
    if (!width) return;
    const now = Date.now();
    setText(this.summary, summary(this.tasks, now, this.noun));
    const { tasks } = this;
    const pitch = Math.min(16, this.tallest() / Math.max(1, tasks.length));
    const gutter = this.curve ? CURVE_GUTTER : tasks.length ? Math.min(GUTTER, width * 0.25) : 0;
    this.view = layout(tasks, { now, width, gutter, zoom: this.zoom });
    this.pitch = pitch;
    const height = this.curve ? Math.ceil(Math.min(150, this.tallest())) + AXIS : Math.max(48, Math.ceil(pitch * tasks.length) + AXIS);
    const scale = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
      this.canvas.style.setProperty("height", `${height}px`);
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const color = (name) => this._color(name);
    this._axis(pen, color, height, now);
    const marked = tasks.findIndex((task) => task.id === this.marked);
    if (this.curve) return this._curve(pen, color, height - AXIS, now, marked);
    if (marked >= 0) {
      pen.fillStyle = color("accent-soft");
      pen.fillRect(0, marked * pitch, width, Math.max(3, pitch));
    }
    this._bars(pen, color, now);
    this._labels(pen, color, gutter, marked);
    if (this.cursor >= 0) {
      pen.strokeStyle = color("accent");
      pen.lineWidth = 2;
      pen.strokeRect(1, this.cursor * pitch, width - 2, Math.max(3, pitch));
    }
  }

  // A canvas does not support light-dark(); an element's computed color does.
  _color(name) {
    this.probe.style.setProperty("color", `var(--${name})`);
    return getComputedStyle(this.probe).color;
  }

  _axis(pen, color, height, now) {
    const { from, to, left, right, x } = this.view;
    pen.font = `11px ${getComputedStyle(this.canvas).fontFamily}`;
    pen.textBaseline = "middle";
    pen.textAlign = "center";
    for (const { at, text } of ticks(from, to, right - left)) {
      const place = Math.round(x(at)) + 0.5;
      pen.fillStyle = color("line");
      pen.fillRect(place - 0.5, 0, 1, height - AXIS + 3);
      const half = pen.measureText(text).width / 2;
      if (place - half < left - 2 || place + half > right + 2) continue;
      pen.fillStyle = color("muted");
      pen.fillText(text, place, height - AXIS / 2 + 2);
    }
    if (now < from || now > to || !this.tasks.some((task) => !isOver(task.group))) return;
    pen.fillStyle = color("accent");
    pen.fillRect(Math.round(x(now)), 0, 1.5, height - AXIS + 3);
  }

  _bars(pen, color, now) {
    const { pitch, view, tasks } = this;
    const gap = pitch >= 5 ? Math.min(3, pitch * 0.25) : 0;
    const tall = Math.max(1, pitch - gap);
    const least = tasks.length > 200 ? 1.5 : 3;
    const late = [];
    pen.save();
    pen.beginPath();
    pen.rect(view.left, 0, view.right - view.left, pitch * tasks.length + 2);
    pen.clip();
    // One color after the other, because changing the color costs more than a bar.
    const paint = new Map();
    const put = (name, x, y, wide) => (paint.get(name) ?? paint.set(name, []).get(name)).push(x, y, wide);
    tasks.forEach((task, n) => {
      const y = n * pitch + gap / 2;
      const end = task.stopped ?? now;
      const begun = task.started ?? end;
      put("pale", view.x(task.created), y, Math.max(1, view.x(begun) - view.x(task.created)));
      if (task.started) put(task.group, view.x(begun), y, Math.max(least, view.x(end) - view.x(begun)));
      const mark = task.mark ?? task.group;
      if (isMarked(mark)) late.push([mark, view.x(end), y]);
    });
    const order = ["pale", "waiting", "starting", "running", "succeeded", "cancelled", "failed"];
    for (const name of order) {
      pen.fillStyle = color(`bar-${name}`);
      const bars = paint.get(name) ?? [];
      // One failure among thousands must be visible.
      const high = name === "failed" ? Math.max(2, tall) : tall;
      for (let i = 0; i < bars.length; i += 3) pen.fillRect(bars[i], bars[i + 1], bars[i + 2], high);
    }
    pen.restore();
    this._marks(pen, color, late, tall);
  }

  // A cross for failed and a stroke for cancelled tasks, so that color is not the only sign.
  _marks(pen, color, late, tall) {
    if (tall < 6) return;
    const size = Math.min(4, tall / 2 - 1);
    pen.lineWidth = 1.75;
    for (const [mark, end, top] of late) {
      const x = Math.min(end + size + 4, this.view.right - size - 1);
      if (x < this.view.left) continue;
      const y = top + tall / 2;
      pen.strokeStyle = color(mark);
      pen.beginPath();
      pen.moveTo(x - size, y - size);
      pen.lineTo(x + size, y + size);
      if (mark === "failed") {
        pen.moveTo(x + size, y - size);
        pen.lineTo(x - size, y + size);
      }
      pen.stroke();
    }
  }

  // The number of running tasks as an area; failed and cancelled tasks are marked at their end.
  _curve(pen, color, height, now, marked) {
    const { from, to, left, right, x } = this.view;
    const top = 10;
    const floor = height - 8;
    const peak = Math.max(1, this.curve.peak);
    const y = (n) => floor - ((floor - top) * n) / peak;
    pen.textAlign = "right";
    for (const n of new Set([0, peak > 3 ? Math.round(peak / 2) : 0, peak])) {
      pen.fillStyle = color("line");
      pen.fillRect(left, Math.round(y(n)), right - left, 1);
      pen.fillStyle = color("muted");
      pen.fillText(count(n), left - 8, y(n));
    }
    const wide = Math.max(1, Math.floor(Math.min(right, x(now)) - left));
    pen.fillStyle = color("bar-running");
    inParts(this.curve, from, from + ((to - from) * wide) / (right - left), wide).forEach((n, at) => {
      if (n) pen.fillRect(left + at, y(n), 1, floor - y(n));
    });
    for (const mark of ["cancelled", "failed"]) {
      pen.fillStyle = color(`bar-${mark}`);
      for (const task of this.tasks) if (task.group === mark && task.stopped >= from && task.stopped <= to) pen.fillRect(x(task.stopped) - 1, floor + 1, 2, 7);
    }
    const task = this.tasks[this.cursor] ?? this.tasks[marked];
    if (!task) return;
    pen.fillStyle = color("accent");
    pen.fillRect(x(task.started ?? task.created) - 1, 0, 2, height);
  }

  _spread() {
    const over = this.curve ? this.tasks.filter((task) => task.started && task.stopped) : [];
    this.durations.update(over.map((task) => task.stopped - task.started));
  }

  // Returns the failed or cancelled task whose mark is near a point of the curve.
  _nearest(place) {
    let found = null;
    let least = NEAR;
    for (const task of this.tasks) {
      const away = isMarked(task.group) ? Math.abs(this.view.x(task.stopped) - place) : Infinity;
      if (away < least) [found, least] = [task, away];
    }
    return found;
  }

  // If the rows are lower than a line of text, only some have a name, and always the open task.
  _labels(pen, color, gutter, marked) {
    const { font } = pen;
    const every = Math.ceil(LINE / this.pitch);
    pen.textAlign = "left";
    this.tasks.forEach((task, n) => {
      const isOpen = n === marked;
      if (!isOpen && (n % every || (marked >= 0 && Math.abs(n - marked) < every))) return;
      pen.font = isOpen ? `bold ${font}` : font;
      pen.fillStyle = color(isOpen ? "text" : "muted");
      pen.fillText(cut(pen, task.label, gutter - 14), 2, (n + 0.5) * this.pitch + 0.5);
    });
  }

  _listen() {
    let from = null;
    const at = (event) => event.clientX - this.canvas.getBoundingClientRect().left;
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.button || !this.tasks.length) return;
      from = at(event);
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (from !== null && Math.abs(at(event) - from) > 5) this._drag(from, at(event));
      else this._point(event.offsetY, event.offsetX);
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const to = at(event);
      const begun = from;
      from = null;
      this.band.hidden = true;
      if (begun === null) return;
      if (Math.abs(to - begun) > 5) this._zoomTo([this.view.t(Math.min(begun, to)), this.view.t(Math.max(begun, to))]);
      else {
        const task = this.curve ? this._nearest(event.offsetX) : this.tasks[this._row(event.offsetY)];
        if (task) this.open(task);
      }
    });
    this.canvas.addEventListener("pointercancel", () => ((from = null), (this.band.hidden = true)));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    this.canvas.addEventListener("dblclick", () => this._zoomTo(null));
    this.canvas.addEventListener("blur", () => this._move(-1));
    this.canvas.addEventListener("keydown", (event) => this._key(event));
  }

  _key(event) {
    const last = this.tasks.length - 1;
    const moves = { ArrowDown: 1, ArrowRight: 1, j: 1, ArrowUp: -1, ArrowLeft: -1, k: -1, PageDown: 20, PageUp: -20, Home: -1e9, End: 1e9 };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) this._move(Math.max(0, Math.min(last, this.cursor + moves[event.key])));
    else if (event.key === "Enter" && this.tasks[this.cursor]) this.open(this.tasks[this.cursor]);
    else if (event.key === "Escape" && this.zoom) this._zoomTo(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  _move(n) {
    this.cursor = Math.min(n, this.tasks.length - 1);
    this.refresh();
    if (this.cursor < 0) this.tip.hidden = true;
    else if (this.curve) this._tell(this.tasks[this.cursor], 24, this.view.left);
    else this._tell(this.tasks[this.cursor], (this.cursor + 1) * this.pitch, this.view.left);
  }

  _row(y) {
    return Math.floor(y / this.pitch);
  }

  _point(y, x) {
    const task = this.curve ? this._nearest(x) : this.tasks[this._row(y)];
    this.canvas.classList.toggle("hot", Boolean(task));
    if (!task && this.curve && this.tasks.length && x >= this.view.left) this._tellMoment(this.view.t(x), y + 14, x);
    else if (!task) this.tip.hidden = true;
    else this._tell(task, y + 14, x);
  }

  _tell(task, y, x) {
    const now = Date.now();
    const end = task.stopped ?? now;
    const waited = `waited ${span((task.started ?? end) - task.created)}`;
    const ran = task.started ? `, ran ${span(end - task.started)} from ${clock(task.started, now)}` : "";
    this._say(`${task.label}: ${wordOf(task.group).toLowerCase()}, ${waited}${ran}`, y, x);
  }

  _tellMoment(at, y, x) {
    const now = Date.now();
    const waiting = this.tasks.filter((task) => task.created <= at && (task.started ?? task.stopped ?? Infinity) > at).length;
    this._say(at > now ? "In the future" : `${clock(at, now)}: ${many(ranAt(this.curve, at), "task")} ran, ${count(waiting)} waited`, y, x);
  }

  _say(text, y, x) {
    setText(this.tip, text);
    this.tip.hidden = false;
    const width = this.stage.clientWidth;
    this.tip.style.setProperty("top", `${y}px`);
    this.tip.style.setProperty("left", `${Math.max(0, Math.min(x, width - this.tip.offsetWidth))}px`);
  }

  _drag(from, to) {
    this.tip.hidden = true;
    this.band.hidden = false;
    this.band.style.setProperty("left", `${Math.min(from, to)}px`);
    this.band.style.setProperty("width", `${Math.abs(to - from)}px`);
  }

  _zoomTo(zoom) {
    this.zoom = zoom && zoom[1] - zoom[0] >= 20 ? zoom : null;
    this.back.hidden = !this.zoom;
    this.refresh();
  }
}

// Returns whether tasks of a group have a mark at their end.
const isMarked = (group) => group === "failed" || group === "cancelled";

function cut(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let most = text.length;
  while (most > 1 && pen.measureText(`${text.slice(0, most)}…`).width > width) most -= 1;
  return `${text.slice(0, most)}…`;
}

