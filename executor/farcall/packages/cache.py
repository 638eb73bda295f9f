"""Cache of facts about distributions, private to the user.

Its contents decide which code a job runs. So the folder must belong to the user, and must not be
writable by others; otherwise the cache is neither read nor written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farcall.filesystem import replacing

_log = logging.getLogger("farcall")

_MODE = 0o700
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def folder() -> Path:
    """Return the cache folder, which may not exist."""
    if sys.platform == "darwin":
        base = Path("~/Library/Caches")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return base.expanduser() / "farcall" / "packages"


def key_of(*parts: str) -> str:
    """Return a key for a value that depends on some texts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def read(key: str) -> dict[str, Any] | None:
    """Return the value of a key; None if there is none, or it cannot be trusted."""
    if not _is_own():
        return None
    try:
        document = json.loads((folder() / f"{key}.json").read_bytes())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def write(key: str, document: Mapping[str, Any]) -> None:
    """Store a value; failures are ignored, because the value can be computed again."""
    if not _is_own():
        return
    try:
        with replacing(folder() / f"{key}.json", mode=0o600) as file:
            file.write(json.dumps(document).encode())
    except OSError as error:
        _log.debug("%s cannot be written: %s", folder(), error)


def _is_own() -> bool:
    """Create the folder; return whether it is private to this user."""
    try:
        place = folder()
        place.mkdir(mode=_MODE, parents=True, exist_ok=True)
        status = place.lstat()
    except (OSError, RuntimeError):  # the home folder is unknown
        return False
    is_own = (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.getuid()
        and not status.st_mode & _OTHERS
    )
    if not is_own:
        _log.debug("%s is not used: other users could write to it", place)
    return is_own
