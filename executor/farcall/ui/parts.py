"""Parts of one job, as the page shows them: children of an array, or nodes of a job on several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from farcall.model.jobs import JobDetail
from farcall.operations import json_view
from farcall.ui.account import Account
from farcall.ui.watchers import Watcher


class Parts(Watcher[int]):
    """The parts of a job, by index.

    Attributes:
        known: What is known of them.
        calls: What they were called with, by index, as far as that is known.
        errors: Why those failed that did, by index, as far as that is known.
    """

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self.known: dict[int, JobDetail] = {}
        self.calls: Sequence[str] = ()
        self.errors: dict[int, str] = {}

    def row(self, index: int) -> dict[str, Any]:
        """Return a part as a browser is told of it; there may be thousands, so it is short."""
        child = self.known[index]
        return {
            "i": index,
            "s": json_view.state(child),
            "b": _ms(child.started_at),
            "e": _ms(child.stopped_at),
            "c": _ms(child.created_at),
            "x": child.exit_code,
            "r": child.reason,
            "a": self.calls[index] if index < len(self.calls) else "",
            "w": self.errors.get(index, None if self.is_unread(child) else ""),
        }

    def keys(self) -> Iterable[int]:
        """Return the indexes of the parts that are known, in their order."""
        return sorted(self.known)

    def note(self, parts: Iterable[JobDetail]) -> None:
        """Take in how parts are by now, and tell of those that changed."""
        changed = []
        for part in parts:
            index = part.index if part.node_index is None else part.node_index
            before = self.known.get(index)
            if before is not None and self.is_over(before):
                continue  # a list that lags behind
            self.known[index] = part
            if before is None or _said(before) != _said(part):
                changed.append(index)
        self.tell(changed)

    def is_unread(self, part: JobDetail) -> bool:
        """Tell whether why a part failed will be read, and told again."""
        return False

    def is_over(self, part: JobDetail) -> bool:
        """Tell whether nothing of a part changes any more."""
        return part.status.is_final


def _said(part: JobDetail) -> tuple[object, ...]:
    moments = part.created_at, part.started_at, part.stopped_at
    return (json_view.state(part), part.exit_code, part.reason, *moments)


def _ms(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1000)
