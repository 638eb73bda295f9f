// A virtual list of rows of one height: only visible rows are elements.

import { frame } from "./dom.js";

const SPARE = 6;

export class VirtualList {
  /**
   * @param {HTMLElement} scroller what scrolls
   * @param {HTMLElement} sizer what the rows are put into; takes the height of all of them
   * @param {object} rows `create()` makes an empty row, `update(row, item, position)` fills it,
   *   `key(item)` names it
   */
  constructor(scroller, sizer, rows) {
    this.scroller = scroller;
    this.sizer = sizer;
    this.rows = rows;
    this.items = [];
    this.shown = new Map();
    this.free = [];
    this.height = 0;
    this._render = () => this.render();
    scroller.addEventListener("scroll", () => frame(this._render), { passive: true });
    new ResizeObserver(() => ((this.height = 0), frame(this._render))).observe(scroller);
  }

  /** Sets the items, or updates them. */
  set(items) {
    this.items = items;
    frame(this._render);
  }

  /** Draws the visible rows again. */
  refresh() {
    frame(this._render);
  }

  /** Scrolls as little as needed to show an item. */
  reveal(position, above = 0) {
    this._measure();
    const top = this._offset() + position * this.height;
    const bottom = top + this.height;
    if (top - above < this.scroller.scrollTop) this.scroller.scrollTop = top - above;
    else if (bottom > this.scroller.scrollTop + this.scroller.clientHeight)
      this.scroller.scrollTop = bottom - this.scroller.clientHeight;
    this.render();
  }

  render() {
    if (!this.scroller.clientHeight) return;
    this._measure();
    const { items, height } = this;
    const total = `${items.length * height}px`;
    if (this.sizer.style.height !== total) this.sizer.style.setProperty("height", total);
    const from = this.scroller.scrollTop - this._offset();
    const first = Math.max(0, Math.floor(from / height) - SPARE);
    const last = Math.min(items.length, Math.ceil((from + this.scroller.clientHeight) / height) + SPARE);
    const wanted = new Map();
    for (let n = first; n < last; n += 1) wanted.set(this.rows.key(items[n]), n);
    for (const [key, row] of this.shown) {
      if (wanted.has(key)) continue;
      this.shown.delete(key);
      row.remove();
      this.free.push(row);
    }
    let place = this.sizer.firstChild;
    for (const [key, n] of wanted) {
      let row = this.shown.get(key);
      if (!row) this.shown.set(key, (row = this.free.pop() ?? this.rows.create()));
      // Screen readers read the rows in their visible order.
      if (row === place) place = row.nextSibling;
      else this.sizer.insertBefore(row, place);
      const at = `translateY(${n * height}px)`;
      if (row.style.transform !== at) row.style.setProperty("transform", at);
      this.rows.update(row, items[n], n);
    }
  }

  _measure() {
    this.height ||= parseFloat(getComputedStyle(this.sizer).getPropertyValue("--row")) || 44;
  }

  // Offset of the rows in the scrolling element.
  _offset() {
    return this.sizer.getBoundingClientRect().top - this.scroller.getBoundingClientRect().top + this.scroller.scrollTop;
  }
}
