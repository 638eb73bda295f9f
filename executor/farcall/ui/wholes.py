"""The jobs that somebody looks into, on the page: arrays, and those on several nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from farcall.model.jobs import JobDetail
from farcall.ui.account import Account
from farcall.ui.children import Children
from farcall.ui.nodes import Nodes
from farcall.ui.parts import Parts
from farcall.ui.watchers import Feed


class Wholes:
    """The jobs whose parts somebody looks at: each is asked about once, however many do."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._open: dict[str, Parts] = {}

    @contextlib.contextmanager
    def listen(self, whole: JobDetail) -> Iterator[tuple[Parts, Feed[int]]]:
        """Lend the children of an array, or the nodes of a job, and a feed of them."""
        job_id = whole.job_id
        parts = self._open.get(job_id)
        if parts is None:
            parts = self._open[job_id] = _parts_of(self._account, whole)
        try:
            with parts.listen() as feed:
                yield parts, feed
        finally:
            if not parts.is_heard:
                self._open.pop(job_id, None)

    def hurry(self, job_ids: Iterable[str]) -> None:
        """Look again soon at those of some jobs that are open."""
        for job_id in job_ids:
            if job_id in self._open:
                self._open[job_id].hurry()


def _parts_of(account: Account, whole: JobDetail) -> Parts:
    return Nodes(account, whole) if whole.nodes else Children(account, whole.job_id)
