// Entry point: requests the token, follows the jobs, and shows the view that the address names.

import { follow, get, keepToken, onRefused, takeToken } from "./api.js";
import { cancelRun, cancelTasks } from "./cancel.js";
import { forgetChildren, onChildren, watch } from "./children.js";
import { Detail } from "./detail.js";
import { openHelp, themeButton, tokenForm } from "./dialogs.js";
import { frame, h, icon, setAttr, setText } from "./dom.js";
import { controls, wanted } from "./filters.js";
import { count, isOver, many, ms } from "./format.js";
import { cancellations, forgetCancellations } from "./cancellations.js";
import { MainView } from "./mainview.js";
import { listenForKeys } from "./keys.js";
import { openRetryFailed } from "./retry.js";
import { setPrices } from "./resource_hours.js";
import { isNode, jobHash, partsOfId } from "./rows.js";
import { runHash, runsList } from "./runs.js";
import { store } from "./store.js";

const place = { scope: null, job: null, view: "runs" };
const live = { loading: true, error: "", state: "Loading…", stream: null };
let page = null;
// Time after which a hidden window closes its connections, in ms.
const REST_MS = 3000;

const token = tokenForm((said) => {
  keepToken(said);
  token.hide();
  start();
});
document.body.append(token.element);

onRefused(() => {
  live.stream?.close();
  forgetChildren();
  page?.detail.show(null);
  page?.element.remove();
  document.querySelectorAll("dialog").forEach((dialog) => dialog.close());
  page = null;
  keepToken("");
  token.show("This token is from another session. farcall ui prints a new token at each start.");
});

async function start() {
  let about;
  try {
    about = await get("/api/about");
  } catch (error) {
    if (error.status === 401) return;
    live.error = error.message;
    const again = h("button.strong", { type: "button", on: { click: () => (failed.remove(), start()) } }, "Try again");
    const failed = h("main.token", {}, h("div", { role: "alert" }, h("h1.brand", {}, "farcall"), h("p", { text: error.message }), h("div.buttons", {}, again)));
    document.body.append(failed);
    return;
  }
  setPrices(about.prices);
  page = build(about);
  document.body.prepend(page.element);
  route();
  listen();
}

function build(about) {
  const status = h("span.live", { role: "status", "aria-label": "Connection" });
  const alert = h("div.banner-error", { role: "alert", hidden: true, data: { testid: "banner-error" } });
  const filters = controls({ change: () => frame(update), since: listen }, ms(about.since));
  const runs = runsList();
  const open = (task) => (location.hash = task.run?.jobs ? runHash(task.run) : jobHash(task.id));
  const retry = (jobs) => openRetryFailed(jobs, (id) => (location.hash = jobHash(id)));
  const main = new MainView({ open, cancelRun, cancelTasks: (tasks) => cancelTasks(tasks, () => main.table.clear()), retry: about.read_only ? null : retry, watch: () => frame(watchShown), readOnly: about.read_only });
  const detail = new Detail({ open, close: closeTask, cancel: (task) => cancelTasks([task]), readOnly: () => about.read_only });
  const where = [about.region, ...about.queues].filter(Boolean).join(" · ");
  const element = h("div.page", {},
    h("header.top-bar", { role: "banner" },
      h("div.top-line", {}, h("h1.brand", {}, h("a", { href: "#/" }, "farcall")), h("bdi.where", { text: where, title: where }),
        about.read_only ? h("span.badge", { data: { testid: "read-only" } }, "Read-only") : null,
        h("span.gap"), status, themeButton(), h("button.plain", { type: "button", "aria-label": "Help", title: "Help (?)", on: { click: openHelp } }, icon("help"))),
      h("div.filter-line", {}, filters.states, filters.choices)),
    alert, h("main.columns", {}, runs.element, main.element, detail.element), cancellations);
  const shown = () => (place.job && !detail.element.hidden ? [detail.task()] : []).filter(Boolean);
  /** Opens the cancel dialog for the selected tasks, the task in the panel, or else the run. */
  const cancel = () => {
    if (about.read_only) return;
    const tasks = [main.table.chosenTasks(), shown(), main.table.activeTasks()].find((some) => some.some((task) => !isOver(task.group) && !isNode(task)));
    if (tasks) cancelTasks(tasks, () => main.table.clear());
    else if (main.scope?.left) cancelRun(main.scope);
  };
  return { element, about, status, alert, filters, runs, main, detail, cancel };
}

