// The scale of a timeline: positions, ticks, and a summary in words.

import { clock, many, span } from "./format.js";

/** Returns the visible time span and its conversion to pixels. */
export function layout(tasks, { now, width, gutter, zoom }) {
  let from = Infinity;
  let to = -Infinity;
  for (const task of tasks) {
    from = Math.min(from, task.created);
    to = Math.max(to, task.stopped ?? now);
  }
  if (!tasks.length) [from, to] = [now - 60000, now];
  if (to - from < 1000) to = from + 1000;
  to += (to - from) * 0.02;
  if (zoom) [from, to] = zoom;
  const left = gutter;
  const right = width;
  const scale = (right - left) / (to - from);
  return { from, to, left, right, x: (at) => left + (at - from) * scale, t: (x) => from + (x - left) / scale };
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

/** Returns the ticks at round clock times. */
export function ticks(from, to, width) {
  const most = Math.max(2, Math.floor(width / 110));
  const step = (STEPS.find((s) => (to - from) / (s * 1000) <= most) ?? 2592000) * 1000;
  const zone = new Date(from).getTimezoneOffset() * 60000;
  const found = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step)
    found.push({ at, text: clock(at, to, step < 60000) });
  return found;
}

/** Returns the summary of the timeline. */
export function summary(tasks, now, noun = "task") {
  if (!tasks.length) return `No ${noun}s to draw yet.`;
  const begun = tasks.filter((task) => task.started);
  const [from] = bounds(tasks, (task) => task.created);
  const [, to] = bounds(tasks, (task) => task.stopped ?? now);
  const said = [`${many(tasks.length, noun)} in ${span(to - from)}`];
  if (begun.length) {
    const longest = most(begun, (task) => (task.stopped ?? now) - task.started);
    const peak = atOnce(begun, now);
    said.push(`at most ${many(peak, noun)} at a time`);
    if (tasks.length > 1) said.push(`the longest ran ${span((longest.stopped ?? now) - longest.started)} (${longest.label})`);
  }
  const waited = most(tasks, (task) => (task.started ?? task.stopped ?? now) - task.created);
  said.push(`the longest wait was ${span((waited.started ?? waited.stopped ?? now) - waited.created)}`);
  return `${said.join("; ")}.`;
}

function bounds(tasks, f) {
  let low = Infinity;
  let high = -Infinity;
  for (const task of tasks) {
    low = Math.min(low, f(task));
    high = Math.max(high, f(task));
  }
  return [low, high];
}

function most(tasks, f) {
  let found = tasks[0];
  for (const task of tasks) if (f(task) > f(found)) found = task;
  return found;
}

function atOnce(tasks, now) {
  const moments = tasks.flatMap((task) => [[task.started, 1], [task.stopped ?? now, -1]]);
  moments.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let running = 0;
  let peak = 0;
  for (const [, change] of moments) peak = Math.max(peak, (running += change));
  return peak;
}
