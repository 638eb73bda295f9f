// Filter: states, words, a person; and its controls in the header.

import { childrenOf } from "./children.js";
import { fill, h, icon, setAttr, setText } from "./dom.js";
import { GROUPS, clock, count } from "./format.js";
import { remember, remembered } from "./parts.js";
import { partCount } from "./rows.js";
import { nothing, store } from "./store.js";

/** The current filter. */
export const wanted = { groups: new Set(), text: "", user: remembered("user"), since: remembered("since") || "1d" };

const SPANS = [["1h", 1, "the last hour"], ["6h", 6, "the last 6 hours"], ["1d", 24, "the last day"], ["7d", 168, "the last 7 days"]];
const HOUR_MS = 3600000;

/** Returns whether a job, or a child among an array's children, matches. */
export function fitsJob(job) {
  if (wanted.user && job.user !== wanted.user) return false;
  if (wanted.text && !holdsText(job)) return false;
  return !wanted.groups.size || [...wanted.groups].some((group) => job.by[group] > 0);
}

/** Returns whether a child of a matching array matches. */
export const fitsChild = (child) =>
  (!wanted.groups.size || wanted.groups.has(child.group)) && (!wanted.text || child.text.includes(wanted.text) || child.array.names.includes(wanted.text));

// A job is found by its names, its arguments and its errors, and by those of its children.
function holdsText(job) {
  const { text } = wanted;
  return job.names.includes(text) || job.said.includes(text) || (partCount(job) > 0 && childrenOf(job.id).list.some((child) => child?.text.includes(text)));
}

/** Returns whether any job of a run matches. */
export function fitsRun(run) {
  if (wanted.user && run.user !== wanted.user) return false;
  if (wanted.groups.size && ![...wanted.groups].some((group) => run.counts[group] > 0)) return false;
  if (!wanted.text || run.text.includes(wanted.text)) return true;
  for (const job of run.jobs.values()) if (holdsText(job)) return true;
  return false;
}

/** Counts the tasks of the open view that belong to the selected user. */
function countsIn(scope) {
  const counts = nothing();
  const runs = scope?.jobs ? [scope] : [...store.runs.values()].filter((run) => !wanted.user || run.user === wanted.user);
  for (const run of runs) for (const key in counts) counts[key] += run.counts[key];
  return counts;
}

/** Returns whether the filter excludes anything. */
export const isFiltered = () => Boolean(wanted.groups.size || wanted.text || wanted.user);

/**
 * Makes the controls.
 * @param {object} on `change()` after a choice; `since()` after another span of time
 * @param {number} earliest the moment before which the server looks at nothing
 */
export function controls(on, earliest) {
  const chips = GROUPS.map(({ key, word }) => {
    const number = h("b", { text: "0" });
    const chip = h("button.chip", { type: "button", "aria-pressed": "false", data: { group: key } }, icon(key), h("span", { text: word }), " ", number);
    chip.addEventListener("click", () => {
      if (!wanted.groups.delete(key)) wanted.groups.add(key);
      setAttr(chip, "aria-pressed", String(wanted.groups.has(key)));
      on.change();
    });
    return { key, chip, number };
  });
  const search = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter", "aria-keyshortcuts": "/", autocomplete: "off", spellcheck: "false" });
  search.addEventListener("input", () => {
    wanted.text = search.value.trim().toLowerCase();
    on.change();
  });
  const user = h("select", { "aria-label": "User", on: { change: () => (remember("user", (wanted.user = user.value)), on.change()) } });
  const since = h("select", { "aria-label": "Submitted within", on: { change: () => (remember("since", (wanted.since = since.value)), on.since()) } },
    ...SPANS.filter(([, hours]) => Date.now() - hours * HOUR_MS > earliest + HOUR_MS / 2).map(([value, , text]) => h("option", { value, text })),
    h("option", { value: "", text: `since ${clock(earliest, Date.now(), false)}` }));
  since.value = wanted.since;
  if (since.value !== wanted.since) since.value = wanted.since = "";
  let known = null;

  function update(scope) {
    const counts = countsIn(scope);
    for (const { key, chip, number } of chips) {
      setText(number, count(counts[key]));
      chip.classList.toggle("none", !counts[key]);
    }
    const users = [...new Set([...store.users, ...(wanted.user ? [wanted.user] : [])])].sort();
    const names = users.join("\n");
    if (names === known) return;
    known = names;
    fill(user, h("option", { value: "", text: "Everyone" }), ...users.map((value) => h("option", { value, text: value })));
    user.value = wanted.user;
    user.hidden = users.length < 2;
  }
  update("all");
  return {
    search,
    update,
    states: h("div.chips", { role: "group", "aria-label": "States" }, ...chips.map(({ chip }) => chip)),
    choices: h("div.choices", {}, h("label.search", {}, icon("search"), search, h("kbd", { text: "/", "aria-hidden": "true" })), user, since),
  };
}
