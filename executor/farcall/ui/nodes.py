"""The nodes of one job, as the page shows them, in few requests.

Of each Batch is asked again until it and its job have ended, a request for a hundred. Where there
are very many, those come first that were not asked for longest.
"""

from __future__ import annotations

from farcall.model import clock
from farcall.model.jobs import JobDetail
from farcall.operations.nodes import unstarted
from farcall.ui.account import Account
from farcall.ui.parts import Parts

_MOST_DESCRIBED = 300
"""Nodes that are described in one look: three requests."""


class Nodes(Parts):
    """The nodes of a job, by number."""

    def __init__(self, account: Account, whole: JobDetail) -> None:
        super().__init__(account)
        self._whole = whole
        self._asked_at: dict[int, float] = {}

    def is_active(self) -> bool:
        """Tell whether one of them has not ended."""
        return bool(self._left())

    async def look(self) -> None:
        """Describe the job, and nodes that have not ended."""
        left = self._left()
        if not left:
            return
        backend = (await self.account.session()).backend
        job_id = self._whole.job_id
        left = left[:_MOST_DESCRIBED]
        ids = {self._whole.node_id(number): number for number in left}
        found = await backend.describe([job_id, *ids])
        self._whole = found.get(job_id, self._whole)
        self._asked_at.update(dict.fromkeys(left, clock.now()))
        nodes = [found.get(node_id) or unstarted(self._whole, ids[node_id]) for node_id in ids]
        self.note(nodes)
        self.is_complete = len(self.known) == self._whole.nodes

    def is_over(self, part: JobDetail) -> bool:
        """Tell whether a node does not run again, as it may in another attempt of its job."""
        return part.status.is_final and self._whole.status.is_final

    def _left(self) -> list[int]:
        """Return the nodes that are to be described, the one asked for longest ago first."""
        left = [
            number
            for number in range(self._whole.nodes)
            if number not in self.known or not self.is_over(self.known[number])
        ]
        return sorted(left, key=lambda number: self._asked_at.get(number, 0.0))
