"""Covalent's task groups without Covalent, on a scripted Batch in virtual time."""

import asyncio

import pytest

from farcall.covalent.group_run import CancelledGroupError
from farcall.covalent.task_groups import TaskGroups
from farcall.model.errors import SubmissionError
from farcall.payload.pickling import pack_calls, pack_function
from farcall.storage.store import Arrived
from tests.support.patience import PATIENCE_S
from tests.unit.covalent.account import SETTINGS
from tests.unit.fakes import refusal


def work(x):
    return x


class Group:
    """Packed content of a task group."""

    name = "work"
    requirements = ()
    pins = None

    def pack(self):
        (arguments,) = pack_calls([[((1,), {})]])
        return pack_function(work), arguments


@pytest.fixture
async def groups(opened):
    return TaskGroups()


def send(groups, *numbers, dispatch="d", settings=SETTINGS):
    keys = [(dispatch, number) for number in numbers]

    async def submitted():
        run = groups.add(settings, keys, Group())
        await groups.submit(run)
        return run

    return asyncio.ensure_future(submitted())


async def send_array(groups, count):
    """Submit groups that become one array job."""
    return await asyncio.gather(*(send(groups, number) for number in range(count)))


def cancel(groups, number, job_id=None):
    return groups.cancel(SETTINGS, ("d", number), job_id)


# --- submission ----------------------------------------------------------------------------------


async def test_group_is_found_by_each_node(groups, account):
    run = await send(groups, 1, 2)
    assert "job-0" == run.handle.id
    assert [run, run, None] == [groups.find(("d", number)) for number in (1, 2, 3)]
    assert {"job-0": 1} == account.sizes


async def test_automatic_packages_are_local_packages(groups, opened, monkeypatch):
    asked = []

    async def store(bucket, root, settings):
        asked.append(settings.packages)

    monkeypatch.setattr(opened.packages, "store", store)
    await send(groups, 1, settings=SETTINGS.with_options(packages="auto"))
    assert asked == ["local"]


async def test_rejected_group_is_forgotten(groups, account):
    account.failure = refusal("ClientException", 400)
    with pytest.raises(SubmissionError):
        await send(groups, 1)
    assert groups.find(("d", 1)) is None


async def test_stopped_wait_submits_nothing(groups, account):
    sent = send(groups, 1)
    await asyncio.sleep(0)
    sent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sent
    await asyncio.sleep(10)
    assert {} == account.sizes


# --- cancel --------------------------------------------------------------------------------------


async def test_group_cancelled_before_arrival_is_rejected(groups, account):
    assert await cancel(groups, 2)
    with pytest.raises(CancelledGroupError):
        await send(groups, 1, 2)
    await asyncio.sleep(10)
    assert {} == account.sizes
    assert "job-0" == (await send(groups, 2, dispatch="another")).handle.id


async def test_group_cancelled_before_submission_is_rejected(groups, account):
    run = groups.add(SETTINGS, [("d", 1)], Group())
    assert await cancel(groups, 1)
    with pytest.raises(CancelledGroupError):
        await groups.submit(run)
    assert groups.find(("d", 1)) is None
    assert {} == account.sizes


async def test_cancelled_group_is_removed_from_batch(groups, account):
    sent = [send(groups, number) for number in range(3)]
    await asyncio.sleep(0.05)
    assert await cancel(groups, 1)
    with pytest.raises(CancelledGroupError):
        await sent[1]
    assert [{0, 2}] == [{(await sent[number]).keys[0][1] for number in (0, 2)}]
    assert 2 == sum(account.sizes.values())
    assert [] == account.terminated


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_group_cancelled_during_submission_is_terminated(groups, account, times):
    account.open["submit_job"].clear()
    sent = send(groups, 1)
    await asyncio.sleep(5)
    assert await cancel(groups, 1)
    for _ in range(times - 1):
        await asyncio.sleep(0)
        await cancel(groups, 1)
    with pytest.raises(CancelledGroupError):
        await sent
    account.open["submit_job"].set()
    await asyncio.sleep(5)
    assert ["job-0"] == account.terminated


@pytest.mark.parametrize("again_s", [0, 0.01, 1])
async def test_second_cancel_does_not_stop_first(groups, account, again_s):
    """The first one comes right after Batch accepted the job."""

    def cancel_at_once():
        first = cancel(groups, 1)
        with pytest.raises(StopIteration):
            first.send(None)

    loop = asyncio.get_running_loop()
    account.on_submitted = lambda: loop.call_soon(cancel_at_once)
    account.open["terminate_job"].clear()
    sent = send(groups, 1)
    await asyncio.sleep(5)
    assert {"job-0": 1} == account.sizes
    await asyncio.sleep(again_s)
    again = asyncio.ensure_future(cancel(groups, 1))
    await asyncio.sleep(1)
    account.open["terminate_job"].set()
    assert await again in (True, False)
    with pytest.raises(CancelledGroupError):
        await sent
    await asyncio.sleep(5)
    assert ["job-0"] == account.terminated


