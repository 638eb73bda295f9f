"""Test support for code that uses farcall: an in-process cloud, and shorter waits.

A fake cloud needs only this package, and tests can script how its jobs end::

    @pytest.fixture
    def cloud():
        with farcall.testing.fake_cloud() as cloud:
            yield cloud

    async def test_a_lost_host_is_survived(cloud):
        cloud.next_job(farcall.testing.HostLost())
        assert await my_pipeline() == 42
        assert cloud.jobs[0].attempts == 2

The local AWS emulator uses AWS's own protocols, and `use_timing` shortens waits there::

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

from farcall.config.settings import default_bucket, set_default_bucket
from farcall.engine.session import opening
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
    """Replace AWS with a fake cloud in this process during a block.

    It needs no server, network, AWS account or environment variable, and ignores AWS's variables.
    Functions run in processes of this machine, each with its own environment and folder. When the
    block ends, the jobs are terminated, and the bucket is deleted. `Timing.fast` applies.

    The fake cloud also applies to executors that were created before. In nested blocks, the
    innermost one applies.
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
    """Use other intervals and limits during a block.

    They apply to sessions that any thread of this process opens in the block. Open sessions keep
    their timing, and other processes have their own.

    Args:
        timing: `Timing.fast`, or a copy of it from `dataclasses.replace`.
    """
    before = in_force()
    put_in_force(timing)
    try:
        yield
    finally:
        put_in_force(before)
