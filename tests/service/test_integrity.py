"""Attacks on bundles, outcomes, shared values and output.

Starts the local AWS emulator, because the attacker changes objects between upload and fetch.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from farcall import (
    BatchExecutor,
    IntegrityError,
    Job,
    JobCancelledError,
    OutcomeMissingError,
    SharedMissingError,
)
from farcall_runtime import envelope, sources
from farcall_runtime.contract import ExitCode
from tests.service.attacker import Attacker
from tests.service.places import place
from tests.support import wire
from tests.support.patience import PATIENCE_S, until_async

MIB = 1024 * 1024


@pytest.fixture
def attacker(aws, tmp_path):
    """The attacker; the teardown checks that its code has not run."""
    made = Attacker(aws, tmp_path / "attacked")
    yield made
    assert not made.marker.exists(), made.marker.read_text()


@pytest.fixture
async def gate(executor, tmp_path):
    """Block jobs that request all processors, until the gate is called."""
    path = tmp_path / "gate"

    def stand() -> None:
        end = time.monotonic() + 2 * PATIENCE_S
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.02)

    job = await executor.submit(stand)
    yield path.touch
    path.touch()
    await job.result()


@pytest.fixture
def behind(executor, gate):
    """An executor whose jobs wait behind the gate."""
    return executor.with_options(vcpu=256)


async def result(job: Job[Any]) -> Any:
    return await asyncio.wait_for(job.result(), PATIENCE_S)


async def refusal(job: Job[Any]) -> BaseException:
    error = await asyncio.wait_for(job.exception(), PATIENCE_S)
    assert error is not None, "the forgery passed"
    return error


PADDING = os.urandom(4096)
"""Pickled with the function, so that it is at least as large as the attacker's."""


def weigh(data: bytes) -> int:
    return len(data) * len(PADDING)


# --- between the upload and the container's fetch ---------------------------------------------


def part(data: bytes, kind: str, number: int = 0) -> tuple[int, int]:
    """Return the start and end offset of a part of a bundle."""
    root = data[-envelope.root_size(data) :]
    head = wire.ROOT_HEAD.unpack_from(root)
    pages = head[2]
    if kind == "function":
        return pages + wire.ROW.size * head[5], len(data) - len(root)
    offset, length, *_ = wire.ROW.unpack_from(data, pages + wire.ROW.size * number)
    return offset, offset + length


def forge(attacker: Attacker, data: bytes, kind: str) -> bytes:
    """Replace a part of a bundle with the attacker's, and keep the index."""
    start, end = part(data, kind)
    return data[:start] + attacker.packed(end - start) + data[end:]


def swap(data: bytes) -> bytes:
    """Swap the arguments of the first two tasks, which have the same length."""
    (a, b), (c, d) = part(data, "arguments", 0), part(data, "arguments", 1)
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


FORGERIES: dict[str, Callable[[Attacker, bytes], bytes]] = {
    "whole": lambda attacker, data: attacker.bundle(tasks=3),
    "function": lambda attacker, data: forge(attacker, data, "function"),
    "emptied": lambda attacker, data: b"",
}
"""Forgeries that affect all tasks of an array."""


async def submit_three(executor: BatchExecutor, size: int) -> list[Job[int]]:
    """Submit an array job of three tasks, whose arguments have the same length."""
    arguments = [os.urandom(size) for _ in range(3)]
    return await asyncio.gather(*(executor.submit(weigh, data) for data in arguments))


@pytest.mark.parametrize("size", [4096, pytest.param(200_000, marks=pytest.mark.slow)])
async def test_container_rejects_forged_bundle(size, attacker, gate, behind):
    """A small bundle is fetched in one request, a large one in a request per part."""
    victims = {}
    for name, change in FORGERIES.items():
        jobs = await submit_three(behind, size)
        key = (await place(jobs[0])).bundle_key
        attacker.put(key, change(attacker, attacker.get(key)))
        victims[name] = jobs
    gate()

    for name, jobs in victims.items():
        for job in jobs:
            error = await refusal(job)
            assert type(error) is IntegrityError, f"{name}: {error!r}"
            assert "did not run" in str(error)
        if name != "function":  # the client does not read the function
            with pytest.raises(IntegrityError):
                await asyncio.wait_for(jobs[0].calls(), PATIENCE_S)


@pytest.mark.parametrize("size", [4096, 200_000])
async def test_forged_arguments_fail_their_task_only(size, attacker, gate, behind):
    forged, swapped = await submit_three(behind, size), await submit_three(behind, size)
    key = (await place(forged[0])).bundle_key
    attacker.put(key, forge(attacker, attacker.get(key), "arguments"))
    key = (await place(swapped[0])).bundle_key
    attacker.put(key, swap(attacker.get(key)))
    gate()

    for job in (forged[0], *swapped[:2]):
        assert type(await refusal(job)) is IntegrityError
    unharmed = [*forged[1:], swapped[2]]
    assert [size * len(PADDING)] * 3 == [await result(job) for job in unharmed]


