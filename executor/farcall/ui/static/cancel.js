// Asks before tasks are ended, ends them, and shows what came of it.

import { post } from "./api.js";
import { fill, h, icon, setText } from "./dom.js";
import { count, isOver, many, shortId } from "./format.js";
import { name } from "./parts.js";
import { partsOfId, taskName } from "./rows.js";
import { store } from "./store.js";

// As many as the server takes at once.
const AT_ONCE = 10000;
const MOST_SHOWN = 300;

const OUTCOMES = {
  ending: ["cancelled", "Being ended"],
  ended: ["succeeded", "Had ended before"],
  unknown: ["blocked", "Unknown to Batch"],
  foreign: ["blocked", "Not farcall's"],
  node: ["blocked", "Not ended alone"],
  refused: ["failed", "Refused"],
};

/** Asks whether these jobs, or children of arrays, are to be ended; calls `done` once they are. */
export function cancelTasks(jobs, done) {
  const left = jobs.filter((job) => !isOver(job.group));
  // A child needs no request of its own where its array is ended as a whole.
  const whole = new Set(left.filter((job) => job.array_size).map((job) => job.id));
  const asked = left.filter((job) => !whole.has(job.parent));
  const one = asked.length === 1 ? asked[0] : null;
  const title = one ? (one.array_size ? ["Cancel the array ", taskName(one), "?"] : ["Cancel ", taskName(one), "?"]) : ["Cancel ", many(asked.length, "selected job"), "?"];
  open({
    title,
    about: one ? `Job ${one.id}` : "",
    counts: sum(asked),
    over: jobs.length - left.length,
    bodies: (reason) => pieces(asked.map((job) => job.id)).map((ids) => ({ jobs: ids, reason })),
    done,
  });
}

/** Asks whether a whole run is to be ended. */
export function cancelRun(run) {
  open({
    title: ["Cancel the workflow ", run.workflow || run.run, "?"],
    about: `Run ${run.run}${run.user ? `, by ${run.user}` : ""}`,
    counts: run.counts,
    over: 0,
    bodies: (reason) => [{ run: run.run, workflow: run.workflow, reason }],
  });
}

function sum(jobs) {
  const counts = { waiting: 0, starting: 0, running: 0 };
  for (const job of jobs) for (const key in counts) counts[key] += job.by ? job.by[key] : Number(job.group === key);
  return counts;
}

function pieces(ids) {
  const found = [];
  for (let at = 0; at < ids.length; at += AT_ONCE) found.push(ids.slice(at, at + AT_ONCE));
  return found;
}

function open({ title, about, counts, over, bodies, done }) {
  const running = counts.running + counts.starting;
  const total = running + counts.waiting;
  const reason = h("input", { type: "text", maxlength: "200", id: "cancel-reason", autocomplete: "off" });
  const confirm = h("button.danger.strong", { type: "submit", data: { testid: "cancel-confirm" } }, `End ${many(total, "task")}`);
  confirm.disabled = !total;
  const keep = h("button", { type: "button", on: { click: () => dialog.close() } }, running ? "Keep running" : "Keep waiting");
  const trouble = h("p.trouble", { role: "alert", hidden: true });
  const parts = [running && `${count(running)} running`, counts.waiting && `${count(counts.waiting)} waiting`].filter(Boolean);
  const form = h("form", { method: "dialog" },
    h("p.big", { data: { testid: "cancel-summary" } }, parts.join(", ") || "Nothing is left to end."),
    h("p", {}, running ? "What runs gets 20 seconds to clean up; its output up to then is kept. " : "", "What waits never begins. This cannot be undone."),
    over ? h("p.quiet", {}, `${many(over, "other")} selected ${over === 1 ? "has" : "have"} ended already.`) : null,
    h("label", { for: "cancel-reason" }, "Reason (optional)"), reason, trouble,
    h("div.buttons", {}, keep, confirm));
  const heading = h("h2", { id: "cancel-title" }, ...title.map((text, n) => (n === 1 ? name(text) : text)));
  const dialog = h("dialog.cancel", { "aria-label": "Cancel", "aria-describedby": "cancel-title" }, heading, about ? h("p.quiet.mono", { text: about }) : null, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    for (const one of [confirm, keep, reason]) one.disabled = true;
    setText(confirm, "Ending…");
    trouble.hidden = true;
    const results = [];
    let error = null;
    try {
      for (const body of bodies(reason.value.trim())) results.push(...(await post("/api/cancel", body)).results);
    } catch (caught) {
      error = caught;
    }
    if (error && !results.length) {
      setText(trouble, error.message);
      trouble.hidden = false;
      setText(confirm, `End ${many(total, "task")}`);
      for (const one of [confirm, keep, reason]) one.disabled = false;
      confirm.focus();
    } else {
      show(dialog, heading, form, results, error);
      if (!error) done?.();
    }
  });
  dialog.addEventListener("cancel", (event) => {
    if (confirm.disabled && total && form.isConnected) event.preventDefault();
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  keep.focus();
}

function show(dialog, heading, form, results, error) {
  const tally = new Map();
  for (const { outcome } of results) tally.set(outcome, (tally.get(outcome) ?? 0) + 1);
  const words = [...tally].map(([outcome, n]) => `${count(n)} ${(OUTCOMES[outcome]?.[1] ?? outcome).toLowerCase()}`);
  // What needs attention comes first.
  const order = ["refused", "unknown", "foreign", "ended", "ending"];
  results.sort((a, b) => order.indexOf(a.outcome) - order.indexOf(b.outcome));
  const rows = results.slice(0, MOST_SHOWN).map(({ id, outcome, text }) => {
    const [sign, word] = OUTCOMES[outcome] ?? ["blocked", outcome];
    return h("li", { data: { testid: "cancel-result", id, outcome } }, icon(sign, `as-${sign}`),
      h("div", {}, h("div", {}, h("b", { text: word }), " ", name(nameOf(id)), " ", h("span.quiet.mono", { text: shortId(id) })), h("div.quiet", { text })));
  });
  const done = h("button.strong", { type: "button", on: { click: () => dialog.close() } }, "Done");
  fill(heading, "What came of it");
  form.replaceWith(h("div", {},
    h("p.big", { role: "status" }, words.join(", ") || "There was nothing to end."),
    error ? h("p.trouble", { role: "alert", text: error.message }) : null,
    h("ul.results", { tabindex: "0", "aria-label": "Results" }, ...rows),
    results.length > MOST_SHOWN ? h("p.quiet", {}, `and ${count(results.length - MOST_SHOWN)} more`) : null,
    h("div.buttons", {}, done)));
  done.focus();
}

function nameOf(id) {
  const [parent, index] = partsOfId(id);
  const job = store.jobs.get(parent);
  return job ? job.function + (index === undefined ? "" : `[${index}]`) : "";
}
