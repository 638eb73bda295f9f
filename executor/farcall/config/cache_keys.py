"""Key with which a user's cached results are signed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from pathlib import Path

from farcall.config.settings import Settings
from farcall.filesystem import is_own
from farcall.model.errors import SettingsError

KEY_FILE = Path("~/.config/farcall/cache.key")

_BYTES = 32
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def cache_key(settings: Settings) -> bytes:
    """Return the key of ``cache_key``, or of the user's file, which is created if needed.

    Raises:
        SettingsError: Other users can read the file, it is damaged, or it cannot be created.
    """
    if settings.cache_key:
        return hashlib.sha256(settings.cache_key.encode()).digest()
    try:
        path = KEY_FILE.expanduser()
        if not path.exists():
            _create(path)
        return _read(path)
    except (OSError, RuntimeError) as error:  # the home folder is unknown
        raise SettingsError(
            f"the option cache needs a key, and {KEY_FILE} cannot be used ({error}). Set "
            "cache_key, or FARCALL_CACHE_KEY",
            option="cache_key",
        ) from error


def _create(path: Path) -> None:
    """Create the file, unless another process does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(_BYTES))
    with contextlib.suppress(FileExistsError):
        os.link(part, path)
    part.unlink()


def _read(path: Path) -> bytes:
    if not is_own(path) or path.stat().st_mode & _OTHERS:
        raise SettingsError(
            f"{path} holds the key of your cached results, and other users can read or replace "
            f"it. Run chmod 600 {path}, or delete it if it is not yours",
            option="cache_key",
        )
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii"))
    except ValueError:
        key = b""
    if len(key) != _BYTES:
        raise SettingsError(
            f"{path} does not contain a key of {2 * _BYTES} hexadecimal digits. Delete it: a new "
            "one is created, and results are computed again",
            option="cache_key",
        )
    return key
