"""What type checkers are to make of the public names. It is checked, and never run.

A line with ``type: ignore`` is an error of the user's that has to be found: mypy tells of those
that are none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_type

import farcall_runtime
from farcall import (
    BatchExecutor,
    CallResult,
    CommandJob,
    CommandResult,
    Job,
    JobDetail,
    JobStatus,
    LogLine,
    Nodes,
    Settings,
    Sweep,
    Task,
    testing,
)

executor = BatchExecutor(vcpu=2, memory=3.75, retry_on="infrastructure", tags={"team": "physics"})
BatchExecutor(vcpuu=3)  # type: ignore[call-arg]
BatchExecutor(vcpu="two")  # type: ignore[arg-type]
BatchExecutor(retry_on="never")  # type: ignore[arg-type]
BatchExecutor(Settings(vcpu=2), memory=8)
BatchExecutor({"vcpu": 2})  # type: ignore[arg-type]
Settings(time_limit=3600).replace(time_limit="1h30m", memory="4GiB")
Settings(time_limit=3600).replace(retry_attempts="twice")  # type: ignore[arg-type]


@executor.task
def simulate(x: int, *, steps: int = 10) -> float:
    return x / steps


@executor.task(vcpu=8, memory=16)
def train(path: str) -> dict[str, float]:
    return {path: 1.0}


@executor.task(cpus=8)  # type: ignore[call-overload, untyped-decorator]
def wrong() -> None: ...


def tasks() -> Task[[str], dict[str, float]]:
    return train


assert_type(simulate.local(3), float)
simulate.local("3")  # type: ignore[arg-type]
simulate.with_options(vcpu=16)
simulate.with_options(cpu=16)  # type: ignore[call-arg]


async def calls() -> None:
    assert_type(await simulate(3, steps=5), float)
    assert_type(await train("data"), dict[str, float])
    await simulate()  # type: ignore[call-arg]
    await simulate(3, stepz=5)  # type: ignore[call-arg]


@executor.task(nodes=4)
def on_four_nodes(x: int) -> str:
    return str(x)


async def nodes() -> None:
    # A list at run time. That hangs on the value of an option, which no overload can tell apart
    # from the others of the same name in Options; so the type is the function's own.
    assert_type(await on_four_nodes(3), str)
    node = farcall_runtime.node()
    assert_type(node, farcall_runtime.Node)
    assert_type(node.index, int)
    assert_type(node.main_address, str)
    assert_type(node.is_main, bool)


async def jobs() -> None:
    job = await simulate.submit(3)
    assert_type(job, Job[float])
    assert_type(await job.result(), float)
    assert_type(await job.stdout(), str)
    assert_type(await job.stderr(node=2), str)
    assert_type(await executor.submit(len, "abc"), Job[int])
    assert_type(await executor.submit(simulate, 3, steps=2), Job[float])
    await executor.submit(len, 3)  # type: ignore[call-overload]
    await executor.submit(simulate, "3")  # type: ignore[call-overload]
    await executor.submit(3)  # type: ignore[call-overload]


async def sweeps() -> None:
    sweep = simulate.map(range(10), chunksize=5)
    assert_type(sweep, Sweep[float])
    assert_type(await sweep, list[float])
    async for index, value in simulate.map(range(10)):
        assert_type(index, int)
        assert_type(value, float)
    async for result in simulate.map(range(10)).results():
        assert_type(result, CallResult[float])
    simulate.map(range(10), chunksize="5")  # type: ignore[arg-type]
    assert_type(simulate.starmap([(1,), (2,)]), Sweep[float])


def described(detail: JobDetail) -> JobStatus:
    return detail.status


handler: Callable[[JobDetail], JobStatus] = described


def users_tests() -> None:
    with testing.fake_cloud() as cloud, testing.use_timing(testing.Timing.fast()):
        assert_type(cloud, testing.FakeCloud)
        assert_type(cloud.jobs, list[JobDetail])
        cloud.next_job(testing.HostLost(), testing.OutOfMemory(), testing.ImageFailed(), task=3)
        cloud.next_job(testing.TimedOut(), testing.OutcomeMissing(), testing.Cancelled("by me"))
        cloud.next_job(
            testing.ScriptedFailure(exit_code=3), testing.Stuck("CAPACITY:X", for_s=0.5)
        )
        cloud.next_job(testing.Refused("no", code="ClientException"), testing.Throttled(2))
        cloud.next_job(testing.HostLost)  # type: ignore[arg-type]
        cloud.next_job(testing.HostLost(), task="3")  # type: ignore[arg-type]


async def commands() -> None:
    job = await executor.command("alpine:3", ["echo", "hi"], vcpu=1, nodes=2, env={"A": "1"})
    assert_type(job, CommandJob)
    assert_type(await job.wait(), CommandResult)
    assert_type((await job.wait()).exit_codes, tuple[int | None, ...])
    assert_type(await job.status(), JobStatus)
    assert_type(await job.nodes(), list[JobDetail])
    async for line in job.logs(node=1, follow=True):
        assert_type(line, LogLine)
    await executor.command(groups=[Nodes(1, "alpine:3")], instance_type="c7g.large")
    await executor.command("alpine:3", vcpuu=1)  # type: ignore[call-arg]
    await executor.command("alpine:3", env={"A": 1})  # type: ignore[dict-item]
    assert_type(executor.attach_command("6f1c"), CommandJob)
