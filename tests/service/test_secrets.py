"""Secrets in logs, reprs and messages.

Starts the local AWS emulator, because client, container and service all write text.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import http.server
import logging
import os
import secrets
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest

import farcall_local
from farcall import (
    Job,
    Settings,
    TaskNotPicklableError,
)
from farcall.engine.session import session_for
from farcall_runtime.contract import ENV_BUNDLE, ENV_OUTCOME_KEY, ExitCode, Location
from tests.service.attacker import Attacker
from tests.service.attempt import Attempt
from tests.support.patience import PATIENCE_S
from tests.support.signing import session


def token() -> str:
    return f"tok{secrets.token_hex(12)}"


@dataclass
class Watcher:
    """Collects farcall's output and the secrets that it must not contain.

    Attributes:
        secrets: Name to secret.
        shown: Pairs of source and text.
    """

    secrets: dict[str, str] = field(default_factory=dict)
    shown: list[tuple[str, str]] = field(default_factory=list)

    def secret(self, name: str) -> str:
        """Return the secret with a name; create it if needed."""
        return self.secrets.setdefault(name, token())

    def show(self, *things: object) -> None:
        """Add what a user or a debugger would see of objects."""
        for thing in things:
            if isinstance(thing, BaseException):
                lines = traceback.TracebackException.from_exception(thing, capture_locals=False)
                self.shown.append((f"error {type(thing).__name__}", "".join(lines.format())))
                self.shown.append((f"attributes of {type(thing).__name__}", str(vars(thing))))
            self.shown.append((f"repr of {type(thing).__name__}", repr(thing)))
            self.shown.append((f"str of {type(thing).__name__}", str(thing)))

    def found(self) -> list[tuple[str, str]]:
        """Return pairs of secret name and text that contains the secret."""
        return [
            (name, f"{where}: {text}")
            for name, secret in self.secrets.items()
            for where, text in self.shown
            if secret in text
        ]


@pytest.fixture(scope="module")
def embedded():
    """Start a separate emulator, whose complete log is read quickly."""
    with farcall_local.start() as aws:
        yield aws


@pytest.fixture
def attacker(aws, tmp_path):
    return Attacker(aws, tmp_path / "attacked")


@pytest.fixture
def watcher(aws, monkeypatch, caplog, capfd):
    """Watch a test: log at DEBUG, stdout and stderr, CloudWatch's lines of its jobs."""
    keys = session(aws.environment, aws.environment["FARCALL_BATCH_JOB_ROLE_NAME"])
    made = Watcher(
        {
            "the account's secret key": aws.environment["AWS_SECRET_ACCESS_KEY"],
            "secret key": keys["SecretAccessKey"],
            "session token": keys["Token"],
        }
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys["SecretAccessKey"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", keys["Token"])
    logs = boto3.client("logs")
    before = lines(aws, logs)
    with caplog.at_level(logging.DEBUG, "farcall"):
        yield made
    made.shown += [("log", record.getMessage()) for record in caplog.records if is_ours(record)]
    made.shown += [("log", str(record.exc_info)) for record in caplog.records if is_ours(record)]
    made.shown += [("stdout and stderr", text) for text in capfd.readouterr()]
    made.shown += [("a job's log", line) for line in lines(aws, logs)[len(before) :]]
    assert made.shown
    assert made.found() == []


def is_ours(record: logging.LogRecord) -> bool:
    return record.name.startswith("farcall")


def lines(aws: farcall_local.LocalAWS, logs: Any) -> list[str]:
    """Return the jobs' log lines in CloudWatch, the oldest first."""
    group = aws.environment["FARCALL_BATCH_JOB_LOG_GROUP_NAME"]
    pages = logs.get_paginator("filter_log_events").paginate(logGroupName=group)
    return [event["message"] for page in pages for event in page["events"]]


class Sealed:
    """A value without a revealing repr, which the job unpickles as a string."""

    def __init__(self, value: str) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Callable[[str], str], tuple[str]]:
        return str, (self._value,)


class Untransportable(Sealed):
    def __reduce__(self) -> Any:
        raise TypeError("it cannot be pickled")


def fail(_secret: str) -> None:
    raise ValueError("of the function")


def leave(_secret: str) -> None:
    os.kill(os.getpid(), 9)


def wait(_secret: str) -> None:
    time.sleep(600)  # until the test ends it


def give(secret: str) -> list[str]:
    return [secret]


def unpicklable(secret: str) -> Any:
    return (part for part in [secret])


async def error_of(job: Job[Any]) -> BaseException:
    error = await asyncio.wait_for(job.exception(), PATIENCE_S)
    assert error is not None
    return error


async def refused(waiting: Any) -> BaseException:
    """Return the exception that an awaitable raises."""
    try:
        await asyncio.wait_for(waiting, PATIENCE_S)
    except Exception as error:
        return error
    raise AssertionError("nothing was refused")


async def add_outcome_key(watcher: Watcher, job: Job[Any]) -> str:
    """Add the job's outcome key to the secrets; return the object key of its outcome."""
    environment = (await job.detail()).environment
    watcher.secrets[f"outcome key {len(watcher.secrets)}"] = environment[ENV_OUTCOME_KEY]
    return Location.parse(environment[ENV_BUNDLE]).outcome_key(0)


@pytest.mark.slow
async def test_task_results_reveal_no_secrets(watcher, make_executor, attacker):
    argument = Sealed(watcher.secret("argument"))
    extra = {"containerProperties": {"environment": [{"name": "P", "value": watcher.secret("p")}]}}
    async with make_executor(job_definition_extra=extra) as executor:
        jobs = [await executor.submit(f, argument) for f in (give, fail, leave, unpicklable)]
        forged, cancelled = [await executor.submit(f, argument) for f in (give, wait)]
        session = await session_for(executor.settings)
        keys = [await add_outcome_key(watcher, job) for job in (*jobs, forged, cancelled)]
        await cancelled.cancel("for the test")
        errors = [await error_of(job) for job in (*jobs[1:], cancelled)]
        while not forged.done():
            await asyncio.sleep(0.02)
        attacker.put(keys[4], attacker.outcome(keys[4]))
        errors.append(await error_of(forged))
        assert len({type(error) for error in errors}) == 5

        assert await jobs[0].result() == [watcher.secrets["argument"]]
        watcher.show(*errors, *jobs, forged, cancelled, executor, executor.settings, session)
        watcher.show(executor.task(give), await jobs[0].detail(), await jobs[0].usage())
        for job in jobs:
            watcher.show(*vars(job).values(), await job.stdout(), await job.stderr())
        sweep = executor.task(give).map([argument] * 2)
        watcher.show(sweep, sweep.__dict__["_settings"])
        assert await sweep == [[watcher.secrets["argument"]]] * 2
        watcher.show(
            executor.with_options(vcpu=2),
            Settings(**executor.settings.model_dump(exclude_unset=True)),
        )


async def test_failed_submissions_reveal_no_secrets(watcher, aws, make_executor):
    argument = Sealed(watcher.secret("argument"))
    async with make_executor() as executor:
        await executor.task(give)(argument)  # open all connections
        errors = [await refused(executor.submit(give, Untransportable(watcher.secret("broken"))))]
        assert type(errors[0]) is TaskNotPicklableError
        with contextlib.suppress(TypeError) as told:
            executor.task(give)(argument, argument)
        aws.fault("SubmitJob", "error", count=1)
        await (await executor.submit(give, argument)).result()
        wrong = {"environment": {"PASSWORD": watcher.secret("password")}}
        broken = executor.with_options(job_definition_extra={"containerProperties": wrong})
        errors.append(await refused(broken.submit(give, argument)))
        unknown = {"containerProperties": {"linuxParameters": watcher.secret("parameter")}}
        broken = executor.with_options(job_definition_extra=unknown)
        errors.append(await refused(broken.submit(give, argument)))
        watcher.show(*errors, told, broken, broken.settings)


class Echo(http.server.BaseHTTPRequestHandler):
    """An S3 that, like AWS, repeats the request's session token in an error response."""

    def do_GET(self) -> None:
        token = self.headers["X-Amz-Security-Token"]
        answer = (
            '<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied</Code>'
            "<Message>The token will not do.</Message>"
            f"<Token-0>{token}</Token-0></Error>"
        ).encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_PUT = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None: ...


class Echoes(http.server.ThreadingHTTPServer):
    """A server with the handler `Echo`.

    Attributes:
        url: URL of the server.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Echo)
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def echoes():
    with Echoes() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_echoed_session_token_is_not_shown(watcher, make_executor, echoes, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", echoes.url)
    error = await refused(make_executor().submit(give, "x"))
    watcher.show(error)
    assert "The token will not do." in str(error)


def test_container_does_not_print_echoed_token(watcher, aws, echoes):
    attempt = Attempt(aws, echoes, give, "x")
    environment = {"AWS_SESSION_TOKEN": watcher.secrets["session token"]}
    attempt.start(environment=environment)
    try:
        code, said = attempt.end()
    finally:
        attempt.close()
    watcher.show(said)
    assert code == ExitCode.STORAGE_UNREACHABLE
    assert "The token will not do." in said


def test_watcher_detects_secret(watcher):
    """This shows that the tests above can fail."""
    seen = copy.deepcopy(watcher)
    seen.show(ValueError(seen.secret("key")), {"x": seen.secrets["secret key"]})
    assert {name for name, _ in seen.found()} == {"key", "secret key"}
