"""Request rates of the emulated Batch, and the faults that tests inject.

Batch allows 50 calls per second for each account and region, including SubmitJob, and returns HTTP
429 above that; the limit is fixed. The emulator gives every operation its own bucket with one
second's worth of calls, because AWS does not document whether operations share one.

Sources:
    https://docs.aws.amazon.com/batch/latest/userguide/service_limits.html
    https://repost.aws/knowledge-center/aws-batch-requests-error
"""

from __future__ import annotations

import time
from collections.abc import Callable

from farcall_local.batch.errors import ApiError, ClientError, DropConnectionError, ThrottledError

#: Calls per second of each operation.
DEFAULT_RATE = 50.0

FAULTS = ("throttle", "error", "lost")


class Bucket:
    """Token bucket with a capacity of one second's calls.

    Args:
        rate: Calls per second.
        clock: Monotonic clock in seconds.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._tokens = max(rate, 1.0)
        self._at = clock()

    def take(self) -> bool:
        """Take a token; return whether there was one."""
        now = self._clock()
        full = max(self._rate, 1.0)
        self._tokens = min(full, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Limits:
    """Rate limits of the operations, and the pending faults.

    Args:
        submit_rate: SubmitJob calls per second; None for no limit.
        api_rate: Calls per second of each other operation; None for no limit.
    """

    def __init__(
        self, *, submit_rate: float | None = DEFAULT_RATE, api_rate: float | None = DEFAULT_RATE
    ) -> None:
        self._rates = {"SubmitJob": submit_rate}
        self._api_rate = api_rate
        self._buckets: dict[str, Bucket] = {}
        self._faults: list[str] = []

    def set_rates(self, rates: dict[str, float | None]) -> None:
        """Change `submit_rate` or `api_rate`, and refill the buckets."""
        if "submit_rate" in rates:
            self._rates["SubmitJob"] = rates["submit_rate"]
        if "api_rate" in rates:
            self._api_rate = rates["api_rate"]
        self._buckets.clear()

    def add_fault(self, operation: str, kind: str, count: int) -> None:
        """Make the next `count` calls of an operation fail.

        Args:
            operation: Name of the operation, such as ``SubmitJob``.
            kind: ``throttle`` returns 429 and ``error`` returns 500, both without any effect;
                ``lost`` does the work and closes the connection without a response.
            count: Number of calls.
        """
        if kind not in FAULTS:
            raise ClientError(f"A fault is one of {', '.join(FAULTS)}, not {kind!r}.")
        self._faults += [f"{operation}:{kind}"] * count

    def enter(self, operation: str) -> None:
        """Count a call.

        Raises:
            ThrottledError: There are too many calls, or a fault throttles this one.
            ApiError: A fault rejects the call.
        """
        if self._fault(operation, "throttle"):
            raise ThrottledError
        if self._fault(operation, "error"):
            raise ApiError("A fault was ordered for this call.")
        rate = self._rates.get(operation, self._api_rate)
        if rate is None:
            return
        if operation not in self._buckets:
            self._buckets[operation] = Bucket(rate)
        if not self._buckets[operation].take():
            raise ThrottledError

    def leave(self, operation: str) -> None:
        """Record that a call has done its work.

        Raises:
            DropConnectionError: A fault drops the response.
        """
        if self._fault(operation, "lost"):
            raise DropConnectionError

    def _fault(self, operation: str, kind: str) -> bool:
        name = f"{operation}:{kind}"
        if name not in self._faults:
            return False
        self._faults.remove(name)
        return True