async def test_container_rejects_forged_shared_value(attacker, gate, behind):
    """So does the client when it reads the arguments."""
    values = [os.urandom(MIB + 4096) for _ in range(5)]
    jobs = await asyncio.gather(*(behind.submit(weigh, value) for value in values))

    def key_of(value: bytes) -> str:
        keys = attacker.keys(hashlib.sha256(value).hexdigest())
        (key,) = (key for key in keys if "/data/" in key)
        return key

    forged, gone, *swapped = map(key_of, values[:4])
    bomb = attacker.pickle()
    attacker.put(forged, bomb + values[0][len(bomb) :])
    attacker.delete(gone)
    for key, value in zip(reversed(swapped), values[2:4], strict=True):
        attacker.put(key, value)
    gate()

    for number in (0, 2, 3):
        assert type(await refusal(jobs[number])) is IntegrityError
        with pytest.raises(IntegrityError, match="does not match its name"):
            await asyncio.wait_for(jobs[number].calls(), PATIENCE_S)
    error = await refusal(jobs[1])
    assert type(error) is SharedMissingError
    assert "share with other tasks" in str(error)
    with pytest.raises(SharedMissingError, match="no longer exists"):
        await asyncio.wait_for(jobs[1].calls(), PATIENCE_S)
    assert await jobs[4].calls() == [((values[4],), {})]
    assert await result(jobs[4]) == len(values[4]) * len(PADDING)


async def test_forged_project_files_are_not_imported(
    attacker, gate, behind, tmp_path, monkeypatch
):
    """The project is too large for the bundle, so it is a separate object."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "own_module.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "project" / "table.bin").write_bytes(os.urandom(MIB // 2))
    monkeypatch.syspath_prepend(tmp_path / "project")
    earlier = attacker.keys("/data/")
    job = await behind.submit(importlib.import_module("own_module").double, 3)
    del sys.modules["own_module"]  # or it would be sent with the jobs of later tests
    (key,) = {*attacker.keys("/data/")} - {*earlier}
    code = f"import pathlib\npathlib.Path({str(attacker.marker)!r}).touch()\n"
    attacker.put(key, sources.pack([sources.Entry("own_module.py", code.encode())]))
    gate()

    error = await refusal(job)
    assert type(error) is IntegrityError


# --- between the container's storing and the client's fetch ------------------------------------


def speak(number: int) -> list[bytes]:
    """Print enough for a separate chunk; return a value as large as the attacker's pickle."""
    print("x" * (MIB + 1000 + number))
    return [bytes([number]) * 4096]


@pytest.fixture
async def ended(executor):
    """Return three array tasks whose outcomes are stored, but not fetched."""
    jobs = await asyncio.gather(*(executor.submit(speak, number) for number in range(3)))
    await until_async(lambda: all(job.done() for job in jobs))
    return list(jobs)


async def check_rejected(
    attacker: Attacker, executor: BatchExecutor, job_id: str, key: str, forgeries: dict[str, bytes]
) -> None:
    """Check that a new client rejects each forgery of an object; restore the object."""
    true = attacker.get(key)
    for name, data in forgeries.items():
        attacker.put(key, data)
        error = await refusal(executor.attach(job_id))
        assert type(error) is IntegrityError, f"{name}: {error!r}"
        assert job_id in str(error)
    attacker.put(key, true)


async def test_client_rejects_forged_outcome(attacker, executor, ended):
    victim, sibling, _ = ended
    other = await executor.submit(speak, 0)
    await until_async(other.done)
    where, elsewhere = await place(victim), await place(other)
    key = where.outcome_key(0)
    forgeries = {
        "forged": attacker.outcome(key),
        "signed for another value": attacker.outcome_with_value(attacker.get(key)),
        "a sibling's": attacker.get(where.outcome_key(1)),
        "another job's": attacker.get(elsewhere.outcome_key(0)),
        "a chunk": attacker.chunk(key),
        "a pickle": attacker.pickle(),
    }

    await check_rejected(attacker, executor, victim.id, key, forgeries)

    true = attacker.get(key)
    attacker.put(key, attacker.outcome(key))
    error = await refusal(victim)  # this handle has seen the original
    assert type(error) is IntegrityError
    assert "another client wrote" in str(error)
    attacker.put(key, true)
    values = [await result(job) for job in (executor.attach(victim.id), sibling)]
    assert values == [[b"\0" * 4096], [b"\1" * 4096]]


