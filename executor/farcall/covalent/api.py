"""REST client of Covalent's server that does not import Covalent.

The routes are those of Covalent 0.240 (covalent_dispatcher/_service/app.py and runnersvc.py).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Any

from farcall.model.errors import FarcallError

DEFAULT_ADDRESS = "http://localhost:48008"

_TIMEOUT_S = 30
_PAGE = 100
_DISPATCHES = "/api/v2/dispatches"
_ENDED = ("COMPLETED", "FAILED", "CANCELLED", "POSTPROCESSING_FAILED")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Covalent:
    """A Covalent server; each call waits up to 30 s for the response.

    Raises:
        FarcallError: The address is not a URL.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        # The user's proxy does not know this machine's loopback.
        here = urllib.parse.urlsplit(self.address).hostname in _LOOPBACK
        no_proxy = [urllib.request.ProxyHandler({})] if here else []
        self._opener = urllib.request.build_opener(*no_proxy)
        if not self.address.startswith(("http://", "https://")):
            raise FarcallError(
                f"the address of Covalent's server is {address!r}. Use a URL that begins with "
                f"http:// or https://, for example {DEFAULT_ADDRESS}."
            )

    @classmethod
    def configured(cls, address: str | None = None) -> Covalent | None:
        """Return the server that Covalent's own client would use, without contacting it.

        Args:
            address: Its URL; by default the one in Covalent's configuration.

        Returns:
            The server; None if Covalent was never configured on this machine.

        Raises:
            FarcallError: Covalent's configuration cannot be read or names no address.
        """
        if address:
            return cls(address)
        file = configuration_file()
        if file is None or not file.exists():
            return None
        try:
            section = dispatcher_section(file)
            return cls(_url(section["address"], int(section["port"])))
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise FarcallError(
                f"{file} does not contain the address of Covalent's server ({error!r}). Set "
                "address and port in its section [dispatcher], or specify the server's URL."
            ) from error

    def running(self) -> list[str]:
        """Return the dispatches whose status is running on the server.

        Raises:
            FarcallError: The server does not respond or rejects the request.
        """
        dispatches: dict[str, str] = {}
        while True:
            known = len(dispatches)
            page = self._list(status=["RUNNING"], offset=known)
            dispatches |= page
            if len(page) < _PAGE or len(dispatches) == known:
                return list(dispatches)

    def unfinished(self, dispatch_ids: Iterable[str]) -> dict[str, bool]:
        """Return whether each dispatch is unfinished.

        Returns:
            Dispatch ID to whether it is unfinished, for the dispatches that the server knows.

        Raises:
            FarcallError: The server does not respond or rejects the request.
        """
        statuses: dict[str, str] = {}
        ids = iter(dict.fromkeys(dispatch_ids))
        while group := list(islice(ids, _PAGE)):
            statuses |= self._list(dispatch_id=group)
        return {dispatch_id: status not in _ENDED for dispatch_id, status in statuses.items()}

    def manifest(self, dispatch_id: str) -> dict[str, Any]:
        """Return the server's complete record of a dispatch.

        Raises:
            FarcallError: The server does not know the dispatch, does not respond or rejects the
                request.
        """
        record: dict[str, Any] = self._call("GET", f"{_DISPATCHES}/{_quoted(dispatch_id)}")
        return record

    def cancel(self, dispatch_id: str, nodes: Sequence[int] = ()) -> None:
        """Cancel nodes of a dispatch, or the entire dispatch with its sublattices.

        The server responds before the cancellation is complete.

        Raises:
            FarcallError: The server does not respond or rejects the request.
        """
        body = {"status": "CANCELLED", "task_ids": sorted(set(nodes))}
        self._call("PUT", f"{_DISPATCHES}/{_quoted(dispatch_id)}/status", body)

    def report(self, dispatch_id: str, node: int, body: Any) -> None:
        """Request that the server pass a message to a node's executor.

        Raises:
            FarcallError: The server does not respond or rejects the request.
        """
        self._call("PUT", f"{_DISPATCHES}/{_quoted(dispatch_id)}/electrons/{node}/job", body)

    @contextlib.contextmanager
    def understood(self) -> Iterator[None]:
        """Parse a response; a server other than Covalent may have sent any JSON.

        Raises:
            FarcallError: The response is not in Covalent 0.240's format.
        """
        try:
            yield
        except (LookupError, TypeError, AttributeError) as error:
            raise FarcallError(
                f"{self.address} is not a Covalent 0.240 server: its response has another "
                f"format ({error!r})"
            ) from error

    def _list(self, **query: Any) -> dict[str, str]:
        """Return one page of dispatches, as ID to status."""
        query = {"count": _PAGE, "status_only": "true", **query}
        reply = self._call("GET", f"{_DISPATCHES}?{urllib.parse.urlencode(query, doseq=True)}")
        with self.understood():
            return {each["dispatch_id"]: each["status"] for each in reply["dispatches"]}

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(  # noqa: S310  # a URL of http or https
            self.address + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", **_extra_headers()},
            method=method,
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == HTTPStatus.NOT_FOUND and path.startswith(f"{_DISPATCHES}/"):
                raise FarcallError(
                    f"the Covalent server at {self.address} does not know dispatch "
                    f"{path.split('/')[4]}. It may belong to another server."
                ) from error
            raise FarcallError(
                f"Covalent's server at {self.address} rejected the request: {error} ({method} "
                f"{path})"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            kind = type(reason if isinstance(reason, Exception) else error).__name__
            raise FarcallError(
                f"no Covalent server responds at {self.address} ({kind}). Start the server "
                "(`covalent start`), or specify another one."
            ) from error
        except ValueError as error:
            raise FarcallError(
                f"{self.address} is not a Covalent server: its response to {method} {path} is "
                "not JSON"
            ) from error


def dispatcher_section(file: Path) -> dict[str, Any]:
    """Return the server's section of a Covalent configuration file."""
    section: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))["dispatcher"]
    return section


def configuration_file() -> Path | None:
    """Return Covalent's file, which may be missing (covalent/_shared_files/defaults.py)."""
    named = os.environ.get("COVALENT_CONFIG_DIR") or os.environ.get("XDG_CONFIG_DIR")
    try:
        folder = Path(named) if named else Path("~/.config/covalent").expanduser()
    except RuntimeError:  # there is no home directory
        return None
    return folder / "covalent.conf"


def _url(host: str, port: int) -> str:
    """Return a server's URL (covalent/_shared_files/utils.py)."""
    if not host.startswith("http"):
        host = f"https://{host}" if port == 443 else f"http://{host}"
    parts = urllib.parse.urlsplit(host)
    place = parts.netloc if port in (80, 443) else f"{parts.netloc}:{port}"
    return parts._replace(netloc=place).geturl()


def _extra_headers() -> dict[str, str]:
    """Return the headers set for Covalent's client (covalent/_api/apiclient.py)."""
    variable = os.environ.get("COVALENT_EXTRA_HEADERS")
    try:
        headers = json.loads(variable or "{}")
        return {str(name): str(value) for name, value in headers.items()}
    except (ValueError, AttributeError) as error:
        raise FarcallError(
            "COVALENT_EXTRA_HEADERS is not a JSON object. Use an object with header names and "
            "values."
        ) from error


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")
