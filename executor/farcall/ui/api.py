"""HTTP API and files of the web UI.

GET ``/`` and ``/static/<file>`` contain no data and need no token; paths below ``/api`` need the
token (see `farcall.ui.guard`). Errors are ``{"error": "the reason"}``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from farcall.model import quantities
from farcall.model.errors import (
    FarcallError,
    JobLostError,
    ServiceError,
    SettingsError,
    UnknownError,
)
from farcall.operations import describe, retry
from farcall.operations.catalog import Catalog, Entry
from farcall.operations.retry import SHOWN
from farcall.ui.guard import Json, answer
from farcall.ui.site import EventStream, Site
from farcall_runtime.contract import STREAMS

_STATIC = Path(__file__).with_name("static")

_JOB = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?::\d{1,5}|#\d{1,4})?")
"""Job ID of any platform, with an optional array task or node index."""

_MOST_JOBS = 10_000
_MOST_LINES = 100_000
_REASON = "cancelled in farcall's web UI"
_MOST_CHARACTERS = 500


class _Files(StaticFiles):
    """Static files of the web UI."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Find a file; reject null characters, for which `os` raises ValueError."""
        return ("", None) if "\0" in path else super().lookup_path(path)


def application(site: Site) -> Starlette:
    """Return a site's ASGI application, without its guard."""
    app = Starlette(
        routes=[
            Route("/", _index),
            Mount("/static", _Files(directory=_STATIC)),
            Route("/api/about", _about),
            Route("/api/events", _events),
            Route("/api/jobs/{job}", _job),
            Route("/api/jobs/{job}/children/events", _children),
            Route("/api/jobs/{job}/logs", _logs),
            Route("/api/jobs/{job}/retry", _retry),
            Route("/api/jobs/{job}/retry", _run_again, methods=["POST"]),
            Route("/api/cancel", _cancel, methods=["POST"]),
        ],
        exception_handlers={
            HTTPException: _refused,
            ServiceError: _answering(502),
            UnknownError: _answering(404),
            JobLostError: _answering(404),
            SettingsError: _answering(400),
            FarcallError: _answering(409),
            Exception: _broken,
        },
    )
    app.state.site = site
    return app


# --- data -------------------------------------------------------------------------------------


async def _index(request: Request) -> Response:
    return FileResponse(_STATIC / "index.html")


async def _about(request: Request) -> Response:
    return Json(await _site(request).about())


async def _events(request: Request) -> Response:
    site = _site(request)
    span = request.query_params.get("since")
    since = site.jobs.since if span is None else max(site.jobs.since, _since(span))
    return EventStream(site.job_events(since), site.stopping)


async def _job(request: Request) -> Response:
    entry = await _entry(request)
    account = _site(request).account
    return Json(await describe.of(await account.session(), entry, await account.reasons()))


async def _children(request: Request) -> Response:
    site = _site(request)
    entry = await _entry(request)
    if not entry.detail.array_size and not entry.detail.nodes:
        why = f"job {entry.detail.job_id} is neither an array nor a multi-node job"
        raise HTTPException(400, why)
    return EventStream(site.child_events(entry.detail), site.stopping)


async def _logs(request: Request) -> Response:
    site = _site(request)
    given = request.query_params
    stream = given.get("stream", "both")
    if stream not in (*STREAMS, "both"):
        raise HTTPException(400, f"stream is {stream!r}: use stdout, stderr or both")
    attempt = _number(given, "attempt", 10)
    tail = _number(given, "tail", _MOST_LINES)
    entry = await _entry(request)
    if entry.detail.array_size:
        raise HTTPException(400, "an array has no output of its own; choose one of its tasks")
    if entry.detail.nodes and entry.is_command:
        raise HTTPException(
            400, "a multi-node job has no output of its own; choose one of its nodes"
        )
    streams = STREAMS if stream == "both" else (stream,)
    lines = site.line_events(entry.detail, streams, attempt, tail)
    return EventStream(lines, site.stopping)


# --- actions ----------------------------------------------------------------------------------


