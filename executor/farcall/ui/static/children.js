// Array tasks and nodes of multi-node jobs, which are followed only while they are shown.

import { follow, path } from "./api.js";
import { frame } from "./dom.js";
import { groupOf, isOver } from "./format.js";
import { partCount, partsOfId, why } from "./rows.js";
import { store } from "./store.js";

const arrays = new Map();
const listeners = new Set();
const tell = () => listeners.forEach((f) => f());

/** Calls a function after changes, at most once per frame. */
export const onChildren = (f) => listeners.add(f);

/** Returns an array's known tasks: {list, error, loading}; the list is by index, with holes. */
export function childrenOf(id) {
  return arrays.get(id) ?? { list: [], error: "", loading: true, version: 0 };
}

/**
 * Follows the children of one of some arrays: a browser opens six connections to one server, in all
 * its windows. One whose children are not known yet comes first, so that all are known in turn.
 * @param {object[]} jobs the arrays, those looked at most closely first
 */
export function watch(jobs) {
  const open = jobs.filter((job) => !arrays.get(job.id)?.done);
  const chosen = open.find((job) => !isKnown(job)) ?? open[0];
  for (const [id, array] of arrays) {
    if (id === chosen?.id) continue;
    array.stream?.close();
    array.stream = null;
  }
  if (!chosen) return;
  let array = arrays.get(chosen.id);
  if (!array) arrays.set(chosen.id, (array = { list: [], error: "", loading: true, version: 0, stream: null, done: false, unread: true }));
  array.stream ??= start(array, chosen);
}

function isKnown(job) {
  const array = arrays.get(job.id);
  return Boolean(array && (array.error || hasAll(array, job)));
}

// The last task may be known before others, so the length is no count.
function hasAll(array, job) {
  return array.list.filter(Boolean).length === partCount(job);
}

/** Records the final state of a job, array task or node. */
export function learnEnded(id, state) {
  store.learnEnded(id, state);
  const [parent, index] = partsOfId(id);
  const task = index && childrenOf(parent).list[Number(index)];
  if (!task || task.state === store.stateOf(id, task.reported)) return;
  Object.assign(task, { state, group: groupOf(state), changed: task.changed + 1 });
  arrays.get(parent).version += 1;
  frame(tell);
}

/** Forgets all tasks, for example after a change of the token. */
export function forgetChildren() {
  watch([]);
  arrays.clear();
}

// A node may run again, in another attempt of its job.
function isWhole(array, job) {
  const ended = job.array_size || isOver(job.group);
  return ended && hasAll(array, job) && array.list.every((one) => isOver(groupOf(one.reported)) && !one.unread);
}

function start(array, job) {
  const stream = follow(path("jobs", job.id, "children", "events"), {
    open() {
      array.error = "";
    },
    children({ children }) {
      for (const said of children) array.list[said.i] = child(job, said, array.list[said.i]);
      array.loading = false;
      array.version += 1;
      if (job.array_size && hasAll(array, job)) store.learnCancelled(job, array.list.filter((one) => one.group === "cancelled").length);
      frame(tell);
    },
    // After the previous message, so that none is in flight.
    state({ loading }) {
      array.unread = loading;
      if (array.unread || !isWhole(array, job)) return;
      array.done = true; // Nothing changes any more, so its connection is of use to others.
      stream.close();
      array.stream = null;
      frame(tell);
    },
    broken(error) {
      array.error = error.message;
      frame(tell);
    },
  });
  return stream;
}

// A child as the table and the timeline want it: like a job, with what is its array's.
function child(job, said, known) {
  const id = `${job.id}${job.array_size ? ":" : "#"}${said.i}`;
  const state = store.stateOf(id, said.s);
  const task = Object.assign(known ?? {}, {
    id,
    index: said.i,
    parent: job.id,
    array: job,
    function: job.function,
    kind: job.kind,
    workflow: job.workflow,
    time_limit_s: job.time_limit_s,
    label: `${job.function}[${said.i}]`,
    state,
    reported: said.s,
    group: groupOf(state),
    created: said.c ?? job.created,
    started: said.b,
    stopped: said.e,
    exit_code: said.x,
    reason: said.r ?? "",
    call: said.a ?? "",
    error: said.w ?? "",
    unread: said.w === null,
    array_size: 0,
    node_count: 0,
    size: 1,
    changed: (known?.changed ?? 0) + 1,
  });
  task.text = `${task.label} ${task.call} ${why(task)}`.toLowerCase();
  return task;
}
