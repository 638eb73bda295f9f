// Failure reasons, grouped by equal text, the most frequent first.

import { childrenOf } from "./children.js";
import { fill, h, icon, setText } from "./dom.js";
import { count, many } from "./format.js";
import { name } from "./parts.js";
import { jobHash, why } from "./rows.js";

const MOST_SHOWN = 8;

/** Returns the failure reasons of jobs: [{text, count, example, call}], the most frequent first. */
export function reasonsOf(jobs) {
  const found = new Map();
  const put = (text, n, example, call) => {
    const said = text || "Failed; the reason is unknown.";
    const known = found.get(alike(said)) ?? { text: said, count: 0, example, call };
    known.count += n;
    found.set(alike(said), known);
  };
  for (const job of jobs) {
    if (!job.by.failed) continue;
    if (!job.array_size) put(why(job), 1, job.id, job.call);
    else if (job.errors?.length) for (const { text, count: n, example, call } of job.errors) put(text, n, `${job.id}:${example}`, call);
    else {
      const failed = childrenOf(job.id).list.filter((child) => child?.group === "failed");
      for (const child of failed) put(why(child), 1, child.id, child.call);
      if (!failed.length) put(job.reason, job.by.failed, job.id);
    }
  }
  return [...found.values()].sort((a, b) => b.count - a.count);
}

// Messages that differ only in numbers count as equal.
const alike = (text) => text.replace(/0x[0-9a-f]+/gi, "#").replace(/(?<![a-z])\d+(\.\d+)?/gi, "#");

/**
 * Makes the section; `update(jobs)` shows the failure reasons of these jobs.
 * @param {function|null} retry called with the jobs whose failed tasks the user wants to retry;
 *   without it, there is no button
 */
export function reasonsSection(retry = null) {
  const list = h("ul.failed-children");
  const button = h("button.small", { type: "button", hidden: true, on: { click: () => retry(failed) } });
  const head = h("div.section-head", {}, h("h3", {}, "Why tasks failed"), button);
  const element = h("section.reasons", { "aria-label": "Why tasks failed", hidden: true, data: { testid: "reasons" } }, head, list);
  let shown = "";
  let failed = [];
  return {
    element,
    update(jobs) {
      failed = jobs.filter((job) => job.by.failed && job.kind !== "command");
      button.hidden = !retry || !failed.length;
      setText(button, `Retry ${count(failed.reduce((sum, job) => sum + job.by.failed, 0))} failed…`);
      const reasons = reasonsOf(jobs);
      const state = JSON.stringify(reasons);
      if (state === shown) return;
      shown = state;
      element.hidden = !reasons.length;
      const more = reasons.length - MOST_SHOWN;
      fill(list, ...reasons.slice(0, MOST_SHOWN).map(({ text, count: n, example, call }) =>
        h("li", { data: { testid: "reason" } }, icon("failed"), h("div", {}, h("b", { text: `${count(n)} × ` }), name(text), " ", call ? h("bdi.task-call", { text: n > 1 ? `such as ${call} ` : `${call} ` }) : null, h("a", { href: jobHash(example) }, n > 1 ? "Show one" : "Show it")))),
        more > 0 ? h("li.quiet", {}, `and ${many(more, "more reason")}`) : null);
    },
  };
}
