"""Data and actions behind the server's HTTP API."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

import farcall
from farcall.config.settings import Settings, from_text
from farcall.engine.session import this_user
from farcall.model.errors import FarcallError
from farcall.model.jobs import JobDetail
from farcall.model.output import LogLine
from farcall.operations import cancel, json_view, retry
from farcall.operations.cancel import Cancelled
from farcall.operations.catalog import Entry, Query
from farcall.operations.retry import Again
from farcall.ui.guard import as_json
from farcall.ui.jobs import Jobs
from farcall.ui.parts import OpenJobs
from farcall.ui.watchers import Account, Feed, K, Watcher

if TYPE_CHECKING:
    from farcall.covalent.cancel import CovalentCompanion

# --- Server-sent events, sent while a browser listens -------------------------------------------
#
# Source:
#     https://html.spec.whatwg.org/multipage/server-sent-events.html


HEARTBEAT_S = 15.0
_COMMENT = b": \n\n"


def event(name: str, data: Any) -> bytes:
    """Return a server-sent event as text."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), as_json(data))


class EventStream(StreamingResponse):
    """Response that streams events until they, the browser or the server end."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], stopping: asyncio.Event) -> None:
        super().__init__(_until(stopping, events))


async def _until(
    stopping: asyncio.Event, events: AsyncGenerator[bytes, None]
) -> AsyncIterator[bytes]:
    """Yield events until the server stops, and comments during long pauses."""
    yield _COMMENT
    stopped = asyncio.ensure_future(stopping.wait())
    following = asyncio.ensure_future(anext(events))
    both = asyncio.FIRST_COMPLETED
    try:
        while not stopped.done():
            await asyncio.wait({following, stopped}, timeout=HEARTBEAT_S, return_when=both)
            if not following.done():
                yield _COMMENT
                continue
            yield following.result()
            following = asyncio.ensure_future(anext(events))
    except StopAsyncIteration:
        return
    finally:
        stopped.cancel()
        following.cancel()
        # A response that is cancelled is also cancelled at each further await.
        await asyncio.shield(_closed(following, events))


async def _closed(following: asyncio.Future[bytes], events: AsyncGenerator[bytes, None]) -> None:
    await asyncio.gather(following, return_exceptions=True)
    await events.aclose()


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
    covalent: CovalentCompanion | None = None


class Site:
    """All data and actions of the web UI.

    Attributes:
        options: The web UI's options.
        settings: farcall's options.
        account: The session.
        queues: The queues whose jobs are shown.
        jobs: The queues' jobs.
        open_jobs: Array tasks and nodes of open jobs.
        stopping: Set when the server stops.
    """

    def __init__(self, settings: Settings, options: Options) -> None:
        self.options = options
        self.queues = list(options.queues) or [settings.queue]
        self.settings = settings
        self.account = Account(settings)
        self.jobs = Jobs(self.account, self.queues, options.span, everybody=options.everybody)
        self.open_jobs = OpenJobs(self.account)
        self.jobs.on_change = self.open_jobs.poll_soon
        self.stopping = asyncio.Event()

    async def close(self) -> None:
        """Close the clients."""
        await self.account.close()

    async def about(self) -> dict[str, Any]:
        """Return the web UI's own data, such as the account.

        Raises:
            FarcallError: There is no session.
        """
        session = await self.account.session()
        covalent = self.options.covalent
        return {
            "version": farcall.__version__,
            "region": session.aws.region,
            "queues": self.queues,
            "bucket": self.settings.s3_bucket_name,
            "prefix": self.settings.prefix,
            "user": "" if self.options.everybody else this_user(),
            "read_only": self.options.read_only,
            "covalent": covalent.address if covalent is not None else "",
            "console": session.aws.has_console,
            "prices": {
                "vcpu_hour": self.settings.vcpu_hour_price,
                "gb_hour": self.settings.gb_hour_price,
            },
            "since": json_view.moment(self.jobs.since),
        }

    # --- data ---------------------------------------------------------------------------------

    async def job_events(self, since: datetime) -> AsyncGenerator[bytes, None]:
        """Yield the jobs submitted since a time, then each changed job."""

        def view(job_ids: list[str]) -> dict[str, Any]:
            known = filter(None, map(self.jobs.get, job_ids))
            return {"jobs": [self._job(entry) for entry in known]}

        with self.jobs.listen_since(since) as feed:
            async for piece in _events(self.jobs, feed, "jobs", _JOBS, view):
                yield piece

    def _job(self, entry: Entry) -> dict[str, Any]:
        view = json_view.job(self.jobs.summaries.filled(entry))
        return view | {"waits_for": self.jobs.waits_for(entry.detail)}

    async def child_events(self, whole: JobDetail) -> AsyncGenerator[bytes, None]:
        """Yield an array's tasks or a job's nodes, then each changed one."""
        with self.open_jobs.listen(whole) as (parts, feed):

            def view(indexes: list[int]) -> dict[str, Any]:
                return {"children": [parts.row(index) for index in indexes]}

            async for piece in _events(parts, feed, "children", _CHILDREN, view):
                yield piece

    async def line_events(
        self, detail: JobDetail, streams: Sequence[str], attempt: int | None, tail: int | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield a job's output lines until the job finishes."""
        end = {}
        try:
            session = await self.account.session()
            lines = session.logs.lines(
                detail.job_id,
                follow=True,
                streams=streams,
                attempt=attempt,
                tail=tail,
            )
            async with contextlib.aclosing(lines) as batches:
                async for batch in batches:
                    for start in range(0, len(batch), _LINES):
                        view = [_line(line) for line in batch[start : start + _LINES]]
                        yield event("lines", {"lines": view})
        except FarcallError as error:
            end = {"error": str(error)}
        yield event("end", end)

    # --- actions ------------------------------------------------------------------------------

    async def cancel_jobs(self, job_ids: Sequence[str], reason: str) -> list[Cancelled]:
        """Cancel jobs.

        Raises:
            FarcallError: An AWS call failed.
        """
        session = await self.account.session()
        done = await cancel.cancel(session, job_ids, reason, self.options.covalent)
        self._poll_again(job_ids)
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
        session = await self.account.session()
        with self.jobs.listen_since(self.jobs.since):
            await self.jobs.refresh()  # include the latest submissions
        query = Query(run=run, workflow=workflow)
        entries = [entry for entry in self.jobs.entries.values() if query.fits(entry)]
        done = await cancel.cancel_all(session, entries, reason, self.options.covalent)
        self._poll_again(entry.detail.job_id for entry in entries)
        return done

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
        session = await self.account.session()
        plan = await retry.plan(session, self.settings, job_id, failed=failed)
        typed = {
            name: from_text(name, value) if isinstance(value, str) else value
            for name, value in options.items()
        }
        done = await retry.run(session, plan, typed)
        self._poll_again([job_id])
        return done

    def _poll_again(self, job_ids: Iterable[str]) -> None:
        self.jobs.poll_soon()
        self.open_jobs.poll_soon(job_id.partition(":")[0] for job_id in job_ids)


async def _events(
    watcher: Watcher[K],
    feed: Feed[K],
    name: str,
    most: int,
    view: Callable[[list[K]], dict[str, Any]],
) -> AsyncGenerator[bytes, None]:
    """Yield a feed's news, and the poller's state after each poll."""
    while True:
        keys = await feed.take(most, HEARTBEAT_S)
        if keys:
            yield event(name, view(keys))
        if not feed.is_behind:
            yield event("state", watcher.state())


def _line(line: LogLine) -> dict[str, Any]:
    view = {
        "text": line.text,
        "stream": line.stream,
        "attempt": line.attempt,
        "at": json_view.moment(line.at),
    }
    if line.goes_on:
        view["goes_on"] = True
    return view
