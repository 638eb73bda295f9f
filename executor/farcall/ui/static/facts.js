// Sections of the task panel: failure reason, times, resources, attempts, job.

import { fill, h, icon, outside, setText } from "./dom.js";
import { bytes, clock, count, isOver, many, moment, ms, rung, shortId, span } from "./format.js";
import { hoursOf, inHours } from "./resource_hours.js";
import { copyButton, meter, name } from "./parts.js";
import { jobHash, partsOfId, ran } from "./rows.js";

/** Explains a task's state, and what to do. */
export function whySection({ explanation, record, position }) {
  const said = explanation ?? {};
  const place = position ? `Position ${count(position)} in queue ${record.queue}.` : "";
  const calls = Object.entries(said.calls ?? {}).map(([word, n]) => `${count(n)} ${word.replaceAll("_", " ")}`);
  const remedy = said.remedy || record.remedy;
  return [
    said.message || record.reason ? h("p.sentence", { data: { testid: "sentence" } }, said.error ? h("b.error-name", { text: said.error }) : null, name(sentence(said.message || record.reason))) : null,
    record.warning ? h("p.trouble", { role: "alert" }, name(sentence(record.warning))) : null,
    place ? h("p.quiet", { text: place }) : null,
    remedy ? advice(remedy, isWell(said.kind) || (said.kind === "waiting" && !record.remedy)) : null,
    calls.length > 1 ? h("p.quiet", { text: `Calls: ${calls.join(", ")}.` }) : null,
    said.children?.length ? failedChildren(said.children) : null,
    said.traceback ? h("section", {}, h("div.section-head", {}, h("h3", {}, "Traceback"), copyButton("Copy traceback", said.traceback)),
      h("pre.traceback", { tabindex: "0", data: { testid: "traceback" }, text: said.traceback.trimEnd() })) : null,
    said.log?.length ? h("section", {}, h("div.section-head", {}, h("h3", {}, "Last log lines"), copyButton("Copy lines", said.log.join("\n"))),
      h("pre.traceback", { tabindex: "0", data: { testid: "log" }, text: said.log.join("\n") })) : null,
  ];
}

const isWell = (kind) => kind === "running" || kind === "returned";

/** Shows what to do; commands are in backticks. It looks calm if nothing is wrong. */
function advice(remedy, isCalm) {
  const parts = sentence(remedy).split("`").map((part, n) => (n % 2 ? h("code", { text: part }) : name(part)));
  const heading = isCalm && remedy.includes("`") ? "Commands" : "What to do";
  return h(isCalm ? "div.remedy.calm" : "div.remedy", { data: { testid: "remedy" } }, h("b", {}, heading), h("div", {}, ...parts));
}

function failedChildren(children) {
  return h("section", {}, h("h3", {}, "First failures"), h("ul.failed-children", {}, ...children.map((child) =>
    h("li", {}, icon("failed"), h("div", {}, h("a", { href: jobHash(child.job_id) }, `[${partsOfId(child.job_id)[1]}] ${child.error}`), h("div.quiet", {}, name(sentence(child.message))))))));
}

