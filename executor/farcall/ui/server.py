"""HTTP server of the web UI, which runs until it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
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
    """Running web UI.

    Attributes:
        url: The server's URL.
        token: The server's token.
    """

    url: str
    token: str

    @property
    def link(self) -> str:
        """URL with the token in the fragment, which browsers do not send."""
        return f"{self.url}/#token={self.token}"


class _Server(uvicorn.Server):
    """Server that leaves signal handling to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(site: Site, started: Callable[[Served], object]) -> None:
    """Serve the web UI until the awaiting task is cancelled; streams end with it.

    Args:
        site: The site to serve, with its address; its clients are closed at the end.
        started: Called when the server is about to respond.

    Raises:
        FarcallError: The port is in use, or the address does not belong to this machine.
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
        raise FarcallError(
            f"cannot serve the web UI at {options.host}:{options.port}: "
            f"{error.strerror or error}. Choose another address with --host and --port, or let "
            "--port 0 pick a free port."
        ) from error
