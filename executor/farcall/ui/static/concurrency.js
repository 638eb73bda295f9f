// Statistics of many tasks: how many ran at a time, and the distribution of a number.

/** Number of tasks above which the timeline shows a count instead of a row per task. */
export const MANY = 100;

const MOST_BINS = 24;
// Ratio of largest to smallest above which bins grow by a factor instead of a difference.
const WIDE = 50;

/** Returns the number of running tasks after each change: {at, running, peak}. */
export function curve(tasks) {
  const starts = Float64Array.from(tasks.filter((task) => task.started), (task) => task.started).sort();
  const ends = Float64Array.from(tasks.filter((task) => task.started && task.stopped), (task) => task.stopped).sort();
  const at = new Float64Array(starts.length + ends.length);
  const running = new Int32Array(at.length);
  let [begun, over, peak] = [0, 0, 0];
  for (let n = 0; n < at.length; n += 1) {
    // A task that stops at the moment another starts does not overlap with it.
    if (over < ends.length && (begun === starts.length || ends[over] <= starts[begun])) at[n] = ends[over++];
    else at[n] = starts[begun++];
    running[n] = begun - over;
    peak = Math.max(peak, running[n]);
  }
  return { at, running, peak };
}

/** Returns the maximum of running tasks within each of several equal time spans. */
export function inParts({ at, running }, from, to, parts) {
  const found = new Uint32Array(parts);
  let n = 0;
  let value = 0;
  for (let part = 0; part < parts; part += 1) {
    const begin = from + ((to - from) * part) / parts;
    const end = from + ((to - from) * (part + 1)) / parts;
    while (n < at.length && at[n] <= begin) value = running[n++];
    let most = value;
    while (n < at.length && at[n] < end) most = Math.max(most, (value = running[n++]));
    found[part] = most;
  }
  return found;
}

/** Returns how many ran at a moment. */
export function ranAt({ at, running }, moment) {
  let [low, high] = [0, at.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at[middle] <= moment) low = middle + 1;
    else high = middle;
  }
  return low ? running[low - 1] : 0;
}

/**
 * Sorts numbers into bins.
 * @param {number[]} values at least one
 * @returns {{edges: number[], counts: number[], low: number, median: number, high: number}} bin n
 *   is from edge n to edge n + 1
 */
export function bins(values) {
  const sorted = Float64Array.from(values).sort();
  const [low, high] = [sorted[0], sorted[sorted.length - 1]];
  const median = sorted[(sorted.length - 1) >> 1];
  const n = low === high ? 1 : Math.min(MOST_BINS, Math.max(4, Math.ceil(Math.sqrt(sorted.length))));
  const grows = low > 0 && high / low > WIDE;
  const edge = (k) => (k === n ? high : grows ? low * (high / low) ** (k / n) : low + ((high - low) * k) / n);
  const edges = Array.from({ length: n + 1 }, (_, k) => edge(k));
  const counts = new Array(n).fill(0);
  let bin = 0;
  for (const value of sorted) {
    while (bin < n - 1 && value >= edges[bin + 1]) bin += 1;
    counts[bin] += 1;
  }
  return { edges, counts, low, median, high };
}
