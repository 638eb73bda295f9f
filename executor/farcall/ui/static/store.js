// The known jobs and their runs, with listeners for changes.

import { frame } from "./dom.js";
import { GROUPS, groupOf, isOver, ms } from "./format.js";
import { why } from "./rows.js";

/** Returns counts of 0 for each group. */
export const nothing = () => Object.fromEntries(GROUPS.map((group) => [group.key, 0]));

/**
 * Returns a job's tasks by group: itself, or the children of an array.
 * @param {object} job a record
 * @param {number} [cancelled] how many of the children were cancelled, if the children say so
 */
export function countsOf(job, cancelled = job.counts?.CANCELLED ?? 0) {
  const counts = nothing();
  if (!job.array_size) {
    counts[groupOf(job.state)] = 1;
    return counts;
  }
  let told = 0;
  for (const [state, n] of Object.entries(job.counts ?? {})) {
    counts[groupOf(state)] += n;
    told += n;
  }
  const unsuccessful = counts.failed + counts.cancelled;
  counts.cancelled = Math.min(unsuccessful, cancelled);
  counts.failed = unsuccessful - counts.cancelled;
  // Not every listing has counts.
  counts[groupOf(job.state)] += Math.max(0, job.array_size - told);
  return counts;
}

class Store {
  constructor() {
    this.jobs = new Map();
    this.runs = new Map();
    this.users = new Set();
    this.totals = nothing();
    this.version = 0;
    this._turn = 0;
    this._cancelled = new Map();
    this._ended = new Map();
    this._heard = new Set();
    this._stale = new Set();
    this._tell = () => this._settle();
  }

  /** Calls a function after changes, at most once per frame. */
  listen(f) {
    this._heard.add(f);
  }

  /** Adds or updates jobs. */
  upsert(jobs) {
    for (const reported of jobs) {
      const job = { ...reported, state: this.stateOf(reported.id, reported.state) };
      const counts = countsOf(job, this._cancelled.get(job.id));
      const known = this.jobs.get(job.id);
      const entry = Object.assign(known ?? {}, job, {
        group: groupOf(job.state),
        by: counts,
        size: job.array_size || 1,
        created: ms(job.created_at),
        started: ms(job.started_at),
        stopped: ms(job.stopped_at),
        key: `${job.run}/${job.workflow}`,
        turn: this._turn,
        names: `${job.function} ${job.name} ${job.id} ${job.workflow} ${job.run} ${job.user}`.toLowerCase(),
      });
      entry.said = [entry.call, why(entry), ...(entry.errors ?? []).map(({ text }) => text)].filter(Boolean).join(" ").toLowerCase();
      entry.changed = (known?.changed ?? 0) + 1;
      this.jobs.set(job.id, entry);
      this.users.add(job.user);
      let run = this.runs.get(entry.key);
      if (!run) {
        run = { key: entry.key, run: job.run, workflow: job.workflow, dispatch: job.dispatch, user: job.user, jobs: new Map() };
        summarize(run);
        this.runs.set(entry.key, run);
      }
      run.jobs.set(job.id, entry);
      this._stale.add(run);
    }
    frame(this._tell);
  }

  /** Sets the number of an array's cancelled tasks. */
  learnCancelled(job, n) {
    if (this._cancelled.get(job.id) === n) return;
    this._cancelled.set(job.id, n);
    if (this.jobs.has(job.id)) this.upsert([job]);
  }

  /** Records the final state of a task, which its stored result shows before the platform reports it. */
  learnEnded(id, state) {
    if (this._ended.get(id) === state) return;
    this._ended.set(id, state);
    if (this.jobs.has(id)) this.upsert([this.jobs.get(id)]);
  }

  /** Returns a task's state: as reported, or final if its stored result is known to be. */
  stateOf(id, reported) {
    return isOver(groupOf(reported)) ? reported : (this._ended.get(id) ?? reported);
  }

  /** Starts a complete reload; known jobs stay until `sweep`. */
  renew() {
    this._turn += 1;
  }

  /** Removes jobs that were not received since `renew`. */
  sweep() {
    for (const [id, job] of this.jobs) {
      if (job.turn === this._turn) continue;
      const run = this.runs.get(job.key);
      this.jobs.delete(id);
      run.jobs.delete(id);
      this._stale.add(run);
      if (!run.jobs.size) this.runs.delete(run.key);
    }
    frame(this._tell);
  }

  /** Returns the run that an address names; the newest of several workflows in one process. */
  run(run, workflow) {
    if (workflow !== undefined) return this.runs.get(`${run}/${workflow}`);
    return this.newest().find((one) => one.run === run);
  }

  /** Returns all runs, the newest first. */
  newest() {
    return [...this.runs.values()].sort((a, b) => b.created - a.created);
  }

  _settle() {
    for (const run of this._stale) summarize(run);
    this._stale.clear();
    this.totals = nothing();
    for (const run of this.runs.values()) for (const key in run.counts) this.totals[key] += run.counts[key];
    this.version += 1;
    for (const f of this._heard) f();
  }
}

function summarize(run) {
  run.counts = nothing();
  run.size = 0;
  run.created = Infinity;
  run.started = Infinity;
  run.stopped = 0;
  for (const job of run.jobs.values()) {
    for (const key in job.by) run.counts[key] += job.by[key];
    run.size += job.size;
    if (job.created !== null) run.created = Math.min(run.created, job.created);
    if (job.started) run.started = Math.min(run.started, job.started);
    run.stopped = Math.max(run.stopped, job.stopped ?? 0);
  }
  run.left = run.counts.waiting + run.counts.starting + run.counts.running;
  run.text = `${run.workflow} ${run.run} ${run.user}`.toLowerCase();
}

export const store = new Store();
