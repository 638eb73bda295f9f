"""For test suites of code that uses farcall: a cloud in this process, and shorter waits.

A fake cloud needs nothing but this package, and how its jobs end can be scripted::

    @pytest.fixture
    def cloud():
        with farcall.testing.fake_cloud() as cloud:
            yield cloud

    async def test_a_lost_host_is_survived(cloud):
        cloud.next_job(farcall.testing.HostLost())
        assert await my_pipeline() == 42
        assert cloud.jobs[0].attempts == 2

The local AWS emulator is the same by its own protocols, and `use_timing` shortens waits there::

    @pytest.fixture(autouse=True, scope="session")
    def _fast():
        with farcall_local.start() as aws, use_timing(Timing.fast()):
            os.environ.update(aws.environment)
            yield aws
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from farcall.engine.session import opening
from farcall.model.settings import default_bucket, set_default_bucket
from farcall.model.timing import Timing, in_force, put_in_force
from farcall.testing.backend import open_fake
from farcall.testing.platform import FakeCloud, FakePlatform
from farcall.testing.script import (
    Cancelled,
    Happening,
    HostLost,
    ImageFailed,
    OutcomeMissing,
    OutOfMemory,
    Refused,
    ScriptedFailure,
    Stuck,
    Throttled,
    TimedOut,
)

__all__ = [
    "Cancelled",
    "FakeCloud",
    "Happening",
    "HostLost",
    "ImageFailed",
    "OutOfMemory",
    "OutcomeMissing",
    "Refused",
    "ScriptedFailure",
    "Stuck",
    "Throttled",
    "TimedOut",
    "Timing",
    "fake_cloud",
    "use_timing",
]


@contextlib.contextmanager
def fake_cloud() -> Iterator[FakeCloud]:
    """Have a fake cloud do what AWS does for this process, for as long as a block lasts.

    No server, network, AWS account or environment variable is needed, and none of AWS's is used.
    Functions run in processes of this machine, each with an environment and a folder of its own.
    When the block ends, so do the jobs, and the bucket is gone. Waits are those of `Timing.fast`.

    It counts for executors that were made before, too. Where blocks are in one another, the
    innermost counts.
    """
    platform = FakePlatform()
    try:
        with (
            use_timing(Timing.fast()),
            _bucket("fake"),
            opening(functools.partial(open_fake, platform)),
        ):
            yield FakeCloud(platform)
    finally:
        platform.close()


@contextlib.contextmanager
def _bucket(name: str) -> Iterator[None]:
    before = default_bucket()
    set_default_bucket(name)
    try:
        yield
    finally:
        set_default_bucket(before)


@contextlib.contextmanager
def use_timing(timing: Timing) -> Iterator[None]:
    """Have other waits and limits, for as long as a block lasts.

    They count for what is opened in the block, by any thread of this process: a session that is
    open keeps those that it was opened with, and other processes have their own.

    Args:
        timing: `Timing.fast`, or what `dataclasses.replace` makes of it.
    """
    before = in_force()
    put_in_force(timing)
    try:
        yield
    finally:
        put_in_force(before)