@pytest.mark.parametrize("times", [1, 2])
async def test_cancel_at_any_step_leaves_nothing(groups, account, times):
    cancelled = 0
    for step in range(60):
        number = 1000 + step
        sent = send(groups, number)
        for _ in range(step):
            await asyncio.sleep(0.01 if step % 2 else 0)
        for _ in range(times):
            await cancel(groups, number)
            await asyncio.sleep(0)
        try:
            run = await asyncio.wait_for(sent, PATIENCE_S)
            assert run.cancelled
        except CancelledGroupError:
            cancelled += 1
        await asyncio.sleep(10)
        assert set() == account.running, step
    assert cancelled > 10


async def test_termination_has_a_reason(groups, account):
    await send(groups, 1, 2)
    assert await cancel(groups, 2)
    assert ["job-0"] == account.terminated
    (request,) = account.client.asked("terminate_job")
    assert "cancelled through Covalent" in request["reason"]


async def test_local_job_id_takes_precedence(groups, account):
    await send(groups, 1)
    assert await cancel(groups, 1, "another")
    assert ["job-0"] == account.terminated


async def test_job_of_earlier_process_is_terminated(groups, account):
    assert await cancel(groups, 1, "earlier")
    assert ["earlier"] == account.terminated


async def test_finished_group_is_left_alone(groups, account):
    await send(groups, 1)
    groups.forget([("d", 1)])
    assert not await cancel(groups, 1, "job-0")
    assert not await cancel(groups, 1)
    assert [] == account.terminated


async def test_refused_termination_is_logged(groups, account, caplog):
    await send(groups, 1)
    account.client.terminate_job = _refusing
    assert not await cancel(groups, 1)
    assert "job job-0 may still run" in caplog.text


async def _refusing(**_):
    raise refusal("AccessDeniedException", 403)


# --- arrays --------------------------------------------------------------------------------------


async def test_whole_array_is_terminated_at_once(groups, account):
    await send_array(groups, 40)
    (array,) = {job for job, size in account.sizes.items() if size > 1}
    await asyncio.gather(*(cancel(groups, number) for number in range(40)))
    assert set(account.sizes) == set(account.terminated)
    assert len(account.sizes) == len(account.terminated)
    assert array in account.terminated


async def test_array_task_is_terminated_alone(groups, account):
    runs = await send_array(groups, 5)
    child = runs[3].handle.id
    assert ":" in child
    assert await cancel(groups, 3)
    assert [child] == account.terminated


async def test_rest_of_array_is_terminated_together(groups, account, opened):
    runs = await send_array(groups, 40)
    ended = [number for number in range(40) if ":" in runs[number].handle.id][:5]
    for number in ended:
        submission, index = runs[number].handle._place
        opened.stores.of(submission.where.bucket).arrived.append(
            Arrived(submission.where.bundle, index, 10)
        )
    await asyncio.sleep(10)
    for number in ended:
        assert runs[number].handle.is_completed
        groups.forget([("d", number)])
    left = [number for number in range(40) if number not in ended]
    await asyncio.gather(*(cancel(groups, number, runs[number].handle.id) for number in range(40)))
    assert len(account.terminated) <= len(account.sizes)
    parents = {runs[number].handle.id.partition(":")[0] for number in left}
    assert parents == set(account.terminated)


# --- end of the event loop --------------------------------------------------------------------


async def test_termination_in_flight_survives_loop_end(groups, account, opened):
    """`asyncio.run` cancels every task once, and then waits for all."""
    await send(groups, 1)
    account.open["terminate_job"].clear()
    asked = asyncio.ensure_future(cancel(groups, 1))
    await asyncio.sleep(1)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    account.open["terminate_job"].set()
    await asyncio.gather(*others, return_exceptions=True)
    assert asked.cancelled()
    assert ["job-0"] == account.terminated


# --- after a restart -----------------------------------------------------------------------------


async def test_nodes_of_one_job_share_run(groups):
    first = groups.adopt(SETTINGS, ("d", 1), "job-7")
    assert first.handle.id == "job-7"
    assert first is groups.adopt(SETTINGS, ("d", 2), "job-7")
    assert [("d", 1), ("d", 2)] == list(first.keys)
    other = groups.adopt(SETTINGS, ("d", 3), "job-8")
    assert other is not first


async def test_known_group_is_not_adopted(groups):
    run = await send(groups, 1)
    assert groups.adopt(SETTINGS, ("d", 1), run.handle.id) is None
    groups.forget([("d", 1)])
    assert groups.adopt(SETTINGS, ("d", 1), run.handle.id) is None


async def test_adopted_job_is_cancelled(groups, account):
    groups.adopt(SETTINGS, ("d", 1), "job-7:3")
    assert await cancel(groups, 1)
    assert ["job-7:3"] == account.terminated