async def _cancel(request: Request) -> Response:
    site = _site(request)
    wanted = await _body(request)
    reason = wanted.get("reason") or _REASON
    if not isinstance(reason, str) or len(reason) > _MOST_CHARACTERS:
        raise HTTPException(400, f"reason must be a string of up to {_MOST_CHARACTERS} characters")
    if ("jobs" in wanted) == ("run" in wanted):
        raise HTTPException(400, "specify either jobs or run")
    if "jobs" in wanted:
        done = await site.cancel_jobs(_job_ids(wanted["jobs"]), reason)
    else:
        run, workflow = wanted["run"], wanted.get("workflow")
        if not (isinstance(run, str) and run and isinstance(workflow, (str, type(None)))):
            raise HTTPException(400, "run and workflow must be names")
        done = await site.cancel_run(run, workflow, reason)
    results = [{"id": each.job_id, "outcome": each.outcome, "text": each.text} for each in done]
    return Json({"results": results})


async def _retry(request: Request) -> Response:
    site = _site(request)
    session = await site.account.session()
    return Json(await retry.preview(session, site.settings, _job_id(request)))


async def _run_again(request: Request) -> Response:
    job_id = _job_id(request)
    wanted = await _body(request)
    options, failed = wanted.get("options", {}), wanted.get("failed", False)
    if not isinstance(options, dict) or not isinstance(failed, bool):
        raise HTTPException(400, "options must be an object, and failed true or false")
    for name, value in options.items():
        if name not in SHOWN:
            allowed = ", ".join(SHOWN)
            raise HTTPException(400, f"{name[:80]!r} is not an option of a retry: use {allowed}")
        if not isinstance(value, (str, int, float)) or len(str(value)) > _MOST_CHARACTERS:
            raise HTTPException(400, f"{name} must be a number or a short string")
    done = await _site(request).retry(job_id, options, failed=failed)
    tasks, message = sum(each.tasks for each in done), done[0].message
    return Json({"id": done[0].job_id, "tasks": tasks, "message": message})


async def _body(request: Request) -> dict[str, Any]:
    try:
        wanted = json.loads(await request.body())
    except (ValueError, RecursionError):
        wanted = None
    if not isinstance(wanted, dict):
        raise HTTPException(400, "the body must be a JSON object")
    return wanted


def _job_ids(given: object) -> list[str]:
    if not isinstance(given, list) or not 0 < len(given) <= _MOST_JOBS:
        raise HTTPException(400, f"jobs must be a list of 1 to {_MOST_JOBS} job IDs")
    for each in given:
        if not isinstance(each, str) or not _JOB.fullmatch(each):
            raise HTTPException(400, f"{str(each)[:80]!r} is not the ID of a job")
    return list(dict.fromkeys(given))


# --- requests ---------------------------------------------------------------------------------


def _site(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


def _job_id(request: Request) -> str:
    job_id = str(request.path_params["job"])
    if not _JOB.fullmatch(job_id):
        raise HTTPException(400, f"{job_id[:80]!r} is not the ID of a job")
    return job_id


async def _entry(request: Request) -> Entry:
    """Return Batch's data of the job that a request names."""
    job_id = _job_id(request)
    session = await _site(request).account.session()
    entry = (await Catalog(session.backend).describe([job_id])).get(job_id)
    if entry is None:
        why = f"job {job_id} does not exist, or was not submitted by farcall"
        raise HTTPException(404, why)
    return entry


def _since(span: str) -> datetime:
    try:
        return datetime.now(UTC) - timedelta(seconds=quantities.span_s(span[:80]))
    except (ValueError, OverflowError):
        text = f"since is {span[:80]!r}: use a duration, for example 30m, 12h or 7d"
        raise HTTPException(400, text) from None


def _number(given: Mapping[str, str], name: str, most: int) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise HTTPException(400, f"{name} is {text[:80]!r}: use 1 to {most}")
    return int(text)


# --- errors -----------------------------------------------------------------------------------


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # says so to the type checker
    return Json({"error": error.detail}, error.status_code, error.headers)


def _answering(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return a handler that answers with the error's text."""

    async def handle(_: Request, error: Exception) -> Response:
        return answer(status, str(error))

    return handle


async def _broken(_: Request, error: Exception) -> Response:
    return answer(
        500, f"internal error of farcall: {error!r}; see the server's output for details"
    )
