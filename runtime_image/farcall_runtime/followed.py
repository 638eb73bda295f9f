"""The mark by which a container knows that somebody reads a task's output while it comes."""

from __future__ import annotations

import math
import time

from farcall_runtime.contract import FOLLOWED_S, Location
from farcall_runtime.storage import DeniedError, Storage, UnfitError

LOOK_AGAIN_S = 8.0
"""About once for each chunk of output: a look costs a tenth of it."""


class Mark:
    """The mark of one task.

    Args:
        where: The task's place in the bucket.
        index: The array child's number.
        again_s: How long after a look there is none, in seconds.
    """

    def __init__(self, where: Location, index: int, again_s: float = LOOK_AGAIN_S) -> None:
        self._key = where.followed_key(index)
        self._again_s = again_s
        self._look_at = -math.inf
        self._version: object = None
        self._followed_until = -math.inf

    def is_followed(self, storage: Storage) -> bool:
        """Tell whether somebody reads along, and has left a mark that says so.

        Clocks are not compared: a mark counts from the moment on in which it was first seen.
        """
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + self._again_s
            try:
                version = storage.version(self._key)
            except (DeniedError, UnfitError):
                self._look_at = math.inf
                version = self._version
            except Exception:  # most likely there is none; whatever it is, the caller goes on
                version = self._version
            if version != self._version:
                self._version, self._followed_until = version, now + FOLLOWED_S
        return now < self._followed_until
