"""Data and actions behind the server's HTTP API."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import farcall
from farcall.engine.logs import reader
from farcall.model.clock import within
from farcall.model.errors import FarcallError
from farcall.model.jobs import JobDetail
from farcall.model.output import LogLine
from farcall.model.settings import Settings, from_text
from farcall.operations import cancel, json_view, retry
from farcall.operations import describe as overview
from farcall.operations.cancel import Cancelled, Companion
from farcall.operations.catalog import Catalog, Entry, Query
from farcall.operations.retry import Again
from farcall.ui.account import Account
from farcall.ui.guard import as_json
from farcall.ui.jobs import Jobs, user
from farcall.ui.parts import Wholes
from farcall.ui.watchers import Feed, K, Watcher

# --- Server-sent events, sent while a browser listens -------------------------------------------
#
# Source:
#     https://html.spec.whatwg.org/multipage/server-sent-events.html


HEARTBEAT_S = 15.0
_LAST_WORD_S = 0.5


def event(name: str, data: Any) -> bytes:
    """Return a server-sent event as text."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), as_json(data))


class EventStream(Response):
    """Response that streams events until they, the browser or the server end.

    The next event is requested when the browser has received the last one.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], stopping: asyncio.Event) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._events = events
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        sending = asyncio.ensure_future(self._send(send))
        others = [
            asyncio.ensure_future(_gone(receive)),
            asyncio.ensure_future(self._stopping.wait()),
        ]
        try:
            await asyncio.wait({sending, *others}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, *others):
                task.cancel()
            await asyncio.gather(sending, *others, return_exceptions=True)
            await self._events.aclose()
        last = {"type": "http.response.body", "body": b"", "more_body": False}
        with contextlib.suppress(asyncio.TimeoutError):  # the browser does not read
            await within(_LAST_WORD_S, send(last))
        if not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for piece in _with_heartbeats(self._events):
            await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _with_heartbeats(events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """Yield events, and comments during long pauses."""
    yield b": \n\n"
    while True:
        following = asyncio.ensure_future(anext(events))
        try:
            while not (await asyncio.wait({following}, timeout=HEARTBEAT_S))[0]:
                yield b": \n\n"
        finally:
            if not following.done():
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        try:
            piece = following.result()
        except StopAsyncIteration:
            return
        yield piece


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_JOBS = 200
_CHILDREN = 1000
_LINES = 500


@dataclass(frozen=True)
class Options:
    """Options of the web UI.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 uses a free one.
        read_only: Whether jobs cannot be cancelled or retried.
        span: Maximum age of shown jobs.
        queues: Names or ARNs of the queues; empty for the option ``queue``.
        everybody: Whether the jobs of all users are shown, instead of only the user's own.
        covalent: The Covalent server for cancelling electrons.
    """

    host: str = "127.0.0.1"
    port: int = 8750
    read_only: bool = False
    span: timedelta = field(default=timedelta(days=7))
    queues: Sequence[str] = ()
    everybody: bool = False
    covalent: Companion | None = None


class Site:
    """All data and actions of the web UI.

    Attributes:
        options: The web UI's options.
        queues: The queues whose jobs are shown.
        jobs: The queues' jobs.
        wholes: Array tasks and nodes of open jobs.
        stopping: Set when the server stops.
    """

    def __init__(self, settings: Settings, options: Options) -> None:
        self.options = options
        self.queues = list(options.queues) or [settings.queue]
        self._settings = settings
        self._account = Account(settings)
        self.jobs = Jobs(self._account, self.queues, options.span, everybody=options.everybody)
        self.wholes = Wholes(self._account)
        self.jobs.on_change = self.wholes.poll_soon
        self.stopping = asyncio.Event()

    async def close(self) -> None:
        """Close the clients."""
        await self._account.close()

    async def about(self) -> dict[str, Any]:
        """Return the web UI's own data, such as the account.

        Raises:
            FarcallError: There is no session.
        """
        session = await self._account.session()
        covalent = self.options.covalent
        return {
            "version": farcall.__version__,
            "region": session.aws.region,
            "queues": self.queues,
            "bucket": self._settings.s3_bucket_name,
            "prefix": self._settings.prefix,
            "user": "" if self.options.everybody else user(session),
            "read_only": self.options.read_only,
            "covalent": covalent.address if covalent is not None else "",
            "console": session.aws.has_console,
            "since": json_view.moment(self.jobs.since),
        }

    async def account_id(self) -> str:
        """Return the account's ID.

        Raises:
            FarcallError: STS rejected the call, or there is no session.
        """
        return await (await self._account.session()).aws.account()

    # --- data ---------------------------------------------------------------------------------

    async def job_events(self, since: datetime) -> AsyncGenerator[bytes, None]:
        """Yield the jobs submitted since a time, then each changed job."""

        def told(job_ids: list[str]) -> dict[str, Any]:
            known = filter(None, map(self.jobs.get, job_ids))
            return {"jobs": [json_view.job(self.jobs.whys.filled(entry)) for entry in known]}

        with self.jobs.listen_since(since) as feed:
            async for piece in _events(self.jobs, feed, "jobs", _JOBS, told):
                yield piece

    async def child_events(self, whole: JobDetail) -> AsyncGenerator[bytes, None]:
        """Yield an array's tasks or a job's nodes, then each changed one."""
        with self.wholes.listen(whole) as (parts, feed):

            def told(indexes: list[int]) -> dict[str, Any]:
                return {"children": [parts.row(index) for index in indexes]}

            async for piece in _events(parts, feed, "children", _CHILDREN, told):
                yield piece

    async def line_events(
        self, detail: JobDetail, streams: Sequence[str], attempt: int | None, tail: int | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield a job's output lines until the job finishes."""
        end = {}
        try:
            lines = reader.lines(
                await self._account.session(),
                detail.job_id,
                follow=True,
                streams=streams,
                attempt=attempt,
                tail=tail,
            )
            async with contextlib.aclosing(lines) as batches:
                async for batch in batches:
                    for start in range(0, len(batch), _LINES):
                        told = [_line(line) for line in batch[start : start + _LINES]]
                        yield event("lines", {"lines": told})
        except FarcallError as error:
            end = {"error": str(error)}
        yield event("end", end)

    async def entry(self, job_id: str) -> Entry | None:
        """Return Batch's data of a job, or None if it is unknown or not farcall's.

        Raises:
            FarcallError: Batch rejected the call.
        """
        session = await self._account.session()
        return (await Catalog(session.backend).describe([job_id])).get(job_id)

    async def overview(self, entry: Entry) -> dict[str, Any]:
        """Return all known data of a job.

        Raises:
            FarcallError: An AWS call failed.
        """
        return await overview.of(
            await self._account.session(), entry, await self._account.reasons()
        )

    # --- actions ------------------------------------------------------------------------------

    async def cancel_jobs(self, job_ids: Sequence[str], reason: str) -> list[Cancelled]:
        """Cancel jobs.

        Raises:
            FarcallError: An AWS call failed.
        """
        session = await self._account.session()
        done = await cancel.cancel(session, job_ids, reason, self.options.covalent)
        self._look_again(job_ids)
        return done

    async def cancel_run(self, run: str, workflow: str | None, reason: str) -> list[Cancelled]:
        """Cancel all unfinished jobs of a workflow's run, and its dispatch.

        Args:
            run: The run, as in `Entry.run`.
            workflow: The workflow's name, or None for all of the run's workflows.
            reason: Reason that is recorded for the cancellation.

        Raises:
            FarcallError: An AWS call failed.
        """
        session = await self._account.session()
        with self.jobs.listen_since(self.jobs.since):
            await self.jobs.refresh()  # include the latest submissions
        query = Query(run=run, workflow=workflow)
        entries = [entry for entry in self.jobs.entries.values() if query.fits(entry)]
        done = await cancel.cancel_all(session, entries, reason, self.options.covalent)
        self._look_again(entry.detail.job_id for entry in entries)
        return done

    async def preview_retry(self, job_id: str) -> dict[str, Any]:
        """Return the tasks that a retry of a job would run.

        Raises:
            FarcallError: An AWS call failed, or Batch does not know the job.
        """
        return await retry.preview(await self._account.session(), self._settings, job_id)

    async def retry(self, job_id: str, options: Mapping[str, Any], *, failed: bool) -> list[Again]:
        """Retry the failed tasks of a job.

        Args:
            job_id: The job.
            options: Options to change: numbers, and texts as users type them.
            failed: Whether to leave out tasks that were cancelled.

        Raises:
            SettingsError: An option's value is wrong.
            FarcallError: No task can be retried, or an AWS call failed.
        """
        session = await self._account.session()
        plan = await retry.plan(session, self._settings, job_id, failed=failed)
        typed = {
            name: from_text(name, value) if isinstance(value, str) else value
            for name, value in options.items()
        }
        done = await retry.run(session, plan, typed)
        self._look_again([job_id])
        return done

    def _look_again(self, job_ids: Iterable[str]) -> None:
        self.jobs.poll_soon()
        self.wholes.poll_soon(job_id.partition(":")[0] for job_id in job_ids)


async def _events(
    watcher: Watcher[K],
    feed: Feed[K],
    name: str,
    most: int,
    told: Callable[[list[K]], dict[str, Any]],
) -> AsyncGenerator[bytes, None]:
    """Yield a feed's news, and the poller's state after each poll."""
    while True:
        keys = await feed.take(most, HEARTBEAT_S)
        if keys:
            yield event(name, told(keys))
        if not feed.is_behind:
            yield event("state", watcher.state())


def _line(line: LogLine) -> dict[str, Any]:
    told = {
        "text": line.text,
        "stream": line.stream,
        "attempt": line.attempt,
        "at": json_view.moment(line.at),
    }
    if line.goes_on:
        told["goes_on"] = True
    return told
