"""Follow mark: tells a container that somebody reads its output, so that it stores it soon."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from farcall.model.errors import FarcallError, ServiceError
from farcall.storage.store import Store
from farcall_runtime.contract import FOLLOWED_S, SOON_CHUNKS

_RENEW_S = FOLLOWED_S / 2.5
_FROM_CHUNKS = SOON_CHUNKS // 2


class Mark:
    """An object in the bucket that a container looks for once it stores its output less often.

    It is a courtesy: who may not store it reads the output some seconds later.

    Args:
        store: The bucket.
        key: The object's key.
    """

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self._due = -math.inf
        self._storing: asyncio.Future[None] | None = None

    def renew(self, seen: Mapping[str, int]) -> None:
        """Store it, where it is needed and was not stored lately, while the caller goes on.

        Args:
            seen: By stream, how many chunks there were. As long as they are few, every container
                stores its output soon.
        """
        now = asyncio.get_running_loop().time()
        if max(seen.values()) >= _FROM_CHUNKS and now >= self._due:
            self._due = now + _RENEW_S
            self._storing = asyncio.ensure_future(self._put())

    async def remove(self) -> None:
        """Have it deleted. Who else follows stores it anew before the container forgets it."""
        if self._storing is not None:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)
            self._store.delete_later([self._key])

    async def _put(self) -> None:
        try:
            await self._store.put(self._key, [b"followed"], quick=True)
        except ServiceError as error:
            if error.code == "AccessDenied":
                self._due = math.inf
        except FarcallError:
            pass  # the next one may get through
