"""The web UI's lists: timeline, groups of runs, arguments and errors, and a retry.

Starts the web UI, the local AWS emulator and a browser, because lists are grouped, sorted and
filtered by JavaScript. Slow, because a browser keeps a core busy.
"""

import json
import re
import urllib.request
import uuid

import pytest
from playwright.async_api import expect

from tests.support.patience import until_async
from tests.ui import shells, tasks
from tests.ui.looking import row, wait_for_states

pytestmark = pytest.mark.asyncio(loop_scope="module")

_SIZE = 110
#: Every tenth task fails; the tasks have different durations.
_SCRIPT = (
    "sleep 0.$((AWS_BATCH_JOB_ARRAY_INDEX % 4)); "
    "if [ $((AWS_BATCH_JOB_ARRAY_INDEX % 10)) = 3 ]; then exit 7; fi"
)
#: Record the texts that are drawn on a canvas, which contains no elements.
_RECORD_DRAWN = """() => {
  window.drawn = new Set();
  const {prototype} = CanvasRenderingContext2D;
  const draw = prototype.fillText;
  prototype.fillText = function (text, ...place) {
    drawn.add(`${text} ${this.font.startsWith("bold") ? "bold" : ""}`);
    draw.call(this, text, ...place);
  };
}"""
_IN_SIGHT = """element => {
  const {left, right} = element.getBoundingClientRect();
  return left >= 0 && right <= innerWidth;
}"""


