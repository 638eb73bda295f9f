"""The web UI's task view: output, cancel, failure, keyboard, and nodes of a command job.

Starts the web UI, the local AWS emulator and a browser, because the view is rendered by
JavaScript. Slow, because a browser keeps a core busy.
"""

import asyncio
import json
import re

import pytest
from playwright.async_api import expect

from farcall import JobCancelledError
from tests.ui import tasks
from tests.ui.looking import cancel, row, wait_for_states

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def gate(tmp_path):
    """A file that jobs wait for."""
    return tmp_path / "gate"


async def open_workflow(page, name):
    await (
        page.get_by_role("navigation", name="Workflows")
        .get_by_role("link", name=re.compile(f"^{name}"))
        .click()
    )
    await expect(page.get_by_test_id("run-title")).to_have_text(name)


async def test_running_task_output_is_shown(executor, open_page, gate):
    job = await executor(workflow="printing").submit(tasks.hold, str(gate), 7)
    page = await open_page(f"#/job/{job.id}")
    last = page.get_by_test_id("last-lines")
    await expect(last).to_contain_text("7 has begun")
    await expect(last).to_contain_text("7 complains")
    hours = page.get_by_label("Task").get_by_test_id("hours")
    await expect(hours).to_contain_text("vCPU-hours")
    await expect(page.get_by_role("heading", name="Resource use so far")).to_be_visible()
    await page.get_by_role("tab", name="Output").click()
    lines = page.get_by_test_id("line")

    await expect(lines.filter(has_text="7 has begun")).to_have_attribute("data-stream", "stdout")
    await expect(lines.filter(has_text="7 complains")).to_have_attribute("data-stream", "stderr")
    await expect(page.get_by_test_id("task-state")).to_contain_text(re.compile("running", re.I))
    await expect(lines.filter(has_text="7 is over")).to_have_count(0)
    gate.touch()
    await expect(lines.filter(has_text="7 is over")).to_have_attribute("data-stream", "stdout")

    side_by_side = page.get_by_role("button", name="Side by side")
    if await side_by_side.get_attribute("aria-pressed") == "false":
        await side_by_side.click()
    await expect(page.get_by_role("log", name="stdout").get_by_test_id("line")).to_have_text(
        [re.compile("7 has begun"), re.compile("7 is over")]
    )
    await expect(page.get_by_role("log", name="stderr").get_by_test_id("line")).to_have_text(
        [re.compile("7 complains")]
    )


async def test_stored_failure_ends_running_state(executor, open_page, gate):
    """Batch reports the end of a task seconds after the task has stored its outcome."""
    job = await executor(workflow="late").submit(tasks.hold, str(gate))
    page = await open_page()
    await open_workflow(page, "late")
    await wait_for_states(page, {job.id: "RUNNING"})

    async def answer(route):
        description = await (await route.fetch()).json()
        description["explanation"] |= {"kind": "failed", "error": "ValueError"}
        await route.fulfill(json=description)

    await page.route(f"**/api/jobs/{job.id}", answer)
    await row(page, job.id).get_by_role("link").click()

    await expect(page.get_by_test_id("task-state")).to_have_text("Failed")
    await wait_for_states(page, {job.id: "FAILED"})
    states = page.get_by_role("group", name="States")
    await expect(states.get_by_role("button", name="Running 0")).to_be_visible()


@pytest.mark.path
async def test_only_selected_array_task_is_cancelled(executor, open_page, gate):
    on = executor(workflow="array")
    hold = on.task(tasks.hold)
    sweep = hold.map([str(gate)] * 4, range(4), return_exceptions=True)
    values = asyncio.ensure_future(sweep)
    page = await open_page()
    await open_workflow(page, "array")
    await page.get_by_role("button", name="Show tasks").click()
    parent = sweep.job_ids[0]
    children = [f"{parent}:{index}" for index in range(4)]
    await wait_for_states(page, dict.fromkeys(children, "RUNNING"))

    await row(page, children[2]).get_by_role("link").click()
    await expect(page.get_by_test_id("task-title")).to_contain_text("hold")
    await page.get_by_role("button", name="Cancel task…").click()
    assert {children[2]: "cancelling"} == await cancel(page, "Cancel 1 task")
    await wait_for_states(page, {children[2]: "CANCELLED"})

    gate.touch()
    await wait_for_states(page, {child: "SUCCEEDED" for child in children if child[-1] != "2"})
    returned = await values
    assert isinstance(returned.pop(2), JobCancelledError)
    assert [0, 1, 3] == returned


async def test_failure_shows_reason_and_traceback(executor, open_page):
    job = await executor(workflow="failures").submit(tasks.diverge, 17)
    page = await open_page(f"#/job/{job.id}")

    await expect(page.get_by_test_id("sentence")).to_contain_text("diverged at step 17")
    traceback = page.get_by_test_id("traceback")
    await expect(traceback).to_contain_text("in diverge")
    await expect(traceback).to_contain_text("ArithmeticError: diverged at step 17")

    # The streams arrive one after the other; the traceback is the end of the output.
    second = "2026-11-12T10:00:0{}.000+00:00"
    lines = [
        {"text": text, "stream": stream, "attempt": 1, "at": second.format(text)}
        for stream, text in (("stdout", "1"), ("stdout", "3"), ("stderr", "2"))
    ]
    told = f"event: lines\ndata: {json.dumps({'lines': lines})}\n\nevent: end\ndata: {{}}\n\n"
    await page.route(
        "**/logs?*", lambda route: route.fulfill(content_type="text/event-stream", body=told)
    )
    await page.get_by_role("tab", name="Output").click()
    last = page.get_by_test_id("line").filter(has_text="ArithmeticError: diverged at step 17")
    await expect(last).to_be_visible()
    shown = await page.get_by_test_id("line").all_inner_texts()
    assert ["1", "2", "3", "Traceback (most recent call last):"] == shown[:4]