function sentence(text) {
  const said = String(text).trim();
  const begun = /^(`|\w+:\/\/)/.test(said) ? said : said.charAt(0).toUpperCase() + said.slice(1);
  return said && !/[.?!]$/.test(said) ? `${begun}.` : begun;
}

/** Shows the resources that a task requested and used. */
export function usageSection({ record, usage }) {
  const asked = record.memory_mib * 1048576;
  const limit = usage?.memory_limit_bytes || asked;
  const rows = [];
  if (usage?.peak_memory_bytes && limit) rows.push(meter("Peak memory", usage.peak_memory_bytes / limit, `${bytes(usage.peak_memory_bytes)} of ${bytes(limit)}`));
  if (usage?.wall_s && record.vcpu) {
    const busy = usage.cpu_s / usage.wall_s;
    const share = busy / record.vcpu;
    if (share >= 0.01) rows.push(meter("Avg. CPU", share, `${busy.toFixed(2)} of ${record.vcpu} vCPU`));
  }
  const limits = pairs([
    ["Requested", [record.vcpu && `${record.vcpu} vCPU`, asked && bytes(asked) + rung(record.memory_rung), record.gpus && many(record.gpus, "GPU")].filter(Boolean).join(", ")],
    ["Time limit", record.time_limit_s ? span(record.time_limit_s * 1000) : "none"],
    usage ? ["CPU time", span(usage.cpu_s * 1000)] : null,
  ]);
  return [h("h3", {}, "Resources"), ...rows, limits];
}

/** Makes the section with a task's duration and resource hours up to now. */
export function soFar() {
  const hours = h("p", { data: { testid: "hours" } });
  const time = h("div");
  const element = h("section.part", {}, h("h3"), time, hours);
  let shown = "";
  return {
    element,
    update(task, now) {
      const { vcpu, gb, left } = hoursOf([task], now);
      setText(element.firstChild, isOver(task.group) ? "Resource use" : "Resource use so far");
      setText(hours, `${inHours({ vcpu, gb })}${left ? ", without tasks that are not loaded yet" : ""}`);
      element.hidden = !vcpu && !gb;
      const limit = task.group === "running" && task.time_limit_s ? task.time_limit_s * 1000 : 0;
      const words = limit ? `${span(ran(task, now))} of ${span(limit)}` : "";
      if (words === shown) return;
      shown = words;
      fill(time, words ? meter("Duration", ran(task, now) / limit, words) : null);
    },
  };
}

/** Shows when the job was submitted, started and finished. */
export function timesSection({ record }) {
  const [created, started, stopped] = [record.created_at, record.started_at, record.stopped_at].map(ms);
  const at = (moment_at) => h("time", { datetime: new Date(moment_at).toISOString(), title: moment(moment_at) }, clock(moment_at));
  return [h("h3", {}, "Times"), pairs([
    created ? ["Submitted", at(created)] : null,
    started ? ["Started", [at(started), h("span.quiet", { text: ` after ${span(started - created)}` })]] : null,
    stopped ? ["Finished", [at(stopped), started ? h("span.quiet", { text: ` after running ${span(stopped - started)}` }) : null]] : null,
  ])];
}

/** Lists the finished attempts. */
export function attemptsSection({ attempts, record, explanation }) {
  if (!attempts?.length) return [];
  const heads = ["#", "Started", "Duration", "Exit code", "Reason"];
  const rows = attempts.map((one, n) => {
    const [from, to] = [ms(one.started_at), ms(one.stopped_at)];
    const why = one.reason || explanation?.previous_attempts?.[n] || "";
    return h("tr", {}, h("td", { text: one.attempt }), h("td", { text: from ? clock(from) : "never" }), h("td", { text: from && to ? span(to - from) : "" }),
      h("td", { text: one.exit_code ?? "" }), h("td", {}, name(why)));
  });
  return [h("h3", {}, `Attempts, ${attempts.length} of ${record.attempts_allowed}`),
    h("div.scrolls", { tabindex: "0", role: "group", "aria-label": "Table of attempts" }, h("table", { "aria-label": "Attempts" }, h("thead", {}, h("tr", {}, ...heads.map((text) => h("th", { scope: "col", text })))), h("tbody", {}, ...rows)))];
}

/** Shows the job's data, with links to the AWS console. */
export function jobSection({ record, links, electron, retries }) {
  const shown = [["job", "Job in the AWS console"], ["log", "Log in CloudWatch"], ["queue", "Queue in the AWS console"]].filter(([key]) => links?.[key]);
  const tags = Object.entries(record.tags ?? {});
  return [h("h3", {}, "Job"), pairs([
    ["ID", [h("span.mono", { text: record.id }), copyButton("Copy job ID", record.id)]],
    ["Name", name(record.name)],
    record.call ? ["Call", h("span.mono", { data: { testid: "task-call" } }, name(record.call))] : null,
    record.retry_of ? ["Retry of", h("a.mono", { href: jobHash(record.retry_of), data: { testid: "retry-of" } }, name(shortId(record.retry_of)))] : null,
    retries.length ? ["Retried as", retries.flatMap((id, n) => [n ? ", " : "", h("a.mono", { href: jobHash(id) }, name(shortId(id)))])] : null,
    record.workflow ? ["Workflow", name(record.workflow)] : null,
    record.dispatch ? ["Dispatch", h("span.mono", { text: record.dispatch })] : null,
    electron === null || electron === undefined ? null : ["Electron", `node ${electron}`],
    ["User", name(record.user)],
    record.queue ? ["Queue", [name(record.queue), rung(record.queue_rung)]] : null,
    ["State", h("span.mono", { text: record.state })],
    record.reason ? [`${record.platform} reason`, name(record.reason)] : null,
    record.kind === "command" ? ["Kind", "a command"] : null,
    record.node_count ? ["Nodes", [count(record.node_count), record.instance_type && `on ${record.instance_type}`].filter(Boolean).join(" ")] : null,
    ...(record.groups?.length > 1 ? record.groups.map(groupRow) : [
      record.image ? ["Image", h("span.mono", {}, name(record.image))] : null,
      record.command?.length ? ["Command", h("span.mono", {}, name(words(record.command)))] : null]),
    record.definition ? ["Definition", h("span.mono", {}, name(record.definition))] : null,
    tags.length ? ["Tags", h("ul.tags", {}, ...tags.map(([key, value]) => h("li", {}, name(key), " = ", name(value))))] : null,
  ]), shown.length ? h("p.links", {}, ...shown.map(([key, text]) => outside(links[key], text))) : null];
}

// A node group's command, and the resources that each node requested.
function groupRow(group) {
  const nodes = group.first === group.last ? `Node ${group.first}` : `Nodes ${group.first} to ${group.last}`;
  const asked = [`${group.vcpu} vCPU`, bytes(group.memory_mib * 1048576), group.gpus && many(group.gpus, "GPU")].filter(Boolean).join(", ");
  return [nodes, [h("span.mono", {}, name(`${group.image} ${words(group.command)}`)), h("div.quiet", { text: asked })]];
}

// A command as a shell reads it.
const words = (command) => command.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");

function pairs(rows) {
  return h("dl", {}, ...rows.filter((row) => row && row[1]).flatMap(([term, said]) =>
    [h("dt", { text: term }), h("dd", {}, ...[said].flat().map((one) => (one && typeof one !== "object" ? String(one) : one)))]));
}
