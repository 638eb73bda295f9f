"""Job references: which job a person means by the beginning of an ID, by a name, or by nothing.

A whole ID is taken as it is, and asks nobody. The beginning of one has to fit a single job of the
newest 1,000 of the queue, whoever submitted it. A name is a function's, or a
command job's own: it means the newest job of that name of one user, and the beginning of a name
does if there is but one such name. Nothing means the user's newest job. The child of an array is
``<job>:<index>`` and a node ``<job>#<index>``, whatever the job is called by.
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
"""Requests for lists, of a hundred jobs each, that a queue is asked at most."""

SHORT = 8
"""Characters of an ID by which a job is shown to people."""

_WHOLE = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}")
_BEGINNING = re.compile(r"[0-9a-f]{4,16}|[0-9a-f]{8}-[0-9a-f-]{0,27}")
_NAMED = re.compile(r"[a-z0-9][a-z0-9-]*-([0-9a-f]{8,16})")
"""A whole ID that is a name, and what of it no other has."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_REFERENCE = re.compile(r"([^:#]*)([:#]\d+)?")
_MOST_SHOWN = 10


class Finder:
    """Finds jobs in some queues, in few requests.

    Args:
        backend: Where they run.
        queues: Names or ARNs of the queues.
        user: Whose names count, as `Entry.user`; None for everybody's.
    """

    def __init__(self, backend: Backend, queues: Collection[str], user: str | None) -> None:
        self._backend = backend
        self._catalog = Catalog(backend)
        self._queues = queues
        self._user = user
        self._newest: list[JobDetail] | None = None

    async def find(self, reference: str, *, to_end: bool = False) -> tuple[str, Entry | None]:
        """Find the job that somebody means.

        Args:
            reference: A whole ID, the beginning of one, or a name.
            to_end: Whether it is to be ended: of a name all jobs that go on count, and of several
                none is found.

        Returns:
            The job's ID with the child's or node's number, if one was given, and where the
            reference was a name the job that it means.

        Raises:
            UnknownError: There is none, or there are several.
            ServiceError: The platform refused a call.
        """
        split = _REFERENCE.fullmatch(reference)
        word, part = (split[1], split[2] or "") if split else (reference, "")
        if _WHOLE.fullmatch(word) or await self._is_named(word):
            return reference, None
        found = await self._by_id(word) if _BEGINNING.fullmatch(word) else []
        named = await self._by_name(word, to_end=to_end) if _NAME.fullmatch(word) else []
        jobs = {entry.detail.job_id: entry for entry in [*found, *named]}
        if not jobs:
            raise UnknownError(self._none(word))
        if len(jobs) > 1:
            raise UnknownError(_several(word, jobs.values()))
        ((job_id, entry),) = jobs.items()
        return job_id + part, entry if named else None

    async def newest(self, workflow: str | None = None) -> Entry:
        """Find the user's newest job.

        Raises:
            UnknownError: There is none among the newest of the queue.
            ServiceError: The platform refused a call.
        """
        query = Query(self._user, workflow)
        async with contextlib.aclosing(self._pages()) as pages:
            async for page in pages:
                for entry in await self._catalog.recognize(page):
                    if query.fits(entry):
                        return entry
        of = f" in workflow {workflow}" if workflow else ""
        raise UnknownError(f"there is no job{self._whose()}{of}{self._where()}")

    async def _is_named(self, word: str) -> bool:
        """Return whether a word is the whole ID of a job, where such IDs are names."""
        if not self._backend.capabilities.ids_are_names or not _NAMED.fullmatch(word):
            return False
        return bool(await self._backend.describe([word]))

    async def _by_id(self, word: str) -> list[Entry]:
        """Return the jobs whose IDs begin so, or what of them no other has."""
        if self._newest is None:
            self._newest = [job async for page in self._pages() for job in page]
        listed = [
            job
            for job in self._newest
            if job.job_id.startswith(word) or _own(job.job_id).startswith(word)
        ]
        return await self._catalog.recognize(listed)

    async def _by_name(self, word: str, *, to_end: bool) -> list[Entry]:
        """Return the newest job of a name, or of each of the names that begin so.

        Of jobs that are to be ended those are returned that go on, where there are any.
        """
        found: list[Entry] = []
        exact: list[Entry] = []
        async with contextlib.aclosing(self._pages(named=word)) as pages:
            async for page in pages:
                entries = await self._catalog.recognize(page)
                found += [entry for entry in entries if self._user in (None, entry.user)]
                exact = [entry for entry in found if word in (entry.function, entry.detail.name)]
                if exact and not to_end:
                    break
        matching = exact or found
        if to_end:
            going = [entry for entry in matching if not entry.detail.status.is_final]
            if going:
                return going
        by_name = {entry.function: entry for entry in reversed(matching)}
        return list(by_name.values())

    async def _pages(self, *, named: str = "") -> AsyncGenerator[list[JobDetail], None]:
        """Yield what is looked through, the newest of each queue first."""
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
            f"{word!r} is neither the beginning of a job's ID, of at least 4 characters, nor of "
            f"the name of a job{self._whose()}{self._where()}"
        )

    def _whose(self) -> str:
        return f" of {self._user}" if self._user else ""

    def _where(self) -> str:
        return (
            f"{in_queues(self._queues)}; `farcall list` shows what there is, and a whole ID is "
            "found in any queue"
        )


def short(job_id: str) -> str:
    """Return the beginning of an ID, with the number of a child or a node.

    Args:
        job_id: A whole ID; of a name the beginning of what no other has. What has another form
            stays as it is.
    """
    split = _REFERENCE.fullmatch(job_id)
    own = _own(split[1]) if split is not None else ""
    if split is None or not own:
        return job_id
    return own[:SHORT] + (split[2] or "")


def _own(job_id: str) -> str:
    """Return what of a whole ID no other has; empty where it has neither form."""
    if _WHOLE.fullmatch(job_id):
        return job_id
    named = _NAMED.fullmatch(job_id)
    return named[1] if named else ""


def _several(word: str, entries: Collection[Entry]) -> str:
    """List jobs of which one is to be chosen."""
    shown = [f"  {_line(entry)}" for entry in list(entries)[:_MOST_SHOWN]]
    if len(entries) > _MOST_SHOWN:
        shown.append("  ...")
    lines = "\n".join(shown)
    return f"{word!r} may mean any of {len(entries)} jobs; name one by its ID:\n{lines}"


def _line(entry: Entry) -> str:
    detail = entry.detail
    at = f", submitted {detail.created_at:%Y-%m-%d %H:%M} UTC" if detail.created_at else ""
    return f"{detail.job_id}  {json_view.state(detail)}  {in_a_line(entry.function)}{at}"
