// Histogram of a number over many tasks, with minimum, median and maximum.

import { fill, h, setAttr, setText } from "./dom.js";
import { bins } from "./concurrency.js";
import { count, many } from "./format.js";

/**
 * Makes a histogram; `update(values, all)` shows others, and hides it where there are too few to
 * tell; `all` says of how many tasks they are a part.
 * @param {string} label what is counted
 * @param {function} said says one of the numbers in words
 */
export function histogram(label, said) {
  const about = h("span.quiet");
  const bars = h("div.bins", { role: "img" });
  const [low, median, high] = [h("span"), h("span"), h("span")];
  const element = h("figure.histogram", { hidden: true, data: { testid: "histogram", label } },
    h("figcaption", {}, h("b", { text: label }), " ", about), bars, h("div.bins-foot", {}, low, median, high));
  let state = null;
  return {
    element,
    update(values, all = values.length) {
      element.hidden = values.length < 2;
      if (element.hidden) return;
      const found = bins(values);
      const now = JSON.stringify([found, values.length, all]);
      if (state === now) return;
      state = now;
      const most = Math.max(...found.counts);
      const words = found.counts.map((n, k) => `${said(found.edges[k])} to ${said(found.edges[k + 1])}: ${many(n, "task")}`);
      setText(about, all > values.length ? `of ${count(values.length)} of ${many(all, "task")}` : `of ${many(values.length, "task")}`);
      fill(bars, ...found.counts.map((n, k) => {
        const bin = h("span", { title: words[k] });
        bin.style.setProperty("height", `${n ? Math.max(3, (100 * n) / most) : 0}%`);
        return bin;
      }));
      setAttr(bars, "aria-label", `${label}: from ${said(found.low)} to ${said(found.high)}, median ${said(found.median)}; at most ${count(most)} alike`);
      setText(low, said(found.low));
      setText(median, `median ${said(found.median)}`);
      setText(high, said(found.high));
    },
  };
}