async def test_waiting_task_row_says_why(executor, open_page, gate):
    await executor(workflow="full").submit(tasks.hold, str(gate))
    waiting = await executor(workflow="full", vcpu=8).submit(tasks.hold, str(gate))
    page = await open_page()
    await open_workflow(page, "full")
    why = row(page, waiting.id).locator(".why")
    await expect(why).to_have_text("position 1 in the queue; the job is waiting for capacity")


async def test_task_is_cancelled_with_keyboard(executor, open_page, gate):
    job = await executor(workflow="keys").submit(tasks.hold, str(gate), 3)
    page = await open_page()
    keys = page.keyboard

    async def tab_to(wanted, patience=200):
        for _ in range(patience):
            if await wanted.evaluate("element => element === document.activeElement"):
                return
            await keys.press("Tab")
        pytest.fail(f"Tab does not reach {wanted}")

    await tab_to(
        page.get_by_role("navigation", name="Workflows").get_by_role(
            "link", name=re.compile("^keys")
        )
    )
    await keys.press("Enter")
    await wait_for_states(page, {job.id: "RUNNING"})
    await tab_to(page.get_by_role("treegrid", name="Tasks"))
    await keys.press("ArrowDown")
    await keys.press("Enter")
    await expect(page.get_by_test_id("task-title")).to_contain_text("hold")
    await keys.press("c")
    reason = page.get_by_role("dialog", name="Cancel").get_by_role("textbox", name="Reason")
    await expect(reason).to_be_focused()
    await keys.type("too dear")
    await keys.press("Enter")
    result = page.get_by_test_id("cancel-result")
    await expect(result).to_have_attribute("data-outcome", "cancelling")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await wait_for_states(page, {job.id: "CANCELLED"})
    await expect(row(page, job.id).locator(".why")).to_have_text("too dear")
    await expect(result).to_contain_text("cancelled")  # as it changes, and not a second dialog
    await expect(page.get_by_test_id("cancellations-summary")).to_have_text("1 cancelled")
    card = page.get_by_role("navigation", name="Workflows").locator("[data-workflow=keys]")
    await expect(card).to_contain_text("1 cancelled")
    assert "too dear" in (await job.detail()).reason
    await tab_to(page.get_by_role("button", name="Close", exact=True).last)
    await keys.press("Enter")
    await expect(page.get_by_test_id("cancellations")).to_be_hidden()


async def test_command_job_shows_nodes_and_output(executor, open_page, gate):
    text = (
        "echo hello from $AWS_BATCH_JOB_NODE_INDEX; "
        "if [ $AWS_BATCH_JOB_NODE_INDEX = 1 ]; then exit 7; fi; "
        f"until [ -e {gate} ]; do sleep 0.05; done; exit 3"
    )
    on = executor(workflow="gang")
    job = await on.command("img", ["sh", "-c", text], nodes=2, name="hello")
    page = await open_page()
    await open_workflow(page, "gang")
    await expect(row(page, job.id).get_by_role("link")).to_have_text("$ hello")
    await expect(row(page, job.id)).to_contain_text("2 nodes")
    await page.get_by_role("button", name="Show nodes").click()
    nodes = [f"{job.id}#{index}" for index in range(2)]
    await wait_for_states(page, {nodes[0]: "RUNNING", nodes[1]: "FAILED"})
    await expect(row(page, nodes[1])).to_contain_text("exit code 7")
    await expect(row(page, nodes[0]).get_by_role("checkbox")).to_be_disabled()

    await row(page, nodes[0]).get_by_role("link").click()
    await expect(page.get_by_test_id("task-title")).to_have_text("$ hello[0]")
    await expect(page.get_by_role("button", name="Cancel task…")).to_be_hidden()
    await page.get_by_role("tab", name="Output").click()
    await expect(page.get_by_test_id("line").filter(has_text="hello from 0")).to_have_count(1)

    gate.touch()
    await wait_for_states(page, {nodes[0]: "FAILED", job.id: "FAILED"})
    await row(page, job.id).get_by_role("link").click()
    await expect(page.get_by_role("tab", name="Nodes")).to_be_visible()
    await page.get_by_role("tab", name="Overview").click()
    await expect(page.get_by_test_id("sentence")).to_contain_text("2 of its 2 nodes failed")
    await expect(page.get_by_test_id("log")).to_have_text("hello from 0")
    await page.get_by_role("link", name="[1] CommandError").click()
    await expect(page.get_by_test_id("task-title")).to_have_text("$ hello[1]")
    await expect(page.get_by_test_id("sentence")).to_contain_text("exit code 7")