async def test_client_rejects_forged_output(attacker, executor, ended):
    victim, sibling, _ = ended
    where = await place(victim)
    key = where.chunk_key(0, 1, "stdout", 0)
    forgeries = {
        "forged": attacker.chunk(key),
        "a sibling's": attacker.get(where.chunk_key(1, 1, "stdout", 0)),
        "an outcome": attacker.get(where.outcome_key(0)),
    }

    for name, data in forgeries.items():
        attacker.put(key, data)
        # A caller that requests only the result gets no output.
        assert await executor.attach(victim.id).exception() is None, name
        for asked in (Job.stdout, Job.results):
            with pytest.raises(IntegrityError, match="is not what the job wrote"):
                await asked(executor.attach(victim.id))
        with pytest.raises(IntegrityError, match="is not what the job wrote"):
            async for _ in executor.attach(victim.id).logs():
                pass

    attacker.delete(key)
    onlooker = executor.attach(victim.id)
    assert (
        await onlooker.stdout()
        == f"\n[farcall: {MIB + 1001} bytes were deleted from the bucket]\n"
    )
    assert [b"\0" * 4096] == await result(victim)
    assert [b"\1" * 4096] == await result(sibling)


@pytest.mark.core
async def test_client_rejects_forged_value(attacker, executor):
    """A value that is too large for its outcome is a separate object."""
    victim, sibling = [await executor.submit(bytes, 65 * MIB + number) for number in range(2)]
    await until_async(lambda: victim.done() and sibling.done())
    where, elsewhere = await place(victim), await place(sibling)
    key = where.value_key(0, 1, 4)  # the last part
    true = attacker.get(key)
    forgeries = {
        "forged": attacker.packed(len(true)),
        "small": attacker.packed(),
        "a sibling's": attacker.get(elsewhere.value_key(0, 1, 4)),
    }

    for name, data in {**forgeries, "emptied": b"", "truncated": true[:-1]}.items():
        attacker.put(key, data)
        assert type(await refusal(executor.attach(victim.id))) is IntegrityError, name
    attacker.delete(key)
    assert type(await refusal(executor.attach(victim.id))) is OutcomeMissingError
    attacker.put(key, true)

    assert [len(await result(job)) for job in (victim, sibling)] == [65 * MIB, 65 * MIB + 1]


def count(number: int) -> int:
    """Return the first numbers immediately, but hang on the number 2."""
    print("at", number, flush=True)
    if number == 2:
        time.sleep(600)  # until the job is cancelled
    return number


async def test_client_rejects_forged_stopped_attempt(attacker, executor, make_executor):
    """The results of a cancelled chunk's finished calls are in attempts/."""
    sweep = executor.task(count).map(range(4), chunksize=4, return_exceptions=True)
    waiting = asyncio.ensure_future(anext(aiter(sweep.results())))
    await until_async(lambda: sweep.job_ids)
    (job_id,) = sweep.job_ids
    job = executor.attach(job_id)
    where = await place(job)
    await until_async(lambda: attacker.keys(where.stream_prefix(0, 1, "stdout")))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)  # cancels the job
    await until_async(lambda: attacker.keys(where.attempt_key(0, 1)))
    key = where.attempt_key(0, 1)
    while not (await job.status()).is_final:
        await asyncio.sleep(0.1)

    forgeries = {"forged": attacker.outcome(key)}
    await check_rejected(attacker, executor, job_id, key, forgeries)
    assert type(await refusal(executor.attach(job_id))) is JobCancelledError
    attacker.delete(key)
    assert type(await refusal(job)) is JobCancelledError


async def test_occupied_outcome_key_fails_job(attacker, gate, behind):
    """The container uploads with If-None-Match, so it cannot store its own outcome."""
    seen, unseen = [await behind.submit(speak, number) for number in range(2)]
    keys = [(await place(job)).outcome_key(0) for job in (seen, unseen)]
    for key in keys:
        attacker.put(key, attacker.outcome(key))
    await until_async(lambda: seen.done() and unseen.done())  # in the bucket, not on Batch
    gate()
    for job in (seen, unseen):
        while not (await job.status()).is_final:
            await asyncio.sleep(0.1)
    attacker.delete(keys[1])

    error = await refusal(seen)
    assert type(error) is IntegrityError
    assert "another client wrote" in str(error)
    again = behind.attach(unseen.id)
    error = await refusal(again)
    assert type(error) is IntegrityError
    assert "another client's object has the key of the job's stored result" in str(error)
    assert (await again.detail()).exit_code == ExitCode.OUTCOME_OCCUPIED


async def test_second_attempt_rejects_forged_outcome(attacker, make_executor, tmp_path):
    async with make_executor(retry_attempts=2, retry_on="failure") as executor:
        reached, gate = tmp_path / "reached", tmp_path / "gate"

        def fail() -> None:
            reached.touch()
            while not gate.exists():
                time.sleep(0.02)
            raise ValueError("once more")

        job = await executor.submit(fail)
        await until_async(reached.exists)
        key = (await place(job)).outcome_key(0)
        attacker.put(key, attacker.outcome(key))
        gate.touch()

        assert type(await refusal(job)) is IntegrityError
        while not (await job.status()).is_final:
            await asyncio.sleep(0.1)
        detail = await job.detail()
        assert (detail.attempts, detail.exit_code) == (2, ExitCode.OUTCOME_OCCUPIED)
