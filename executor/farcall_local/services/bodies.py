"""Request bodies, read once and checked against their signature.

A body is a short document, or the content of an S3 object, which is stored as it arrives.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterable, Iterator
from typing import Any

from farcall_local.services import objects, signatures
from farcall_local.services.admission import Caller
from farcall_local.services.error_responses import Reason, RefusedError

#: Maximum size of a document in bytes. AWS's largest limit, Lambda's, is 70 MB.
MOST_BYTES = 100 * 2**20
#: Key of an object's content in a request's environment.
CONTENT = "farcall.content"

#: Maximum number of bytes read from a rejected body.
_DRAINED_BYTES = 256 * 2**20
#: Query parameters of requests whose body becomes an object or a part of one.
_UPLOAD = {"partNumber", "uploadId", "x-id"}
_CHECKSUM = "HTTP_X_AMZ_CHECKSUM_"
_ALGORITHMS = ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")


class BrokenBodyError(Exception):
    """The body violates its length or chunks, so nothing after it can be read."""


class Body:
    """Request body that tracks the number of unread bytes.

    Reading raises `BrokenBodyError` if the rest cannot arrive any more.

    Attributes:
        left: Number of bytes; None for a chunked HTTP body, whose source knows its end.
        at_end: Whether it has been read.
    """

    def __init__(self, environ: dict[str, Any]) -> None:
        self._source = environ["wsgi.input"]
        self.left: int | None = None
        if not environ.get("wsgi.input_terminated"):
            length = environ.get("CONTENT_LENGTH") or "0"
            self.left = int(length) if length.isascii() and length.isdecimal() else 0
        self.at_end = self.left == 0

    def read(self, size: int) -> bytes:
        """Read a number of bytes, fewer at the end."""
        if self.left is not None:
            size = min(size, self.left)
        try:
            data = self._source.read(size) if size else b""
        except OSError as error:  # invalid chunks, a timeout, or a closed connection
            raise BrokenBodyError from error
        if self.left is not None:
            self.left -= len(data)
        self.at_end = not (data if self.left is None else self.left)
        return data

    def drain(self) -> None:
        """Read the rest, unless it is very long, so that the sender reads the response."""
        left = _DRAINED_BYTES
        while left > 0 and not self.at_end:
            data = self.read(objects.PIECE_BYTES)
            if not data:
                break
            left -= len(data)


def read(environ: dict[str, Any]) -> bytes:
    """Read a request's body, and make it readable again.

    Raises:
        RefusedError: It is longer than the maximum.
    """
    body = _joined(_pieces(environ["wsgi.input"]))
    _replace_body(environ, body)
    return body


def receive(environ: dict[str, Any], request: signatures.Request, caller: Caller) -> None:
    """Read and verify the signed body of an S3 request.

    The content of an object is stored as it arrives, under `CONTENT`; other bodies can be read
    again.

    Raises:
        RefusedError: The body does not match the signature, or is longer than the maximum.
    """
    stream, digest = environ["wsgi.input"], hashlib.sha256()
    size: int | None = stream.left
    pieces = _digested(_pieces(stream), digest)
    body = b""
    if _is_upload(environ, request):
        content = environ[CONTENT] = objects.receive(pieces)
        length = len(content)
    else:
        body = _joined(pieces)
        length = len(body)
    if size is not None and length != size:
        raise RefusedError(Reason.CUT_OFF, f"{length} bytes of {size} have come.")
    signatures.check_digest(caller.signature, digest.hexdigest())
    _check_checksum(environ, digest.digest())
    # moto stores a checksum, and accepts it for Object Lock, only if this header names it.
    environ.setdefault("HTTP_X_AMZ_SDK_CHECKSUM_ALGORITHM", _named_checksum(environ))
    _replace_body(environ, body)


def _is_upload(environ: dict[str, Any], request: signatures.Request) -> bool:
    """Return whether a body is an object's or a part's."""
    _, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
    algorithm = environ.get("HTTP_X_AMZ_SDK_CHECKSUM_ALGORITHM", "")
    # moto computes a missing checksum from the body.
    is_computed = algorithm and f"{_CHECKSUM}{algorithm.upper()}" not in environ
    return bool(
        environ["REQUEST_METHOD"] == "PUT"
        and key
        and {name for name, _ in request.query if not name.startswith("X-Amz-")} <= _UPLOAD
        and "HTTP_X_AMZ_COPY_SOURCE" not in environ
        and not is_computed
    )


def _check_checksum(environ: dict[str, Any], digest: bytes) -> None:
    checksum = environ.get(f"{_CHECKSUM}SHA256")
    if checksum is not None and checksum != base64.b64encode(digest).decode():
        text = "The SHA256 you specified did not match the calculated checksum."
        raise RefusedError(Reason.BAD_CHECKSUM, text)


def _named_checksum(environ: dict[str, Any]) -> str:
    """Return the algorithm of a request's checksum; empty if it has none."""
    named = (environ.keys() & {f"{_CHECKSUM}{each}" for each in _ALGORITHMS}) or {""}
    return min(named).removeprefix(_CHECKSUM)


def _replace_body(environ: dict[str, Any], body: bytes) -> None:
    environ["wsgi.input"] = io.BytesIO(body)
    environ["CONTENT_LENGTH"] = str(len(body))


def _pieces(stream: Body) -> Iterator[bytes]:
    while data := stream.read(objects.PIECE_BYTES):
        yield data


def _digested(pieces: Iterable[bytes], digest: Any) -> Iterator[bytes]:
    for piece in pieces:
        digest.update(piece)
        yield piece


def _joined(pieces: Iterable[bytes]) -> bytes:
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > MOST_BYTES:
            raise RefusedError(Reason.TOO_LARGE, f"The body is longer than {MOST_BYTES} bytes.")
    return bytes(body)