// Follows the jobs from now on, as far back as requested.
function listen() {
  live.stream?.close();
  live.loading = true;
  let fresh = true;
  live.stream = follow(`/api/events${wanted.since && `?since=${encodeURIComponent(wanted.since)}`}`, {
    // Each stream starts with all jobs; the known ones stay visible meanwhile.
    open() {
      fresh = true;
      store.renew();
    },
    jobs: ({ jobs }) => store.upsert(jobs),
    state({ loading, error, requests }) {
      live.loading = loading;
      live.error = error ?? "";
      if (page && requests) setAttr(page.status, "title", `${many(requests.last_minute, "request")} in the last minute`);
      say(loading ? "Loading…" : error ? "Out of date" : "Live");
      if (loading || !fresh) return;
      fresh = false;
      store.sweep();
    },
    broken(error) {
      live.error = error.status ? error.message : "";
      say(error.status >= 400 && error.status < 500 ? "Offline" : "Reconnecting…");
    },
  });
  frame(update);
}

function rest(yes) {
  if (!page) return;
  live.rests = yes;
  page.detail.rest(yes);
  if (!yes) return listen();
  live.stream?.close();
  watch([]);
}

function say(state) {
  live.state = state;
  frame(update);
}

function update() {
  if (!page) return;
  if (place.address) resolve();
  setText(page.status, live.state);
  page.status.dataset.state = live.state;
  page.alert.hidden = !live.error;
  setText(page.alert, live.error);
  document.body.classList.toggle("loading", live.loading);
  const scope = place.scope ?? (place.job ? "all" : null);
  page.filters.update(scope);
  page.runs.update(scope, live.loading);
  page.main.show(scope);
  page.main.update(live);
  page.detail.update();
  const { running, failed } = store.totals;
  document.title = [running ? `${count(running)} running` : "", failed ? `${count(failed)} failed` : "", "farcall"].filter(Boolean).join(" · ");
  watchShown();
}

function watchShown() {
  if (!page) return;
  if (live.rests) return;
  const { detail, main } = page;
  const [parent, index] = partsOfId(place.job ?? "");
  const first = index === undefined ? detail.whole() : store.jobs.get(parent);
  watch([...new Set([first, ...main.arrays()])].filter(Boolean));
}

// #/, #/all, #/run/<run>, #/run/<run>/<workflow>, #/job/<id>
function route() {
  if (!page) return;
  const [kind, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decode);
  place.job = kind === "job" && rest[0] ? rest[0] : null;
  place.view = kind === "job" ? "job" : kind === "run" || kind === "all" ? "main" : "runs";
  place.address = kind === "run" || kind === "job" ? { kind, rest } : null;
  if (kind !== "run" && kind !== "job") place.scope = "all";
  document.body.dataset.view = place.view;
  forgetCancellations();
  page.detail.show(place.job);
  page.main.mark(place.job);
  frame(update);
}

// The run or job in the address may not be loaded yet.
function resolve() {
  const { kind, rest } = place.address;
  if (kind === "run") place.scope = store.run(rest[0], rest[1] || undefined) ?? null;
  else if (place.scope !== "all") place.scope = store.runs.get(store.jobs.get(partsOfId(rest[0])[0])?.key) ?? place.scope;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function closeTask() {
  location.hash = place.scope && place.scope !== "all" ? runHash(place.scope) : "#/all";
  page.main.table.element.focus({ preventScroll: true });
}

store.listen(() => frame(update));
onChildren(() => frame(update));
setInterval(() => {
  if (!page || document.hidden) return;
  page.runs.tick();
  page.main.tick();
  page.detail.update();
}, 1000);
// A hidden window closes its connections: a browser allows six for all windows of a server.
document.addEventListener("visibilitychange", () => {
  clearTimeout(live.resting);
  if (document.hidden) live.resting = setTimeout(() => rest(true), REST_MS);
  else if (live.rests) rest(false);
  else frame(update);
});
addEventListener("hashchange", () => {
  if (/^#\/?[?&]?token=/.test(location.hash)) {
    takeToken();
    location.reload();
  } else route();
});
listenForKeys({ page: () => page, closeTask: () => place.job && closeTask(), help: openHelp });

setAttr(document.body, "data-view", "runs");
if (takeToken()) start();
else token.show("");
