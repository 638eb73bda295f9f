"""What a person does with the page: look at workflows, read what tasks print, and end them."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import expect

from farcall import JobCancelledError
from tests.support.patience import until_async
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


async def test_a_workflow_is_listed_and_kept_up_to_date_without_a_reload(
    executor, open_page, gate, shoot
):
    page = await open_page()
    await page.evaluate("window.loaded_once = true")
    job = await executor(workflow="tides").submit(tasks.hold, str(gate))

    await open_workflow(page, "tides")
    await wait_for_states(page, {job.id: "RUNNING"})
    gate.touch()
    await wait_for_states(page, {job.id: "SUCCEEDED"})

    assert await page.evaluate("window.loaded_once")
    assert 0 == await job.result()


async def test_output_of_both_streams_comes_while_the_task_runs(executor, open_page, gate, shoot):
    job = await executor(workflow="printing").submit(tasks.hold, str(gate), 7)
    page = await open_page(f"#/job/{job.id}")
    last = page.get_by_test_id("last-lines")
    await expect(last).to_contain_text("7 has begun")
    await expect(last).to_contain_text("7 complains")
    await expect(page.get_by_label("Task").get_by_test_id("hours")).to_contain_text("vCPU-hours")
    await page.get_by_role("tab", name="Output").click()
    lines = page.get_by_test_id("line")

    await expect(lines.filter(has_text="7 has begun")).to_have_attribute("data-stream", "stdout")
    await expect(lines.filter(has_text="7 complains")).to_have_attribute("data-stream", "stderr")
    await expect(page.get_by_test_id("task-state")).to_contain_text(re.compile("running", re.I))
    await expect(lines.filter(has_text="7 is over")).to_have_count(0)
    await shoot(page, "output")
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
    await shoot(page, "output-side-by-side")


async def test_what_a_running_task_uses_is_shown_until_it_ends(executor, open_page, gate, shoot):
    async with executor(workflow="filling") as batch, executor(workflow="group", nodes=2) as group:
        one = await batch.submit(tasks.fill, str(gate), 96)
        sweep = batch.task(tasks.fill).map([str(gate)] * 2, [64, 128])
        values = asyncio.ensure_future(sweep)
        many = (await until_async(lambda: sweep.job_ids))[0]
        gang = await group.submit(tasks.fill, str(gate), 80)
        page = await open_page()
        tells = page.get_by_label("Task").get_by_test_id("usage-now")
        for job_id, least in ((one.id, 96), (f"{many}:1", 128), (f"{gang.id}#1", 80)):
            await page.evaluate("hash => (location.hash = hash)", f"#/job/{job_id}")
            meter = tells.get_by_role("img")
            await expect(meter).to_have_attribute(
                "aria-label", re.compile(r"^Memory: [\d.]+ MiB of 1 GiB$")
            )
            label = await meter.get_attribute("aria-label")
            assert least <= float(label.split()[1]) < least + 64
            await expect(tells).to_contain_text("Processor time")
            await shoot(page, f"usage-{least}")

        gate.touch()
        await expect(page.get_by_test_id("task-state")).to_contain_text("Succeeded")
        await expect(tells).to_be_hidden()
        assert (96 << 20, [64 << 20, 128 << 20]) == (await one.result(), await values)


async def test_a_progress_bar_moves_and_stays_as_it_is_at_last(executor, open_page, gate, shoot):
    job = await executor(workflow="drawing").submit(tasks.draw, str(gate))
    page = await open_page(f"#/job/{job.id}")
    await page.get_by_role("tab", name="Output").click()
    lines, states = page.get_by_test_id("line"), page.get_by_test_id("state")

    await expect(states).to_have_text(["50%|#####|"])
    await expect(lines).to_have_count(0)
    await shoot(page, "output-bar")
    gate.touch()
    await expect(lines).to_have_text(["100%|##########|"])
    await expect(states).to_have_count(0)


async def test_one_task_of_an_array_is_cancelled_and_only_that_one(
    executor, open_page, gate, shoot
):
    on = executor(workflow="array")
    hold = on.task(tasks.hold)
    sweep = hold.map([str(gate)] * 4, range(4), return_exceptions=True)
    values = asyncio.ensure_future(sweep)
    page = await open_page()
    await open_workflow(page, "array")
    await page.get_by_role("button", name="Show children").click()
    parent = sweep.job_ids[0]
    children = [f"{parent}:{index}" for index in range(4)]
    await wait_for_states(page, dict.fromkeys(children, "RUNNING"))
    await shoot(page, "array")

    await row(page, children[2]).get_by_role("link").click()
    await expect(page.get_by_test_id("task-title")).to_contain_text("hold")
    await page.get_by_role("button", name="Cancel task…").click()
    assert {children[2]: "ending"} == await cancel(page, "End 1 task")
    await wait_for_states(page, {children[2]: "CANCELLED"})

    gate.touch()
    await wait_for_states(page, {child: "SUCCEEDED" for child in children if child[-1] != "2"})
    returned = await values
    assert isinstance(returned.pop(2), JobCancelledError)
    assert [0, 1, 3] == returned


async def test_selected_tasks_are_cancelled_and_the_others_go_on(executor, open_page, gate, shoot):
    on = executor(workflow="selection", linger_s=0)
    jobs = [await on.submit(tasks.hold, str(gate), number) for number in range(3)]
    page = await open_page()
    await open_workflow(page, "selection")
    await wait_for_states(page, {job.id: "RUNNING" for job in jobs})

    for job in jobs[:2]:
        await row(page, job.id).get_by_role("checkbox").check()
    await expect(page.get_by_test_id("selection")).to_contain_text("2 selected")
    await shoot(page, "selection")
    await page.get_by_role("button", name="Cancel selected…").click()
    assert {job.id: "ending" for job in jobs[:2]} == await cancel(page, "End 2 tasks")
    await wait_for_states(page, {job.id: "CANCELLED" for job in jobs[:2]})

    gate.touch()
    await wait_for_states(page, {jobs[2].id: "SUCCEEDED"})


async def test_a_workflow_is_cancelled_after_confirmation(executor, open_page, gate, shoot):
    on, other = executor(workflow="doomed", linger_s=0), executor(workflow="spared")
    jobs = [await on.submit(tasks.hold, str(gate), number) for number in range(2)]
    spared = await other.submit(tasks.hold, str(gate))
    page = await open_page()
    await open_workflow(page, "doomed")
    await wait_for_states(page, {job.id: "RUNNING" for job in jobs})

    whole = page.get_by_role("button", name="Cancel workflow…")
    await whole.click()
    dialog = page.get_by_role("dialog", name="Cancel")
    await expect(dialog.get_by_test_id("cancel-summary")).to_contain_text("2 running")
    await shoot(page, "cancel")
    await dialog.get_by_role("button", name="Keep running").click()
    await expect(dialog).to_be_hidden()
    await whole.click()
    await dialog.get_by_role("textbox", name="Reason").fill("wrong grid")
    assert {job.id: "ending" for job in jobs} == await cancel(page, "End 2 tasks")
    await wait_for_states(page, {job.id: "CANCELLED" for job in jobs})
    await expect(whole).to_be_disabled()

    assert "wrong grid" in (await jobs[0].detail()).reason
    assert not (await spared.status()).is_final
    gate.touch()
    assert 0 == await spared.result()


async def test_a_failure_is_shown_with_its_sentence_and_its_traceback(executor, open_page, shoot):
    job = await executor(workflow="failures").submit(tasks.diverge, 17)
    page = await open_page(f"#/job/{job.id}")

    await expect(page.get_by_test_id("sentence")).to_contain_text("diverged at step 17")
    traceback = page.get_by_test_id("traceback")
    await expect(traceback).to_contain_text("in diverge")
    await expect(traceback).to_contain_text("ArithmeticError: diverged at step 17")
    await shoot(page, "failure")


async def test_a_crash_is_shown_with_its_remedy(executor, open_page, shoot):
    job = await executor(workflow="failures").submit(tasks.crash)
    page = await open_page(f"#/job/{job.id}")

    await expect(page.get_by_test_id("sentence")).to_contain_text("SIGSEGV")
    await expect(page.get_by_test_id("remedy")).not_to_be_empty()
    await shoot(page, "crash")


async def test_a_task_is_found_read_and_cancelled_with_the_keyboard_alone(
    executor, open_page, gate
):
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
    await expect(result).to_have_attribute("data-outcome", "ending")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await wait_for_states(page, {job.id: "CANCELLED"})
    await expect(result).to_contain_text("cancelled")  # as it changes, and not a second dialog
    await expect(page.get_by_test_id("endings-summary")).to_have_text("1 cancelled")
    assert "too dear" in (await job.detail()).reason
    await tab_to(page.get_by_role("button", name="Close", exact=True).last)
    await keys.press("Enter")
    await expect(page.get_by_test_id("endings")).to_be_hidden()


async def test_the_nodes_of_a_command_job_are_seen_with_their_output(
    executor, open_page, gate, shoot
):
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
    await shoot(page, "nodes")

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
    await shoot(page, "nodes-failed")
    await page.get_by_role("link", name="[1] CommandError").click()
    await expect(page.get_by_test_id("task-title")).to_have_text("$ hello[1]")
    await expect(page.get_by_test_id("sentence")).to_contain_text("exit code 7")
