// A task's live output: merged or side by side, with search, copy and download.

import { follow, path } from "./api.js";
import { h, icon, setAttr, setText } from "./dom.js";
import { count, ms } from "./format.js";
import { Lines, MOST_LINES } from "./lines.js";
import { Pane } from "./pane.js";
import { copy, remember, remembered } from "./parts.js";

const isError = ({ stream }) => stream === "stderr" || stream === "traceback";

export class Output {
  constructor() {
    this.id = null;
    this.lines = new Lines();
    this.panes = [];
    this.pending = [];
    this.side = remembered("side") === "yes";
    this.wrap = remembered("wrap") !== "no";
    this.follows = true;
    this.found = { text: "", at: -1 };
    const toggle = (name, sign, f) => h("button.tool", { type: "button", "aria-pressed": "false", title: name, on: { click: f } }, icon(sign), h("span", { text: name }));
    this.buttons = {
      side: toggle("Side by side", "columns", () => this._side(!this.side)),
      follow: toggle("Follow", "follow", () => this._follow(!this.follows)),
      wrap: toggle("Wrap", "wrap", () => this._wrap(!this.wrap)),
    };
    const act = (name, sign, f) => h("button.tool", { type: "button", title: name, on: { click: f } }, icon(sign), h("span", { text: name }));
    this.note = h("p.output-note", { role: "status", data: { testid: "output-note" } });
    this.again = h("button.small", { type: "button", hidden: true, on: { click: () => this._ask() } }, "Reload");
    this.hits = h("span.quiet", { role: "status" });
    this.find = h("input", { type: "search", placeholder: "Find", "aria-label": "Find in output", autocomplete: "off", spellcheck: "false" });
    this.find.addEventListener("input", () => this._find(0));
    this.find.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this._find(event.shiftKey ? -1 : 1);
    });
    this.space = h("div.panes");
    const step = (name, sign, by) => h("button.plain", { type: "button", "aria-label": name, title: name, on: { click: () => this._find(by) } }, icon(sign));
    this.element = h("div.output", {},
      h("div.tools", {}, this.buttons.follow, this.buttons.wrap, this.buttons.side, act("Copy", "copy", () => this._copy()), act("Download", "download", () => this._download()),
        h("label.search.find", {}, icon("search"), this.find, this.hits, step("Previous match", "up", -1), step("Next match", "down", 1))),
      this.space, h("div.output-foot", {}, this.note, this.again));
    this._build();
  }

  /** Reads a job's output; null reads none. */
  show(id) {
    if (id === this.id) return;
    this.id = id;
    this.traceback = "";
    this._ask();
  }

  /** Appends the traceback of a failed task to its complete output. */
  fail(traceback) {
    this.traceback = traceback;
    this._appendTraceback();
  }

  _appendTraceback() {
    if (!this.over || !this.traceback || this.isAppended) return;
    this.isAppended = true;
    this._flush();
    this._take(this.traceback.trimEnd().split("\n").map((text) => ({ text, stream: "traceback", attempt: 0, at: null })));
  }

  /** Stops reading while the output is hidden, and reads again. */
  rest(yes) {
    if (!this.id || this.over) return;
    if (yes) this.stream?.close();
    else this._ask();
  }

  _ask() {
    this.over = this.isAppended = false;
    this.stream?.close();
    this.stream = null;
    this.again.hidden = true;
    this.lines = new Lines();
    this.pending = [];
    for (const pane of this.panes) pane.clear();
    this._follow(true);
    if (!this.id) return;
    this.state = "Loading…";
    this._say();
    this.stream = follow(`${path("jobs", this.id, "logs")}?stream=both&tail=${MOST_LINES}`, {
      open: () => {
        // Each stream begins again with the last lines.
        this.lines = new Lines();
        this.pending = [];
        for (const pane of this.panes) pane.clear();
        this.state = "Live: lines appear as the task prints them";
        this._say();
      },
      lines: ({ lines }) => this._take(lines),
      end: ({ error }) => {
        this.over = true;
        this.state = error || "The task has finished; this is its complete output";
        this.again.hidden = !error;
        for (const pane of this.panes) setText(pane.empty, error ? "" : "No output.");
        this._say();
        if (!error) this._appendTraceback();
      },
      broken: (error) => {
        this.state = error.message;
        this.again.hidden = error.status < 400 || error.status >= 500;
        this._say();
      },
    });
  }

  _take(lines) {
    this.pending.push(...lines);
    if (this.pending.length > MOST_LINES * 2) this.lines.dropped += this.pending.splice(0, this.pending.length - MOST_LINES).length;
    // Not by animation frame: a window in the background has none, and would gather lines forever.
    this.timer ??= setTimeout(() => this._flush(), 50);
  }

  _flush() {
    clearTimeout(this.timer);
    this.timer = null;
    // stdout and stderr arrive one after the other; a stream's own lines are in order already.
    if (this.pending.every((line) => line.at)) this.pending.sort((a, b) => a.attempt - b.attempt || ms(a.at) - ms(b.at));
    const taken = this.lines.take(this.pending);
    this.pending = [];
    for (const pane of this.panes) pane.add(taken.filter((line) => pane.takes(line)));
    this._states();
    this._count();
    this._say();
  }

  _states() {
    const states = [...this.lines.states.values()];
    for (const pane of this.panes) pane.states(states.filter((state) => pane.takes(state)));
  }

  _build() {
    const make = (name, takes) => Object.assign(new Pane(name, MOST_LINES, (on) => this._follow(on, false)), { takes });
    this.panes = this.side
      ? [make("stdout", (line) => !isError(line)), make("stderr", isError)]
      : [make("Output", () => true)];
    this.space.replaceChildren(...this.panes.map((pane) => pane.element));
    this.space.classList.toggle("side", this.side);
    for (const pane of this.panes) pane.add(this.lines.kept.filter((line) => pane.takes(line)));
    this._states();
    this._wrap(this.wrap);
    this._follow(this.follows);
    setAttr(this.buttons.side, "aria-pressed", String(this.side));
  }

  _side(on) {
    this.side = on;
    remember("side", on ? "yes" : "no");
    this._build();
  }

  _wrap(on) {
    this.wrap = on;
    remember("wrap", on ? "yes" : "no");
    this.space.classList.toggle("wrap", on);
    setAttr(this.buttons.wrap, "aria-pressed", String(on));
  }

  _follow(on, move = true) {
    this.follows = on;
    setAttr(this.buttons.follow, "aria-pressed", String(on));
    if (move) for (const pane of this.panes) pane.follow(on);
  }

  _say() {
    const { dropped, kept } = this.lines;
    const log = kept.some((line) => line.stream === "log") ? " Lines marked “log” are from CloudWatch, which merges stdout and stderr." : "";
    const full = dropped ? ` Showing the last ${count(kept.length)} lines; ${count(dropped)} earlier lines are not shown.` : "";
    setText(this.note, `${this.state ?? ""}${/[.?!]$/.test(this.state ?? "") ? "" : "."}${full}${log}`);
  }

  _matches() {
    const { text } = this.found;
    return text ? this.lines.kept.filter((line) => line.text.toLowerCase().includes(text)) : [];
  }

  _find(step) {
    const text = this.find.value.toLowerCase();
    if (text !== this.found.text) this.found = { text, at: -1 };
    const matches = this._matches();
    if (matches.length) this.found.at = step ? (this.found.at + step + matches.length) % matches.length : matches.length - 1;
    if (text) this._follow(false);
    for (const pane of this.panes) pane.mark(matches[this.found.at], text);
    this._count(matches);
  }

  _count(matches = this._matches()) {
    setText(this.hits, this.found.text ? `${matches.length ? this.found.at + 1 : 0} of ${count(matches.length)}` : "");
  }

  async _copy() {
    const done = await copy(this.lines.text());
    const before = this.state;
    this.state = done ? `${count(this.lines.kept.length)} lines copied` : "The browser denied access to the clipboard";
    this._say();
    setTimeout(() => ((this.state = before), this._say()), 2000);
  }

  _download() {
    const url = URL.createObjectURL(new Blob([this.lines.text()], { type: "text/plain" }));
    h("a", { href: url, download: `${this.id.replaceAll(/[:#]/g, "-")}.log` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }
}