@pytest.fixture
def user(served):
    """User of the page."""
    request = urllib.request.Request(f"{served.url}/api/about", headers=served.headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["user"]


@pytest.fixture
def new_run(user):
    """Return a function that returns a new run name of the web UI's user."""
    return lambda: f"{user}-20260101-000000-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def submit(aws, new_run):
    with shells.submitting(aws, new_run()) as submit:
        yield submit


async def open_run(page, name, title=None):
    workflows = page.get_by_role("navigation", name="Workflows")
    await workflows.get_by_role("link", name=re.compile(f"^{name}")).click()
    await expect(page.get_by_test_id("run-title")).to_have_text(title or name)


async def order(page, jobs):
    """Return jobs in the order of their rows."""
    places = {job: await row(page, job).get_attribute("aria-rowindex") for job in jobs}
    return sorted(jobs, key=lambda job: int(places[job]))


async def is_order(page, jobs):
    return await order(page, jobs) == list(jobs)


async def test_many_tasks_are_drawn_as_histogram(open_page, submit):
    array = submit(_SCRIPT, size=_SIZE, workflow="crowd")
    sidecar = submit("exit 0", workflow="sidecar")
    page = await open_page()
    await open_run(page, "crowd")
    await wait_for_states(page, {array: "FAILED"})

    timeline = page.get_by_role("region", name="Workflow").locator(".timeline")
    await expect(timeline).to_have_attribute("data-crowd", "true")
    await expect(page.get_by_test_id("timeline-summary").first).to_contain_text(f"{_SIZE} tasks")
    durations = timeline.locator("[data-testid=histogram][data-label=Duration]")
    await expect(durations).to_contain_text(f"of {_SIZE} tasks")
    await expect(durations).to_contain_text(re.compile("median 0.[0-9] s"))
    legend = timeline.get_by_test_id("timeline-legend").get_by_role("listitem")
    await expect(legend).to_have_text(["Running at a time", "Failed"])  # what the curve draws
    bars = await durations.locator(".bins > span").evaluate_all(
        "bars => bars.map(bar => Number(/(\\d+) tasks?$/.exec(bar.title)[1]))"
    )
    assert _SIZE == sum(bars)
    assert 1 < len(bars)
    await timeline.locator("canvas").hover()
    await expect(page.get_by_test_id("timeline-tip").first).to_contain_text("waited")

    reason = page.get_by_role("region", name="Workflow").get_by_test_id("reason")
    await expect(reason).to_have_count(1)
    await expect(reason).to_contain_text(re.compile(r"^11 \S .*exit code 7"))
    await expect(page.get_by_test_id("run-hours")).to_have_text(
        re.compile(r"^[<0-9.]+ vCPU-hours, [<0-9.]+ GB-hours$")
    )
    # The counts refer to the open run.
    states = page.get_by_role("group", name="States")
    await expect(states.get_by_role("button", name="Failed 11")).to_be_visible()
    await expect(states.get_by_role("button", name="Succeeded 99")).to_be_visible()

    await page.get_by_role("link", name="All tasks").click()
    await expect(
        states.get_by_role("button", name=re.compile("Succeeded 1[0-9][0-9]"))
    ).to_be_visible()
    summary = page.get_by_test_id("timeline-summary").first
    await expect(summary).to_contain_text(re.compile(r"at most \d+ runs? at a time"))
    await expect(row(page, array).locator(".cell.workflow")).to_have_text("crowd")
    await expect(page.get_by_role("columnheader", name="Started")).to_be_visible()
    both = array, sidecar
    assert await order(page, both) == [sidecar, array]  # the newest first
    await page.get_by_role("columnheader", name="Workflow").get_by_role("button").click()
    await until_async(lambda: is_order(page, both))

    await page.get_by_role("searchbox", name="Filter").fill("exit code 7")
    names = page.locator('[data-testid="task"]:visible .cell.workflow')
    await expect(names).to_have_text(["crowd"])

    narrow = await open_page(f"#/job/{array}", width=400)
    await narrow.evaluate("location.hash = '#/all'")
    failed = narrow.get_by_role("group", name="States").get_by_role("button", name="Failed 11")
    assert await failed.evaluate(_IN_SIGHT)
    assert 20 < (await failed.get_by_text("Failed").bounding_box())["width"]
    why = row(narrow, array).locator(".why")
    assert await why.evaluate(_IN_SIGHT)
    assert 250 < (await why.bounding_box())["width"]


async def test_timeline_names_rows_and_open_task(open_page, submit):
    array = submit("exit 0", size=90, workflow="rows")
    page = await open_page()
    await page.evaluate(_RECORD_DRAWN)
    await open_run(page, "rows")
    await until_async(lambda: page.evaluate("drawn.has('task[0] ')"))
    assert not await page.evaluate("drawn.has('task[1] ')")  # no room
    await wait_for_states(page, {array: "SUCCEEDED"})

    await page.evaluate("where => { location.hash = where }", f"#/job/{array}:1")

    await until_async(lambda: page.evaluate("drawn.has('task[1] bold')"))
    await expect(row(page, array)).to_have_attribute("aria-current", "true")
    await page.get_by_role("button", name="Show tasks").click()
    await expect(row(page, f"{array}:1")).to_have_attribute("aria-current", "true")
    assert not await row(page, array).get_attribute("aria-current")


async def test_runs_are_grouped_by_workflow(open_page, submit, new_run):
    runs = [new_run() for _ in range(3)]
    jobs = [submit(f"exit {n % 2}", run=run, workflow="nightly") for n, run in enumerate(runs)]
    page = await open_page()
    workflows = page.get_by_role("navigation", name="Workflows")
    cards = workflows.locator("[data-testid=run][data-workflow=nightly]:visible")
    earlier = workflows.get_by_role("button", name="Show 2 earlier runs of nightly")
    await expect(earlier).to_be_visible()
    await expect(cards).to_have_count(1)

    await earlier.click()
    await expect(cards).to_have_count(3)
    await expect(
        workflows.get_by_role("button", name=re.compile("^Hide 2 earlier"))
    ).to_be_visible()
    await workflows.locator(f"[data-run='{runs[1]}']").click()
    await expect(page.get_by_test_id("run-title")).to_have_text("nightly")
    await wait_for_states(page, {jobs[1]: "FAILED"})
    await workflows.locator(f"[data-run='{runs[1]}']").focus()
    await page.keyboard.press("ArrowLeft")
    await expect(cards).to_have_count(1)

    # A link to an earlier run expands its group.
    again = await open_page(f"#/run/{runs[1]}/nightly")
    card = again.locator(f"[data-testid=run][data-run='{runs[1]}']:visible")
    await expect(card).to_have_attribute("aria-current", "true")


async def test_lists_show_arguments_and_errors(executor, open_page):
    settle = executor(workflow="reasons").task(tasks.settle)
    sweep = settle.map([0.1, 0.6, 0.7, 0.8], return_exceptions=True)
    values = await sweep
    assert [0.1, "ValueError"] == [values[0], type(values[1]).__name__]
    page = await open_page()
    await open_run(page, "reasons")

    reason = page.get_by_role("region", name="Workflow").get_by_test_id("reason")
    await expect(reason).to_have_count(1)
    await expect(reason).to_contain_text(re.compile(r"^3 \S ValueError: singular matrix"))
    await expect(reason).to_contain_text("settle(")
    example = reason.get_by_role("link", name="Show one")
    assert "underline" == await example.evaluate("a => getComputedStyle(a).textDecorationLine")
    await page.get_by_role("button", name="Retry 3 failed…").click()
    dialog = page.get_by_role("dialog", name="Retry")
    await expect(dialog.get_by_role("button", name="Retry 3 tasks")).to_be_visible()
    await dialog.get_by_role("button", name="Cancel").click()
    parent = sweep.job_ids[0]
    await page.get_by_role("button", name="Show tasks").click()
    second = row(page, f"{parent}:1")
    await expect(second.locator(".why")).to_have_text("ValueError: singular matrix at 0.6")
    await expect(second.get_by_test_id("call")).to_contain_text("0.6")
    await expect(row(page, f"{parent}:0").get_by_test_id("call")).to_contain_text("0.1")

    # Filter by an argument and by an error.
    children = page.locator('[data-testid="task"].child:visible')
    await page.get_by_role("searchbox", name="Filter").fill("rate=0.7")
    await expect(children).to_have_count(1)
    await expect(children).to_have_attribute("data-id", f"{parent}:2")
    await page.get_by_role("searchbox", name="Filter").fill("singular")
    await expect(children).to_have_count(3)


async def test_failed_task_is_retried_with_options(executor, open_page, tmp_path):
    file = tmp_path / "wanted"
    job = await executor(workflow="again").submit(tasks.need, str(file))
    page = await open_page(f"#/job/{job.id}", expected="responded with a status of 400")
    await expect(page.get_by_test_id("sentence")).to_contain_text("FileNotFoundError")
    file.write_text("here by now")

    await page.get_by_role("button", name="Retry…").click()
    dialog = page.get_by_role("dialog", name="Retry")
    await expect(dialog.get_by_test_id("retry-sentence")).to_contain_text("need")
    memory = dialog.get_by_role("textbox", name="memory")
    await memory.fill("a lot")
    send = dialog.get_by_test_id("retry-send")
    await send.click()
    await expect(dialog.get_by_role("alert")).to_contain_text("memory")
    await memory.fill("2")
    await send.click()

    await expect(dialog).to_be_hidden()
    older = page.get_by_test_id("retry-of")
    await expect(older).to_have_attribute("href", f"#/job/{job.id}")
    newer = await page.evaluate("location.hash.slice('#/job/'.length)")
    assert newer != job.id
    await expect(page.get_by_test_id("task-state")).to_contain_text("Succeeded")
    await expect(page.get_by_role("complementary", name="Task")).to_contain_text("2 GiB")
    await older.click()
    await expect(page.get_by_role("link", name=newer[:8])).to_be_visible()


async def test_failed_tasks_of_jobs_are_retried(executor, open_page, tmp_path):
    file = tmp_path / "wanted"
    on = executor(workflow="several")
    jobs = [await on.submit(tasks.need, str(file)) for _ in range(2)]
    page = await open_page()
    await open_run(page, "several")
    await wait_for_states(page, {job.id: "FAILED" for job in jobs})
    file.write_text("here by now")

    await page.get_by_role("button", name="Retry 2 failed…").click()
    dialog = page.get_by_role("dialog", name="Retry")
    await expect(dialog.get_by_test_id("retry-sentence")).to_have_text("2 failed tasks of 2 jobs")
    await dialog.get_by_test_id("retry-send").click()

    await expect(dialog).to_be_hidden()
    await expect(page.get_by_test_id("retry-of")).to_be_visible()
    for job in jobs:
        await page.evaluate("where => { location.hash = where }", f"#/job/{job.id}")
        await expect(page.get_by_text("Retried as")).to_be_visible()
