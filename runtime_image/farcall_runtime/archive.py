"""Covalent's archives: its format of functions, arguments and values. No I/O.

Layout, numbers in eight bytes, big-endian (covalent/_workflow/transportable_object.py, 0.240)::

    offset of the text | offset of the data | header, JSON | text, UTF-8 | data, base64 of a pickle

Nothing here unpickles, so archives can be parsed and created next to the server.
"""

from __future__ import annotations

import base64
import binascii
import json
import platform
import struct
from pickle import PickleBuffer
from typing import Any, NamedTuple

from farcall_runtime.envelope import Buffer, IntegrityError

HEADER = "farcall"
"""Key of farcall's facts in the header of an archive that farcall made."""

_OFFSETS = struct.Struct(">QQ")
_MOST_TEXT = 1024 * 1024
"""Maximum characters of a value's text; Covalent only displays it."""

_ENCODED_BYTES = 3 * 1024 * 1024  # a multiple of three, so that there is no padding inside


class Archive(NamedTuple):
    """Parsed archive, without a copy of its data.

    Attributes:
        header: Versions and names, as Covalent's client wrote them.
        text: ``str`` of the object.
        data: Base64 of the pickle.
    """

    header: dict[str, Any]
    text: str
    data: memoryview

    @property
    def name(self) -> str:
        """Name of the archived function; empty for most values."""
        attributes = self.header.get("attrs")
        return str(attributes.get("name") or "") if isinstance(attributes, dict) else ""

    @property
    def python(self) -> str:
        """Version of the Python that pickled the object, such as ``"3.11.7"``."""
        return str(self.header.get("py_version", ""))

    @property
    def cloudpickle(self) -> str:
        """Version of the cloudpickle that pickled the object."""
        return str(self.header.get("cloudpickle_version", ""))


def parse(data: Buffer) -> Archive:
    """Parse an archive.

    Raises:
        IntegrityError: The bytes are not an archive.
    """
    view = memoryview(data)
    try:
        text_at, data_at = _OFFSETS.unpack_from(view)
        if not _OFFSETS.size <= text_at <= data_at <= len(view):
            raise IntegrityError("the offsets of a Covalent archive are outside the archive")
        header = json.loads(bytes(view[_OFFSETS.size : text_at]))
        text = bytes(view[text_at:data_at]).decode(errors="replace")
    except (struct.error, ValueError, RecursionError) as error:
        if isinstance(error, IntegrityError):
            raise
        raise IntegrityError("the object is not a Covalent archive") from error
    if not isinstance(header, dict):
        raise IntegrityError("the header of a Covalent archive is not a JSON object")
    return Archive(header, text, view[data_at:])


def joined(parsed: Archive) -> bytes:
    """Return the bytes of a parsed archive."""
    header, text = (
        json.dumps(parsed.header).encode(),
        parsed.text.encode(errors="backslashreplace"),
    )
    at = _OFFSETS.size + len(header)
    return b"".join((_OFFSETS.pack(at, at + len(text)), header, text, parsed.data))


def decode(data: Buffer) -> bytes:
    """Return the pickle in an archive's data.

    Raises:
        IntegrityError: The data is not base64.
    """
    try:
        return base64.b64decode(data)
    except binascii.Error as error:
        raise IntegrityError("the data of a Covalent archive is not base64") from error


def head(value: object, cloudpickle: str) -> bytes:
    """Return the bytes before the data in the archive of a value.

    Args:
        value: The object, whose text, name and documentation Covalent shows.
        cloudpickle: Version of the cloudpickle that pickles it.
    """
    names = {"doc": _attribute(value, "__doc__"), "name": _attribute(value, "__name__")}
    return head_of(names, _text(value), cloudpickle)


def head_of(names: dict[str, str], text: str, cloudpickle: str) -> bytes:
    """Return the bytes before an archive's data, given its value's names and text."""
    header = {
        "py_version": platform.python_version(),
        "cloudpickle_version": cloudpickle,
        "attrs": names,
        HEADER: {},
    }
    encoded = json.dumps(header).encode()
    shown = text.encode(errors="backslashreplace")
    at = _OFFSETS.size + len(encoded)
    return _OFFSETS.pack(at, at + len(shown)) + encoded + shown


class Encoder:
    """File that stores the base64 of the written bytes, in pieces."""

    def __init__(self) -> None:
        self.pieces: list[Buffer] = []
        self._rest = b""

    def write(self, data: Buffer) -> int:
        """Write bytes; the pickler passes arrays directly, of any shape and type."""
        view = PickleBuffer(data).raw()
        size = len(view)
        if self._rest:
            missing = 3 - len(self._rest)
            self._rest += bytes(view[:missing])
            view = view[missing:]
            if len(self._rest) == 3:
                self.pieces.append(binascii.b2a_base64(self._rest, newline=False))
                self._rest = b""
        whole = len(view) - len(view) % 3
        for start in range(0, whole, _ENCODED_BYTES):
            end = min(start + _ENCODED_BYTES, whole)
            self.pieces.append(binascii.b2a_base64(view[start:end], newline=False))
        self._rest += bytes(view[whole:])
        return size

    def close(self) -> list[Buffer]:
        """Return all pieces, including the padded end."""
        if self._rest:
            self.pieces.append(binascii.b2a_base64(self._rest, newline=False))
            self._rest = b""
        return self.pieces


def _attribute(value: object, name: str) -> str:
    try:
        attribute = getattr(value, name, "")
    except Exception:  # the value's own code
        return ""
    return attribute if isinstance(attribute, str) else ""


def _text(value: object) -> str:
    try:
        if isinstance(value, (str, bytes, bytearray)):
            value = value[:_MOST_TEXT]  # a large value has an even larger text
        text = str(value)
    except Exception as error:  # the value's own code
        return f"<no text: str() raised {type(error).__name__}>"
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."
