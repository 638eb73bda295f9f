"""Serves the page until it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import NamedTuple

import uvicorn

from farcall.model.errors import FarcallError
from farcall.ui.api import application
from farcall.ui.guard import Guard, url
from farcall.ui.site import Options, Site

_TOKEN_BYTES = 32
_BACKLOG = 128
_LAST_ANSWERS_S = 2
_HEADER_BYTES = 32 * 1024


class Served(NamedTuple):
    """A page that is being served.

    Attributes:
        url: Its address.
        token: Its token.
    """

    url: str
    token: str

    @property
    def link(self) -> str:
        """The address with the token, which browsers send to nobody."""
        return f"{self.url}/#token={self.token}"


class _Server(uvicorn.Server):
    """A server that leaves signals to those who run it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(site: Site, started: Callable[[Served], object]) -> None:
    """Serve the page until the task that waits for this is cancelled; its streams end with it.

    Args:
        site: What it shows, and where it is served; its clients are closed in the end.
        started: Is called when the server is about to answer.

    Raises:
        FarcallError: The port is taken, or the address is not this machine's.
    """
    options = site.options
    with _listener(options) as listener:
        port = listener.getsockname()[1]
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        guard = Guard(
            application(site),
            token=token,
            host=options.host,
            port=port,
            read_only=options.read_only,
        )
        server = _Server(
            uvicorn.Config(
                guard,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=_HEADER_BYTES,
                timeout_graceful_shutdown=_LAST_ANSWERS_S,
            )
        )
        started(Served(url(options.host, port), token))
        serving = asyncio.ensure_future(server.serve([listener]))
        try:
            await asyncio.shield(serving)
        finally:
            site.stopping.set()
            server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
            await site.close()


def _listener(options: Options) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    address = options.host, options.port
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        place = f"{options.host}:{options.port}"
        if error.errno == errno.EADDRINUSE:
            raise FarcallError(
                f"the page cannot be served at {place}, which is taken; --port names another "
                "port, and --port 0 takes a free one"
            ) from error
        raise FarcallError(
            f"the page cannot be served at {place}: {error.strerror or error}; --host and --port "
            "say where else"
        ) from error
