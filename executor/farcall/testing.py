"""For test suites of code that uses farcall: shorter waits, such as on the embedded AWS.

::

    @pytest.fixture(autouse=True, scope="session")
    def _fast():
        with farcall.local.start() as aws, use_timing(Timing.fast()):
            os.environ.update(aws.environment)
            yield aws
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from farcall.model.timing import Timing, in_force, put_in_force

__all__ = ["Timing", "use_timing"]


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
