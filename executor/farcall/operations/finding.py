"""Job references: a job by the beginning of its ID, by name, or the newest one.

A complete ID needs no request. The beginning of an ID must match exactly one of the queue's newest
1,000 jobs, of any user. A name is the name of a function or of a command job, and refers to the
user's newest job with that name; the beginning of a name works if it matches only one name.
Without a reference, the user's newest job is meant. An array task is ``<job>:<index>`` and a node
``<job>#<index>``, for each form of ``<job>``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Collection

from farcall.backends.base import Backend
from farcall.model.errors import UnknownError
from farcall.model.jobs import JobDetail
from farcall.model.names import in_queues
from farcall.model.terminal import in_a_line
from farcall.operations import json_view
from farcall.operations.catalog import Catalog, Entry, Query

MOST_PAGES = 10
"""Maximum list requests per queue, of a hundred jobs each."""

SHORT = 8
"""Number of characters of an ID that tables show."""

_WHOLE = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}")
_BEGINNING = re.compile(r"[0-9a-f]{4,16}|[0-9a-f]{8}-[0-9a-f-]{0,27}")
_NAMED = re.compile(r"[a-z0-9][a-z0-9-]*-([0-9a-f]{8,16})")
"""Pattern of a complete ID that is a name; the group is its unique part."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_REFERENCE = re.compile(r"([^:#]*)([:#]\d+)?")
_MOST_SHOWN = 10


class Finder:
    """Job lookup in some queues, with few requests.

    Args:
        backend: Platform that runs the jobs.
        queues: Names or ARNs of the queues.
        user: User whose names are searched, as `Entry.user`; None for all users.
    """

    def __init__(self, backend: Backend, queues: Collection[str], user: str | None) -> None:
        self._backend = backend
        self._catalog = Catalog(backend)
        self._queues = queues
        self._user = user
        self._newest: list[JobDetail] | None = None

    async def find(self, reference: str, *, to_end: bool = False) -> tuple[str, Entry | None]:
        """Find the job for a reference.

        Args:
            reference: A complete ID, the beginning of one, or a name.
            to_end: Whether the job will be cancelled: a name then refers to unfinished jobs, and
                must match exactly one.

        Returns:
            The job's ID, with the index of a task or node if given, and for a name the job's
            entry.

        Raises:
            UnknownError: No job, or several jobs, match.
            ServiceError: The platform refused a call.
        """
        split = _REFERENCE.fullmatch(reference)
        word, part = (split[1], split[2] or "") if split else (reference, "")
        if _WHOLE.fullmatch(word) or await self._is_named(word):
            return reference, None
        by_id = await self._by_id(word) if _BEGINNING.fullmatch(word) else []
        named = await self._by_name(word, to_end=to_end) if _NAME.fullmatch(word) else []
        jobs = {entry.detail.job_id: entry for entry in [*by_id, *named]}
        if not jobs:
            raise UnknownError(self._none(word))
        if len(jobs) > 1:
            raise UnknownError(_several(word, jobs.values()))
        ((job_id, entry),) = jobs.items()
        return job_id + part, entry if named else None

    async def newest(self, workflow: str | None = None) -> Entry:
        """Find the user's newest job.

        Raises:
            UnknownError: The user has no job among the newest of the queue.
            ServiceError: The platform refused a call.
        """
        query = Query(self._user, workflow)
        async with contextlib.aclosing(self._pages()) as pages:
            async for page in pages:
                entries = await self._catalog.recognize(page)
                if fitting := [entry for entry in entries if query.fits(entry)]:
                    return max(fitting, key=_age_order)
        of = f" in workflow {workflow}" if workflow else ""
        raise UnknownError(f"no jobs{self._whose()}{of}{self._where()}")

    async def _is_named(self, word: str) -> bool:
        """Return whether a word is a complete ID, if the platform's IDs are names."""
        if not self._backend.capabilities.ids_are_names or not _NAMED.fullmatch(word):
            return False
        return bool(await self._backend.describe([word]))

    async def _by_id(self, word: str) -> list[Entry]:
        """Return the jobs whose IDs, or their unique parts, begin with a text."""
        if self._newest is None:
            self._newest = [job async for page in self._pages() for job in page]
        listed = [
            job
            for job in self._newest
            if job.job_id.startswith(word) or _own(job.job_id).startswith(word)
        ]
        return await self._catalog.recognize(listed)

    async def _by_name(self, word: str, *, to_end: bool) -> list[Entry]:
        """Return the newest job with a name, or with each name that begins with a text.

        If the jobs will be cancelled, unfinished jobs are returned if there are any.
        """
        matches: list[Entry] = []
        exact: list[Entry] = []
        async with contextlib.aclosing(self._pages(named=word)) as pages:
            async for page in pages:
                entries = await self._catalog.recognize(page)
                matches += [entry for entry in entries if self._user in (None, entry.user)]
                exact = [entry for entry in matches if word in (entry.function, entry.detail.name)]
                if exact and not to_end:
                    break
        matching = exact or matches
        if to_end:
            going = [entry for entry in matching if not entry.detail.status.is_final]
            if going:
                return going
        by_name = {entry.function: entry for entry in sorted(matching, key=_age_order)}
        return list(by_name.values())

    async def _pages(self, *, named: str = "") -> AsyncGenerator[list[JobDetail], None]:
        """Yield the searched jobs, the newest of each queue first."""
        for queue in self._queues:
            left = MOST_PAGES
            async with contextlib.aclosing(self._backend.list_jobs(queue, named=named)) as pages:
                async for page in pages:
                    yield page
                    left -= 1
                    if not left:
                        break

    def _none(self, word: str) -> str:
        return (
            f"no job{self._whose()} has a name or an ID that begins with {word!r} (of an ID, at "
            f"least 4 characters){self._where()}"
        )

    def _whose(self) -> str:
        return f" of {self._user}" if self._user else ""

    def _where(self) -> str:
        return (
            f"{in_queues(self._queues)}. Run `farcall list` to list the jobs, or name a job by "
            "its full ID, which is found in any queue"
        )


def _age_order(entry: Entry) -> float:
    """Return the key that sorts jobs by age; some emulators list them in another order."""
    at = entry.detail.created_at
    return 0.0 if at is None else at.timestamp()


def short(job_id: str) -> str:
    """Return the beginning of an ID, with the index of a task or a node.

    Args:
        job_id: A complete ID; if it is a name, the beginning of its unique part is returned. Other
            forms are returned unchanged.
    """
    split = _REFERENCE.fullmatch(job_id)
    own = _own(split[1]) if split is not None else ""
    if split is None or not own:
        return job_id
    return own[:SHORT] + (split[2] or "")


def _own(job_id: str) -> str:
    """Return the unique part of a complete ID; empty if it has another form."""
    if _WHOLE.fullmatch(job_id):
        return job_id
    named = _NAMED.fullmatch(job_id)
    return named[1] if named else ""


def _several(word: str, entries: Collection[Entry]) -> str:
    shown = [f"  {_line(entry)}" for entry in list(entries)[:_MOST_SHOWN]]
    if len(entries) > _MOST_SHOWN:
        shown.append("  ...")
    lines = "\n".join(shown)
    return f"{word!r} matches {len(entries)} jobs. Name one by its ID:\n{lines}"


def _line(entry: Entry) -> str:
    detail = entry.detail
    at = f", submitted {detail.created_at:%Y-%m-%d %H:%M} UTC" if detail.created_at else ""
    return f"{detail.job_id}  {json_view.state(detail)}  {in_a_line(entry.function)}{at}"
