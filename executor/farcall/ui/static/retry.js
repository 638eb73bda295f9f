// Retry dialog: shows which tasks would run again and with which options, and submits the retry.

import { get, path, post } from "./api.js";
import { fill, h, setText } from "./dom.js";
import { many } from "./format.js";
import { name } from "./parts.js";
import { taskName } from "./rows.js";

/** Opens the dialog for the failed tasks of some jobs; `open(id)` shows the first new job. */
export function openRetryFailed(jobs, open) {
  if (jobs.length === 1) return openRetry(jobs[0], open, true);
  const tasks = many(jobs.reduce((sum, job) => sum + job.by.failed, 0), "failed task");
  const trouble = h("p.trouble", { role: "alert", hidden: true });
  const send = h("button.strong", { type: "submit", data: { testid: "retry-send" } }, `Retry ${tasks}`);
  const form = h("form", { method: "dialog" },
    h("p.big", { data: { testid: "retry-sentence" } }, `${tasks} of ${many(jobs.length, "job")}`),
    h("p", {}, "The failed tasks of each job run again as one new job, with the options of the old one."),
    trouble, h("div.buttons", {}, h("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel"), send));
  const dialog = h("dialog.retry", { "aria-label": "Retry" }, h("h2", {}, "Retry failed tasks?"), form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    setText(send, "Submitting…");
    const submitted = [];
    const errors = [];
    for (const job of jobs) {
      try {
        submitted.push((await post(path("jobs", job.id, "retry"), { failed: true })).id);
      } catch (error) {
        errors.push(error.message);
      }
    }
    if (submitted.length) open(submitted[0]);
    if (!errors.length) return dialog.close();
    setText(send, `Retry ${tasks}`);
    setText(trouble, `${many(errors.length, "job")} could not be retried: ${errors[0]}`);
    trouble.hidden = false;
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  send.focus();
}

/** Opens the dialog for a job; `open(id)` shows the new job, `failed` leaves out cancelled tasks. */
export async function openRetry(task, open, failed = false) {
  const body = h("div", {}, h("p.quiet", {}, "Loading failed tasks…"));
  const close = h("button", { type: "button", on: { click: () => dialog.close() } }, "Close");
  const dialog = h("dialog.retry", { "aria-label": "Retry" }, h("h2", {}, "Retry ", name(taskName(task)), "?"), body, h("div.buttons", {}, close));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  let said;
  try {
    said = await get(path("jobs", task.id, "retry"));
  } catch (error) {
    return fill(body, h("p.trouble", { role: "alert", text: error.message }));
  }
  if (said.refused) return fill(body, h("p", { data: { testid: "retry-refused" } }, name(said.refused)));
  const form = retryForm(task.id, said, failed, (id) => {
    dialog.close();
    open(id);
  });
  close.parentElement.remove();
  fill(body, form(() => dialog.close()));
  body.querySelector("input")?.focus();
}

// Returns a function that makes the form with a field per option. Only changed fields are sent.
function retryForm(id, said, failed, done) {
  const fields = said.options.map((option) => {
    const before = option.value === null ? "" : String(option.value);
    const input = h("input", { type: "text", id: `retry-${option.name}`, value: before, autocomplete: "off", spellcheck: "false", placeholder: option.value === null ? "none" : null, title: option.help });
    return { option, before, input };
  });
  const leavesOut = h("input", { type: "checkbox", id: "retry-failed" });
  leavesOut.checked = failed && said.cancelled > 0;
  const trouble = h("p.trouble", { role: "alert", hidden: true });
  const words = () => `Retry ${many(said.tasks - (leavesOut.checked ? said.cancelled : 0), "task")}`;
  const send = h("button.strong", { type: "submit", data: { testid: "retry-send" } }, words());
  leavesOut.addEventListener("change", () => setText(send, words()));
  return (cancel) => {
    const form = h("form", { method: "dialog" },
      h("p.big", { data: { testid: "retry-sentence" } }, name(said.message)),
      said.unfinished ? h("p.quiet", {}, `${many(said.unfinished, "unfinished task")} will not run again.`) : null,
      said.retries.length ? h("p.quiet", {}, `The tasks of ${many(said.retries.length, "earlier retry", "earlier retries")} are not included.`) : null,
      h("div.fields", {}, ...fields.flatMap(({ option, input }) => [
        h("label", { for: input.id, text: option.name.replaceAll("_", " ") }), h("span.field", {}, input, h("span.quiet", { text: option.unit }))])),
      said.cancelled ? h("label.check", {}, leavesOut, ` Leave out ${many(said.cancelled, "cancelled task")}`) : null,
      trouble, h("div.buttons", {}, h("button", { type: "button", on: { click: cancel } }, "Cancel"), send));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const options = {};
      for (const { option, before, input } of fields) if (input.value.trim() !== before) options[option.name] = input.value.trim();
      send.disabled = true;
      setText(send, "Submitting…");
      trouble.hidden = true;
      try {
        const { id: newer } = await post(path("jobs", id, "retry"), { options, failed: leavesOut.checked });
        done(newer);
      } catch (error) {
        setText(trouble, error.message);
        trouble.hidden = false;
        send.disabled = false;
        setText(send, words());
      }
    });
    return form;
  };
}
