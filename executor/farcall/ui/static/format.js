// Formats states, durations and sizes as text.

/** States as people see them. Batch has three for waiting, and none for cancelled. */
export const GROUPS = [
  { key: "waiting", word: "Waiting", states: ["SUBMITTED", "PENDING", "RUNNABLE"] },
  { key: "starting", word: "Starting", states: ["STARTING"] },
  { key: "running", word: "Running", states: ["RUNNING"] },
  { key: "succeeded", word: "Succeeded", states: ["SUCCEEDED"] },
  { key: "failed", word: "Failed", states: ["FAILED"] },
  { key: "cancelled", word: "Cancelled", states: ["CANCELLED"] },
];

const BY_STATE = new Map(GROUPS.flatMap((group) => group.states.map((state) => [state, group.key])));
const WORDS = new Map(GROUPS.map((group) => [group.key, group.word]));
const OVER = new Set(["succeeded", "failed", "cancelled"]);

/** Returns the group of a state; an unknown state is waiting. */
export const groupOf = (state) => BY_STATE.get(state) ?? "waiting";
export const wordOf = (group) => WORDS.get(group);
/** Returns whether the state is final. */
export const isOver = (group) => OVER.has(group);

/** Returns a duration in its two largest units that are not 0: "3 min 12 s", "5 min". */
export function span(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "";
  const s = Math.max(0, ms) / 1000;
  if (s < 1) return `${Math.round(s * 10) / 10} s`;
  if (s < 10) return `${(Math.floor(s * 10) / 10).toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return inUnits(m, "min", Math.floor(s % 60), "s");
  const hours = Math.floor(m / 60);
  return hours < 48 ? inUnits(hours, "h", m % 60, "min") : inUnits(Math.floor(hours / 24), "d", hours % 24, "h");
}

const inUnits = (large, unit, small, below) => `${large} ${unit}${small ? ` ${small} ${below}` : ""}`;

/** Returns a duration in one unit: "3 min". */
export function brief(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}

/** Returns how long ago a moment is, in one unit. */
export function ago(at, now) {
  const s = Math.max(0, now - at) / 1000;
  if (s < 60) return "just now";
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86400)} days ago`;
}

const CLOCK = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const SHORT = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat([], { day: "numeric", month: "short" });
const FULL = new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "long", hourCycle: "h23" });
const COUNT = new Intl.NumberFormat("en");

/** Returns a clock's time, with the day where it is not today. */
export function clock(at, now = Date.now(), seconds = true) {
  const date = new Date(at);
  const time = (seconds ? CLOCK : SHORT).format(date);
  return date.toDateString() === new Date(now).toDateString() ? time : `${DAY.format(date)}, ${time}`;
}
/** Returns a moment in full, with its time zone. */
export const moment = (at) => FULL.format(new Date(at));
/** Returns a number with thousands separators. */
export const count = (n) => COUNT.format(n);
/** Returns "1 task", "2 tasks". */
export const many = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;

/** Returns an amount of memory in binary units. */
export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let left = n;
  while (left >= 1024 && unit < units.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${unit === 0 || left >= 100 ? Math.round(left) : Number(left.toFixed(1))} ${units[unit]}`;
}

/** Returns a value's position in an option's list: " (2 of 3)". */
export const rung = (place) => (place ? ` (${place[0]} of ${place[1]})` : "");

/** Returns a job's requested resources: "2 vCPU · 3.8 GiB". */
export function asked(job) {
  const parts = [];
  if (job.vcpu) parts.push(`${job.vcpu} vCPU`);
  if (job.memory_mib) parts.push(bytes(job.memory_mib * 1048576) + rung(job.memory_rung));
  if (job.gpus) parts.push(many(job.gpus, "GPU"));
  if (job.queue_rung?.[0] > 1) parts.push(`queue ${job.queue}${rung(job.queue_rung)}`);
  return parts.join(" · ");
}

/** Returns the first characters of a job's ID; an array task's with its index. */
export function shortId(id) {
  const [parent, mark = "", index = ""] = id.split(/([:#])/);
  const own = /-([0-9a-f]{8,16})$/.exec(parent); // of a name what no other has
  const isName = own && !/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-/.test(parent);
  return (isName ? own[1] : parent).slice(0, 8) + mark + index;
}

/** Returns an ISO 8601 time in milliseconds; null if there is none. */
export const ms = (iso) => (iso ? Date.parse(iso) : null);

/** Returns counts as words, the largest concerns first: "2 running, 3 waiting". */
export function inWords(counts, keys = GROUPS.map((group) => group.key)) {
  return keys
    .filter((key) => counts[key])
    .map((key) => `${count(counts[key])} ${wordOf(key).toLowerCase()}`)
    .join(", ");
}
