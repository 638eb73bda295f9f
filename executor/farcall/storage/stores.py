"""Registry of the buckets in use: one store for each, opened on first use."""

from __future__ import annotations

import math
from collections.abc import Iterator

from farcall.aws.access import Access
from farcall.model.errors import SettingsError
from farcall.storage.store import Store


class Stores:
    """The stores of one session."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._open: dict[str, Store] = {}

    def of(self, bucket: str) -> Store:
        """Return the store of a bucket.

        Raises:
            SettingsError: The options do not name a bucket.
        """
        if not bucket:
            raise SettingsError(
                "s3_bucket_name is empty: functions are sent through a bucket; set it to a "
                "bucket. Only command jobs do not need one",
                option="s3_bucket_name",
            )
        if bucket not in self._open:
            self._open[bucket] = Store(bucket, self._access)
        return self._open[bucket]

    def __iter__(self) -> Iterator[Store]:
        return iter(self._open.values())

    @property
    def given_up_at(self) -> float:
        """Time of the last cancelled request, by `clock.now`; minus infinity if none."""
        return max((store.given_up_at for store in self), default=-math.inf)
