// A pane of output lines. Lines are in blocks that the browser lays out only when they become
// visible.

import { frame, h, setText } from "./dom.js";
import { count } from "./format.js";

const BLOCK = 250;

export class Pane {
  /**
   * @param {string} name what the pane is called
   * @param {number} most how many lines it keeps
   * @param {function} onFollow called with whether it follows, after the user scrolled
   */
  constructor(name, most, onFollow) {
    this.most = most;
    this.follows = true;
    this.size = 0;
    this.blocks = h("div.blocks");
    this.empty = h("p.note", {}, "No output yet.");
    this.live = h("div");
    this.scroller = h("div.pane-lines", { role: "log", "aria-label": name, "aria-live": "off", tabindex: "0" }, this.blocks, this.live, this.empty);
    this.total = h("span.quiet");
    this.element = h("section.pane", {}, h("div.pane-head", {}, h("span", { text: name }), this.total), this.scroller);
    this.attempt = 0;
    this.marked = null;
    this._down = () => (this.scroller.scrollTop = this.scroller.scrollHeight);
    this.scroller.addEventListener("scroll", () => {
      const away = this.scroller.scrollHeight - this.scroller.clientHeight - this.scroller.scrollTop;
      const at = away < 24;
      // New lines move the end away; only the user scrolls up.
      if (at === this.follows || (!at && this.scroller.scrollTop >= (this.last ?? 0))) {
        this.last = this.scroller.scrollTop;
        return;
      }
      this.last = this.scroller.scrollTop;
      this.follows = at;
      onFollow(at);
    }, { passive: true });
  }

  clear() {
    this.blocks.replaceChildren();
    this.live.replaceChildren();
    this.size = 0;
    this.attempt = 0;
    this.marked = null;
    this.empty.hidden = false;
    setText(this.total, "");
  }

  /** Adds lines at the end, and removes surplus lines at the beginning. */
  add(lines) {
    if (!lines.length) return;
    this.empty.hidden = true;
    let block = this.blocks.lastChild;
    for (const line of lines) {
      if (line.attempt > this.attempt) {
        if (line.attempt > 1) block = this._put(block, h("div.attempt", { role: "separator", text: `Attempt ${line.attempt}` }));
        this.attempt = line.attempt;
      }
      const element = h("div.line", { data: { testid: "line", stream: line.stream, n: line.n } });
      element.textContent = line.text || "\u200b";
      block = this._put(block, element);
      this.size += 1;
    }
    while (this.size > this.most && this.blocks.childElementCount > 1) {
      this.size -= this.blocks.firstChild.querySelectorAll(".line").length;
      this.blocks.firstChild.remove();
    }
    setText(this.total, `${count(this.size)} lines`);
    if (this.follows) frame(this._down);
  }

  /** Shows the current state of progress bars below the lines. */
  states(states) {
    if (!states.length && !this.live.childElementCount) return;
    if (states.length) this.empty.hidden = true;
    this.live.replaceChildren(...states.map((state) => h("div.line", { data: { testid: "state", stream: state.stream }, text: state.text })));
    if (this.follows) frame(this._down);
  }

  _put(block, element) {
    if (!block || block.childElementCount >= BLOCK) this.blocks.append((block = h("div.block")));
    block.append(element);
    return block;
  }

  /** Turns following of the end on or off. */
  follow(on) {
    this.follows = on;
    if (on) frame(this._down);
  }

  /** Shows where a text was found in a line; null forgets it. Returns whether the line is here. */
  mark(line, text) {
    if (this.marked) this.marked.replaceChildren(this.marked.textContent || "\u200b");
    this.marked?.classList.remove("found");
    this.marked = null;
    const element = line && this.blocks.querySelector(`[data-n="${line.n}"]`);
    if (!element) return false;
    const said = element.textContent;
    const at = said.toLowerCase().indexOf(text);
    if (at < 0) return false;
    element.replaceChildren(said.slice(0, at), h("mark", { text: said.slice(at, at + text.length) }), said.slice(at + text.length));
    element.classList.add("found");
    element.scrollIntoView({ block: "center", inline: "nearest" });
    this.marked = element;
    return true;
  }
}
