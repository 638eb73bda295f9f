// Asks for confirmation and cancels tasks. The page's footer shows the results.

import { post } from "./api.js";
import { h, setText } from "./dom.js";
import { showCancellations } from "./cancellations.js";
import { count, isOver, many } from "./format.js";
import { name } from "./parts.js";
import { taskName } from "./rows.js";

// Maximum jobs that the server accepts in one request.
const AT_ONCE = 10000;

/** Asks for confirmation and cancels jobs or array tasks; calls `done` afterwards. */
export function cancelTasks(jobs, done) {
  const left = jobs.filter((job) => !isOver(job.group));
  // An array task needs no request of its own if its array is cancelled.
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

/** Asks whether to cancel a whole run. */
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
  const confirm = h("button.danger.strong", { type: "submit", data: { testid: "cancel-confirm" } }, `Cancel ${many(total, "task")}`);
  confirm.disabled = !total;
  const keep = h("button", { type: "button", on: { click: () => dialog.close() } }, running ? "Keep running" : "Keep waiting");
  const trouble = h("p.trouble", { role: "alert", hidden: true });
  const parts = [running && `${count(running)} running`, counts.waiting && `${count(counts.waiting)} waiting`].filter(Boolean);
  const form = h("form", { method: "dialog" },
    h("p.big", { data: { testid: "cancel-summary" } }, parts.join(", ") || "No unfinished tasks."),
    h("p", {}, running ? "Running tasks have 20 seconds to clean up, and their output is kept. " : "", "Waiting tasks will not start. You cannot undo this."),
    over ? h("p.quiet", {}, `${many(over, "other")} selected ${over === 1 ? "has" : "have"} already finished.`) : null,
    h("label", { for: "cancel-reason" }, "Reason (optional)"), reason, trouble,
    h("div.buttons", {}, keep, confirm));
  const heading = h("h2", { id: "cancel-title" }, ...title.map((text, n) => (n === 1 ? name(text) : text)));
  const dialog = h("dialog.cancel", { "aria-label": "Cancel", "aria-describedby": "cancel-title" }, heading, about ? h("p.quiet.mono", { text: about }) : null, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    for (const one of [confirm, keep, reason]) one.disabled = true;
    setText(confirm, "Cancelling…");
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
      setText(confirm, `Cancel ${many(total, "task")}`);
      for (const one of [confirm, keep, reason]) one.disabled = false;
      confirm.focus();
    } else {
      dialog.close();
      showCancellations(results, error);
      if (!error) done?.();
    }
  });
  dialog.addEventListener("cancel", (event) => {
    if (confirm.disabled && total) event.preventDefault();
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  (total ? reason : keep).focus();
}
