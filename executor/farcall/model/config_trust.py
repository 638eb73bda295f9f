"""Trust in configuration: whether the user agreed to what a working directory's file decides.

Such a file may be a stranger's: of a cloned repository, of an unpacked archive, of another user of
the machine. Whoever says where a job's objects are has their pickles read here, and gets what this
user uploads. So what says where things are, and who one is, counts only once the user has seen it;
agreed is to these values, not to the file, so another value needs another yes. Of a file that
somebody else can write, each option does.

A program that lies beside the file, or below its folder, needs no yes: who runs it runs that
folder's code already. What is installed is no such program, farcall's own command included: what
lies below Python's own folders, a virtual environment's, or that of ``pip install --user``.
"""

from __future__ import annotations

import contextlib
import grp
import hashlib
import json
import os
import pwd
import site
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farcall.model.errors import FarcallError, SettingsError
from farcall.model.files import replacing

CONFIG_VARIABLE = "FARCALL_CONFIG"
"""Names the file of options; by naming it one agrees to it."""

_STORE = Path("~/.config/farcall/agreed.json")
_programs: list[Path] = []


class NotAgreedError(SettingsError):
    """A file of the working directory decides what its user has not agreed to.

    Attributes:
        path: The file.
        decides: The options, with their values.
    """

    def __init__(self, path: Path, decides: Mapping[str, Any]) -> None:
        super().__init__(
            f"{path.absolute()} decides {', '.join(decides)}, and you have not agreed to that: "
            "whoever wrote it would decide whose code runs here; look at it, then `farcall allow` "
            f"agrees to these values, and {CONFIG_VARIABLE}=PATH to a file as a whole",
            option=next(iter(decides)).rpartition(".")[2],
        )
        self.path = path
        self.decides = decides

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.decides)


def note_program(path: str | None) -> None:
    """Note that code of a file is being run because the user asked for it."""
    if path:
        _programs.append(Path(path))


def is_own(path: Path) -> bool:
    """Tell whether nobody but its user, and root, can write a file.

    A group may where it is the user's private one, which many distributions make for each user,
    with an umask of 002: it has the user's name, is the primary one, and lists nobody else.

    Source:
        https://man7.org/linux/man-pages/man8/pam_umask.8.html (usergroups)
    """
    found = path.stat()
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o002:
        return False
    return not found.st_mode & 0o020 or _is_private(found.st_gid)


def _is_private(group: int) -> bool:
    """Tell whether a group is that of this user alone, as far as the system's lists say."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    is_own = found.gr_gid == user.pw_gid and found.gr_name == user.pw_name
    return is_own and not set(found.gr_mem) - {user.pw_name}


def check(path: Path, decides: Mapping[str, Any]) -> None:
    """See that the user agreed to what a file decides, where that needs a yes.

    Raises:
        NotAgreedError: That is not so.
    """
    if decides and not _is_run_from(path) and not is_agreed(path, decides):
        raise NotAgreedError(path, decides)


def is_agreed(path: Path, decides: Mapping[str, Any]) -> bool:
    """Tell whether the user agreed to these values in this file."""
    return _agreed().get(str(path.resolve())) == _digest(decides)


def agree(path: Path, decides: Mapping[str, Any]) -> Path:
    """Note that the user agrees; return the file in which that stands.

    Raises:
        FarcallError: It cannot be written.
    """
    store = _store()
    text = json.dumps({**_agreed(), str(path.resolve()): _digest(decides)}, indent=2)
    try:
        with replacing(store, mode=0o600) as file:
            file.write(f"{text}\n".encode())
    except OSError as error:
        raise FarcallError(f"that you agree could not be noted in {store}: {error}") from error
    return store


def _is_run_from(path: Path) -> bool:
    """Tell whether the program that runs lies in the folder of a file of this user's."""
    folder = path.resolve().parent
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    places = (sys.prefix, sys.base_prefix, site.getuserbase())
    installed = [Path(place).resolve() for place in places]
    programs = [each.resolve() for each in (*_programs, *([Path(main)] if main else ()))]
    return is_own(path) and any(
        each.is_relative_to(folder) and not any(map(each.is_relative_to, installed))
        for each in programs
    )


def _store() -> Path:
    try:
        return _STORE.expanduser()
    except RuntimeError as error:  # nobody knows where home is
        raise FarcallError(
            f"there is no home folder to note in that you agree: {error}"
        ) from error


def _agreed() -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError, FarcallError):
        found = json.loads(_store().read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


def _digest(decides: Mapping[str, Any]) -> str:
    text = json.dumps(decides, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
