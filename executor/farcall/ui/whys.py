"""What the page's jobs were called with, and why they failed: read beside the rest.

The texts are in the bucket, a request or two for a job and one for each that failed. So a browser
is told of the jobs first and of these as they come, those of the newest jobs before the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from farcall.model import clock
from farcall.model.errors import FarcallError
from farcall.model.jobs import JobStatus
from farcall.operations.catalog import Entry
from farcall.operations.why import NOTHING, Why
from farcall.ui.account import Account

_AT_ONCE = 50
"""Jobs of which they are read in one look."""

_ARRAY_S = 10.0
"""So often those of an array that goes on are read anew."""


class Whys:
    """The texts of jobs, by ID."""

    def __init__(self, account: Account, get: Callable[[str], Entry | None]) -> None:
        self._account = account
        self._get = get
        self._known: dict[str, Why] = {}
        self._read: dict[str, tuple[object, float]] = {}
        self._left: dict[str, None] = {}

    def of(self, job_id: str) -> Why:
        """Return what is known of a job."""
        return self._known.get(job_id, NOTHING)

    def filled(self, entry: Entry) -> Entry:
        """Return a job with what is known of it."""
        return replace(entry, why=self.of(entry.detail.job_id))

    def note(self, job_ids: Iterable[str]) -> None:
        """Note that jobs are new or have changed."""
        self._left.update(dict.fromkeys(job_ids))

    def keep(self, job_ids: Iterable[str]) -> None:
        """Forget all jobs but these."""
        kept = set(job_ids)
        for known in (self._known, self._read, self._left):
            for job_id in [job_id for job_id in known if job_id not in kept]:
                del known[job_id]

    @property
    def are_left(self) -> bool:
        """Whether there is more to read."""
        return bool(self._left)

    async def read(self) -> list[str]:
        """Read some; return the jobs of which something else is known now.

        What cannot be read now is tried again at the next look.
        """
        entries = [entry for job_id in self._due() if (entry := self._get(job_id)) is not None]
        if not entries:
            return []
        try:
            filled = await (await self._account.reasons()).fill(entries)
        except FarcallError:  # of which the look itself tells, that asks the same of Batch
            return []
        changed = []
        for entry in filled:
            job_id = entry.detail.job_id
            self._left.pop(job_id, None)
            self._read[job_id] = (_state(entry), clock.now())
            if self._known.get(job_id, NOTHING) != entry.why:
                self._known[job_id] = entry.why
                changed.append(job_id)
        return changed

    def _due(self) -> list[str]:
        due = []
        for job_id in list(self._left):
            entry = self._get(job_id)
            state, read_at = self._read.get(job_id, (None, 0.0))
            if entry is None or state == _state(entry):
                del self._left[job_id]
            elif state is None or entry.detail.status.is_final or read_at + _ARRAY_S < clock.now():
                due.append(job_id)
        return sorted(due, key=self._age)[:_AT_ONCE]

    def _age(self, job_id: str) -> float:
        entry = self._get(job_id)
        created_at = entry.detail.created_at if entry is not None else None
        return -created_at.timestamp() if created_at is not None else 0.0


def _state(entry: Entry) -> object:
    """Return what has to change for the texts to change."""
    failed = entry.detail.status_summary.get(JobStatus.FAILED.value, 0)
    return entry.detail.status.is_final, failed
