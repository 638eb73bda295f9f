// One row of the task table: a job or an array task.

import { h, icon, setAttr, setText } from "./dom.js";
import { asked, clock, count, isOver, many, moment, shortId, span } from "./format.js";
import { bar, stateSign } from "./parts.js";

/** Sortable columns: label and compared value. */
export const COLUMNS = [
  { key: "created", word: "Task", cell: "task", value: (job) => job.created ?? 0, first: -1 },
  { key: "workflow", word: "Workflow", cell: "workflow", value: (job) => (job.workflow ?? "").toLowerCase(), first: 1 },
  { key: "state", word: "State", cell: "status", value: (job) => ORDER.indexOf(job.group), first: 1 },
  { key: "progress", word: "Progress", cell: "progress", value: (job) => done(job) / job.size, first: 1 },
  { key: "attempts", word: "Attempts", cell: "attempts", value: (job) => job.attempts, first: -1 },
  { key: "started", word: "Started", cell: "started", value: (job) => job.started ?? 0, first: -1 },
  { key: "waited", word: "Waited", cell: "waited", value: (job, now) => waited(job, now) ?? 0, first: -1 },
  { key: "ran", word: "Duration", cell: "ran", value: (job, now) => ran(job, now) ?? -1, first: -1 },
  { key: "asked", word: "Requested", cell: "asked", value: (job) => job.memory_mib + job.vcpu * 1e-3, first: -1 },
];

const ORDER = ["failed", "running", "starting", "waiting", "cancelled", "succeeded"];

/** Returns how long a task has waited. */
export function waited(job, now) {
  if (job.created === null) return null;
  return (job.started ?? job.stopped ?? now) - job.created;
}

/** Returns the duration of its last attempt; null if it never started. */
export function ran(job, now) {
  return job.started ? Math.max(0, (job.stopped ?? now) - job.started) : null;
}

/** Returns the number of an array's finished tasks. */
export const done = (job) => job.by.succeeded + job.by.failed + job.by.cancelled;

/** Returns the number of array tasks or nodes; 0 for other jobs. */
export const partCount = (job) => job.array_size || job.node_count || 0;

/** Returns whether it is a node, which can only be cancelled with its job. */
export const isNode = (job) => job.id.includes("#");

/** Returns a job's name; a command has a prompt before it. */
export const called = (job) => (job.kind === "command" ? `$ ${job.function}` : job.function);

/** Returns a job's name for use in a sentence. */
export const taskName = (job) => (job.index === undefined || job.index === null ? called(job) : `${called(job)}[${job.index}]`);

