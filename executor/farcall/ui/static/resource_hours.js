// vCPU-hours and GB-hours of tasks, the units in which Fargate is charged.

import { childrenOf } from "./children.js";
import { ran } from "./rows.js";

const HOUR_MS = 3600000;
const DOLLARS = new Intl.NumberFormat("en", { style: "currency", currency: "USD" });

/** Returns the resources of a job, an array task or a node: {vcpu, gb}. */
function held(job) {
  const whole = job.array;
  if (whole?.node_count) return held({ node_count: 1, groups: whole.groups.filter((group) => group.first <= job.index && job.index <= group.last).map((group) => ({ ...group, first: 0, last: 0 })) });
  if (whole) return held(whole);
  if (!job.node_count) return { vcpu: job.vcpu ?? 0, gb: (job.memory_mib ?? 0) / 1024 };
  const sum = { vcpu: 0, gb: 0 };
  for (const group of job.groups ?? []) {
    const nodes = group.last - group.first + 1;
    sum.vcpu += nodes * group.vcpu;
    sum.gb += (nodes * group.memory_mib) / 1024;
  }
  return sum;
}

const before = (job) => 1000 * (job.previous_attempts_s ?? 0);

/**
 * Returns the hours of jobs up to now, in all: {vcpu, gb, left}; `left` is how many arrays are not
 * counted, or not whole, because their children are not known. A child has what its array has.
 */
export function hoursOf(jobs, now) {
  const sum = { vcpu: 0, gb: 0, left: 0 };
  for (const job of jobs) {
    let ms = (ran(job, now) ?? 0) + before(job);
    if (job.array_size) {
      const list = childrenOf(job.id).list.filter(Boolean);
      ms = list.reduce((all, child) => all + (ran(child, now) ?? 0) + before(child), 0);
      if (list.length < job.array_size && hasBegun(job)) sum.left += 1;
    }
    const { vcpu, gb } = held(job);
    sum.vcpu += (vcpu * ms) / HOUR_MS;
    sum.gb += (gb * ms) / HOUR_MS;
  }
  return sum;
}

const hasBegun = (array) => ["running", "succeeded", "failed", "cancelled"].some((group) => array.by[group]);

let prices = { vcpu_hour: 0, gb_hour: 0 };

/** Sets the user's prices in dollars, with which hours have a cost. */
export const setPrices = (set) => (prices = set);

/** Returns hours as text: "0.52 vCPU-hours, 1.9 GB-hours", and their cost if there are prices. */
export function inHours({ vcpu, gb }) {
  const hours = `${short(vcpu)} vCPU-hours, ${short(gb)} GB-hours`;
  return prices.vcpu_hour || prices.gb_hour ? `${hours}, ${dollars(vcpu * prices.vcpu_hour + gb * prices.gb_hour)}` : hours;
}

const dollars = (amount) => (amount < 0.01 ? "less than $0.01" : DOLLARS.format(amount));

function short(n) {
  if (n === 0) return "0";
  return n < 0.001 ? "<0.001" : n < 10 ? String(Number(n.toPrecision(2))) : new Intl.NumberFormat("en", { maximumFractionDigits: 1 }).format(n);
}
