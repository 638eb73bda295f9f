// Cancelled tasks: their states as they change, in the page's footer.

import { childrenOf, onChildren } from "./children.js";
import { fill, frame, h, icon, setText } from "./dom.js";
import { count, groupOf, isOver, shortId, wordOf } from "./format.js";
import { name } from "./parts.js";
import { jobHash, partsOfId } from "./rows.js";
import { store } from "./store.js";

const MOST_SHOWN = 300;

const OUTCOMES = {
  cancelling: ["starting", "cancelling"],
  finished: ["succeeded", "already finished"],
  unknown: ["blocked", "unknown"],
  not_farcall: ["blocked", "not a farcall job"],
  node: ["blocked", "not cancelled: one node"],
  refused: ["failed", "refused"],
};
// What needs attention comes first.
const ORDER = ["refused", "unknown", "not_farcall", "node", "cancelling", "finished"];

const title = h("p.big", { role: "status", data: { testid: "cancellations-summary" } });
const trouble = h("p.trouble", { role: "alert", hidden: true });
const list = h("ul.results", { tabindex: "0", "aria-label": "Results of the cancellation" });
const close = h("button", { type: "button", on: { click: () => hide() } }, "Close");
let rows = [];
let results = [];

/** The strip; it is hidden until a task is cancelled. */
export const cancellations = h("section.cancellations", { "aria-label": "Cancelled tasks", hidden: true, data: { testid: "cancellations" } },
  h("div.cancellations-top", {}, title, h("span.gap"), close), trouble, list);

/**
 * Shows what was done, and from then on how these tasks are.
 * @param {object[]} told id, outcome and text of each
 * @param {Error|null} error why there are not more
 */
export function showCancellations(told, error) {
  results = [...told].sort((a, b) => ORDER.indexOf(a.outcome) - ORDER.indexOf(b.outcome));
  rows = results.slice(0, MOST_SHOWN).map((result) => {
    const sign = h("span.state");
    const row = h("li", { data: { testid: "cancel-result", id: result.id, outcome: result.outcome } }, sign,
      h("a", { href: jobHash(result.id) }, name(nameOf(result.id) || result.id)), h("span.quiet.mono", { text: shortId(result.id) }),
      result.outcome === "cancelling" ? null : h("span.quiet", { text: result.text }));
    return { sign, row };
  });
  const more = results.length - rows.length;
  fill(list, ...rows.map(({ row }) => row), more ? h("li.quiet", {}, `and ${count(more)} more`) : null);
  trouble.hidden = !error;
  setText(trouble, error?.message ?? "");
  cancellations.hidden = false;
  draw();
}

/** Removes finished tasks, when the user continues with something else. */
export function forgetCancellations() {
  if (results.every(({ id, outcome }) => outcome === "finished" || (outcome === "cancelling" && isOver(groupNow(id))))) hide();
}

function hide() {
  results = [];
  rows = [];
  cancellations.hidden = true;
}

function draw() {
  if (cancellations.hidden) return;
  const tally = new Map();
  const add = (word) => tally.set(word, (tally.get(word) ?? 0) + 1);
  results.forEach((result, n) => {
    const [sign, word] = now(result);
    add(word);
    if (rows[n] && rows[n].word !== word) {
      rows[n].word = word;
      rows[n].sign.dataset.group = sign;
      fill(rows[n].sign, icon(sign, `as-${sign}`), h("span", { text: word }));
    }
  });
  setText(title, [...tally].map(([word, n]) => `${count(n)} ${word}`).join(", ") || "No tasks to cancel");
}

function now({ id, outcome }) {
  const group = outcome === "cancelling" ? groupNow(id) : null;
  return group && isOver(group) ? [group, wordOf(group).toLowerCase()] : (OUTCOMES[outcome] ?? ["blocked", outcome]);
}

function groupNow(id) {
  const [parent, index] = partsOfId(id);
  const task = index === undefined ? store.jobs.get(parent) : childrenOf(parent).list[Number(index)];
  return task ? groupOf(task.state) : null;
}

function nameOf(id) {
  const [parent, index] = partsOfId(id);
  const job = store.jobs.get(parent);
  return job ? job.function + (index === undefined ? "" : `[${index}]`) : "";
}

store.listen(() => frame(draw));
onChildren(() => frame(draw));
