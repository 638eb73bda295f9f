"""The installed `farcall ui` as a process, and its server-sent events."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, NamedTuple

import aiohttp

from tests.support.commands import FARCALL

_LINK = re.compile(r"\s*(http://\S+)/#token=(\S+)")


class Page(NamedTuple):
    """A running web UI.

    Attributes:
        url: URL without a trailing slash.
        token: Access token.
        process: Server process.
    """

    url: str
    token: str
    process: subprocess.Popen[str]

    @property
    def headers(self) -> dict[str, str]:
        """Headers that every request needs."""
        return {"Authorization": f"Bearer {self.token}"}


@contextlib.contextmanager
def page(environment: Mapping[str, str], *options: str) -> Iterator[Page]:
    """Run the web UI; the teardown stops it with Ctrl-C and checks that no error occurred."""
    process = subprocess.Popen(
        [FARCALL, "ui", "--port", "0", *options],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    complaints: list[str] = []
    listening = threading.Thread(target=_read, args=(process.stderr, complaints), daemon=True)
    listening.start()
    try:
        yield _begun(process, complaints)
        process.send_signal(signal.SIGINT)
        process.wait(30)
        listening.join(30)
        assert 0 == process.returncode
        assert "Traceback" not in "".join(complaints)
    finally:
        process.kill()
        process.wait()
        listening.join(30)
        process.stdout.close()
        process.stderr.close()


def _begun(process: subprocess.Popen[str], complaints: list[str]) -> Page:
    said: list[str] = []
    link = None
    for line in process.stdout:
        said.append(line)
        link = link or _LINK.match(line)
        if link is not None and line.startswith("Press Ctrl-C"):
            return Page(link[1], link[2], process)
    raise AssertionError(f"the page did not begin: {''.join(said + complaints)}")


def _read(stream: Any, into: list[str]) -> None:
    with contextlib.suppress(ValueError):  # closed meanwhile
        into.extend(stream)


@contextlib.asynccontextmanager
async def events(
    session: aiohttp.ClientSession, path: str, **headers: str
) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """Listen to server-sent events; yields pairs of name and parsed data."""
    async with session.get(path, headers=headers) as answer:
        assert 200 == answer.status, await answer.text()
        assert "text/event-stream" == answer.content_type
        yield _read_events(answer)


async def _read_events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    while line := await answer.content.readuntil(b"\n"):
        if line.startswith(b"event: "):
            name = line[7:].decode().strip()
        elif line.startswith(b"data: "):
            yield name, json.loads(line[6:])
