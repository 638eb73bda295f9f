"""How Covalent's server and farcall hand each other files: URIs of the scheme ``farcall``.

Covalent copies a task's assets to the URIs its executor names, and the results from such URIs, by
the strategy registered for their scheme (covalent/_file_transfer/file_transfer.py, 0.240). Ours
copies nothing on the way out: it notes which of Covalent's own files is meant. On the way back it
writes what was offered straight into Covalent's file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from covalent._file_transfer.file import File
from covalent._file_transfer.file_transfer import register_downloader, register_uploader
from covalent._file_transfer.strategies.transfer_strategy_base import FileTransferStrategy

from farcall.errors import FarcallError
from farcall_runtime.envelope import Buffer

_SCHEME = "farcall"
_START = f"{_SCHEME}://"  # furl, which Covalent reads URIs with, keeps only the path behind it

_named: dict[str, Path] = {}
"""For the path of each URI that was named to Covalent, its own file."""

_offered: dict[str, tuple[Buffer, Callable[[], Any]]] = {}
"""For the path of each URI that was offered, what is there and whom to tell that it was taken."""


def uri_of(*parts: object) -> str:
    """Return the URI of an asset."""
    return f"{_START}/{'/'.join(str(part) for part in parts)}"


def file_of(uri: str) -> Path:
    """Return, once, Covalent's file of an asset that it has been asked to copy to a URI."""
    return _named.pop(uri.removeprefix(_START))


def offer(uri: str, data: Buffer, taken: Callable[[], Any] = lambda: None) -> dict[str, Any]:
    """Lay an asset out for Covalent.

    Args:
        uri: Where.
        data: The asset.
        taken: Called in a thread of Covalent's when the asset lies in Covalent's own file.

    Returns:
        What a `TaskUpdate` says of it.
    """
    _offered[uri.removeprefix(_START)] = data, taken
    return {"remote_uri": uri, "size": len(data)}


class _Strategy(FileTransferStrategy):  # type: ignore[misc]  # Covalent is not typed
    def cp(self, from_file: File, to_file: File) -> Callable[[], None]:
        raise NotImplementedError

    def upload(self, from_file: File, to_file: File) -> Callable[[], None]:
        def note() -> None:
            _named[to_file.filepath] = _local(from_file)

        return note

    def download(self, from_file: File, to_file: File) -> Callable[[], None]:
        def write() -> None:
            data, taken = _offered.pop(from_file.filepath)
            path = _local(to_file)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            except OSError as error:
                raise FarcallError(
                    f"{len(data)} bytes could not be written to {path} ({error}); make room on "
                    "the disk of Covalent's server. What the job stored is still in the bucket"
                ) from error
            taken()

        return write


def _local(file: File) -> Path:
    return Path(unquote(file.filepath))


register_uploader(_SCHEME, _Strategy)
register_downloader(_SCHEME, _Strategy)
