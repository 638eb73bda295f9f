"""``farcall covalent resume``: bring dispatches to their end after Covalent's server was ended.

Covalent takes up nothing again by itself. For each task of ours that it calls unfinished it is
asked, by the call that executors report with, to look at it; `AWSBatchExecutor.receive` does the
rest in the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from farcall.errors import FarcallError

_EXECUTOR = "awsbatch"
_UNFINISHED = ("RUNNING", "NEW_OBJECT")
_PAGE = 100
_TIMEOUT_S = 30


@dataclass(frozen=True)
class Resumed:
    """What was found of one dispatch.

    Attributes:
        dispatch_id: The dispatch.
        name: The lattice's name.
        asked: Numbers of the tasks that Covalent was asked to look at.
        foreign: Numbers of running tasks on other executors, which only these can bring back.
    """

    dispatch_id: str
    name: str
    asked: list[int]
    foreign: list[int]


def resume(dispatch_ids: Sequence[str] = (), address: str | None = None) -> Iterator[Resumed]:
    """Ask Covalent's server to look at the unfinished tasks of running dispatches.

    It does no harm where nothing was interrupted: what is under way in the server stays as it is.

    Args:
        dispatch_ids: Only these; by default all that Covalent calls running.
        address: The server's URL; by default the one in Covalent's configuration.

    Raises:
        FarcallError: The server cannot be reached, or does not know a dispatch.
        ModuleNotFoundError: Covalent is not installed.
    """
    server = _Server(address)
    for dispatch_id in dispatch_ids or server.running():
        manifest = server.get(f"/api/v2/dispatches/{dispatch_id}")
        nodes = manifest["lattice"]["transport_graph"]["nodes"]
        ours = [node for node in nodes if node["metadata"]["executor"] == _EXECUTOR]
        asked = [node["id"] for node in ours if node["metadata"]["status"] in _UNFINISHED]
        foreign = [
            node["id"]
            for node in nodes
            if node not in ours and node["metadata"]["status"] == "RUNNING"
        ]
        # Where all have ended and the dispatch has not, one will do: it is looked at as a whole.
        for number in asked or [node["id"] for node in ours[:1]]:
            path = f"/api/v2/dispatches/{dispatch_id}/electrons/{number}/job"
            server.put(path, {"resume": True})
        yield Resumed(dispatch_id, manifest["lattice"]["metadata"]["name"], asked, foreign)


class _Server:
    """Covalent's server, by its REST API."""

    def __init__(self, address: str | None) -> None:
        from covalent._api.apiclient import CovalentAPIClient
        from covalent._shared_files.utils import format_server_url

        self.address = (address or format_server_url()).rstrip("/")
        self._client = CovalentAPIClient(self.address)

    def running(self) -> Iterator[str]:
        """Yield the dispatches that the server calls running."""
        found: list[str] = []
        while True:
            reply = self.get(
                "/api/v2/dispatches",
                params={"status": "RUNNING", "offset": len(found), "count": _PAGE},
            )
            page = [each["dispatch_id"] for each in reply["dispatches"]]
            found += page
            if len(page) < _PAGE:  # taken whole, before resumed ones leave the list
                yield from found
                return

    def get(self, path: str, **options: Any) -> Any:
        return self._call("get", path, **options).json()

    def put(self, path: str, body: Any) -> None:
        self._call("put", path, json=body)

    def _call(self, method: str, path: str, **options: Any) -> Any:
        import requests

        try:
            return getattr(self._client, method)(path, timeout=_TIMEOUT_S, **options)
        except requests.HTTPError as error:
            if error.response is not None and error.response.status_code == 404:
                raise FarcallError(
                    f"the Covalent server at {self.address} has no dispatch "
                    f"{path.split('/')[4]}; without one, all running ones are taken"
                ) from error
            raise FarcallError(f"Covalent's server at {self.address} refused: {error}") from error
        except requests.RequestException as error:
            raise FarcallError(
                f"no Covalent server answers at {self.address} ({type(error).__name__}); start it "
                "(covalent start), or name it with --server"
            ) from error