/** Returns the job's ID, and the index of the array task or node, or undefined. */
export const partsOfId = (id) => id.split(/[:#]/);

/** Returns the address of a job in this page. */
export const jobHash = (id) => `#/job/${id.split(":").map(encodeURIComponent).join(":")}`;

/** Makes an empty row. */
export function makeRow() {
  const parts = {
    check: h("input", { type: "checkbox", tabindex: "-1" }),
    more: h("button.more", { type: "button", tabindex: "-1" }, icon("chevron")),
    name: h("a.task-name", { tabindex: "-1" }, h("bdi")),
    id: h("span.task-id"),
    of: h("bdi.task-of"),
    call: h("bdi.task-call", { data: { testid: "call" } }),
    workflow: h("bdi"),
    started: h("span"),
    state: stateSign(),
    why: h("bdi.why"),
    bar: bar(),
    share: h("span.share"),
    attempts: h("span"),
    waited: h("span"),
    ran: h("span"),
    asked: h("span"),
  };
  const cell = (kind, ...inside) => h(`div.cell.${kind}`, { role: "gridcell" }, ...inside);
  const row = h("div.row.task", { role: "row", data: { testid: "task" } },
    cell("pick", parts.check),
    cell("task", parts.more, h("div.two", {}, parts.name, h("div.task-more", {}, parts.id, parts.call, parts.of))),
    cell("workflow", parts.workflow),
    cell("status", h("div.two", {}, parts.state.element, parts.why)),
    cell("progress", parts.bar.element, parts.share),
    cell("attempts", parts.attempts), cell("started", parts.started), cell("waited", parts.waited), cell("ran", parts.ran), cell("asked", parts.asked));
  row.parts = parts;
  return row;
}

/**
 * Fills a row.
 * @param {HTMLElement} row
 * @param {object} job a job of the store, or a child
 * @param {object} how position, chosen, open, expanded, active
 */
export function updateRow(row, job, how) {
  const { parts } = row;
  const child = job.parent !== undefined && job.parent !== "";
  const now = Date.now();
  row.id = `row-${job.id}`;
  Object.assign(row.dataset, { id: job.id, state: job.state });
  setAttr(row, "aria-level", child ? 2 : 1);
  setAttr(row, "aria-rowindex", how.position + 2);
  setAttr(row, "aria-selected", String(how.chosen));
  const inside = partCount(job);
  setAttr(row, "aria-expanded", inside ? String(how.expanded) : null);
  setAttr(row, "aria-current", how.open ? "true" : null);
  row.classList.toggle("child", child);
  row.classList.toggle("active", how.active);
  parts.check.checked = how.chosen;
  parts.check.disabled = isNode(job);
  setAttr(parts.check, "aria-label", `Select ${taskName(job)}`);
  parts.more.classList.toggle("none", !inside);
  parts.more.disabled = !inside;
  const kind = job.array_size ? "tasks" : "nodes";
  setAttr(parts.more, "aria-label", how.expanded ? `Hide ${kind}` : `Show ${kind}`);
  setAttr(parts.more, "aria-expanded", String(how.expanded));
  setText(parts.name.firstChild, child ? `[${job.index}]` : job.function ? called(job) : job.name);
  setAttr(parts.name, "href", jobHash(job.id));
  setAttr(parts.name, "title", child ? null : job.name);
  setText(parts.id, inside ? `${shortId(job.id)} · ${many(inside, job.array_size ? "task" : "node")}` : child ? "" : shortId(job.id));
  setText(parts.call, job.call ?? "");
  setAttr(parts.call, "title", job.call || null);
  setText(parts.of, child ? "" : job.workflow);
  setText(parts.workflow, child ? "" : job.workflow);
  parts.state.update(job.group, `${job.platform ?? "State"}: ${job.state}`);
  setText(parts.why, why(job));
  setAttr(parts.why, "title", why(job) || null);
  parts.why.classList.toggle("blocked", Boolean(job.remedy));
  const progress = Boolean(job.array_size);
  parts.bar.element.hidden = !progress;
  if (progress) parts.bar.update(job.by);
  setText(parts.share, progress ? `${count(done(job))} of ${count(job.array_size)}` : "");
  setText(parts.attempts, child || job.array_size ? "" : `${tried(job)} of ${job.attempts_allowed}`);
  setText(parts.started, job.started ? clock(job.started, now, new Date(job.started).toDateString() === new Date(now).toDateString()) : "");
  setAttr(parts.started, "title", job.started ? moment(job.started) : null);
  setText(parts.waited, job.array_size ? "" : span(waited(job, now)));
  setText(parts.ran, job.array_size && isOver(job.group) ? span(job.stopped - job.created) : span(ran(job, now)));
  setText(parts.asked, child ? "" : asked(job));
}

// Batch counts only finished attempts; people count the running one, too.
function tried(job) {
  const running = job.group === "running" || job.group === "starting";
  return Math.max(job.attempts + (running ? 1 : 0), 0);
}

// farcall marks its own reasons; the default one repeats the state.
const cancelReason = (reason) => reason.replace(/^farcall: /, "").replace(/^cancelled by its owner$/, "");

/** Returns a short reason for a job's state; empty if the state says enough. */
export function why(job) {
  if (job.remedy) return job.reason;
  if (!isOver(job.group) && job.group !== "running") return job.reason || (job.array ?? job).waits_for || "";
  if (job.group === "failed") {
    if (job.detail || job.error) return job.detail || job.error;
    const code = job.exit_code === null || job.exit_code === undefined ? "" : `exit code ${job.exit_code}`;
    return [code, job.reason].filter(Boolean).join(": ");
  }
  return job.group === "cancelled" ? cancelReason(job.reason || "") : "";
}
