"""Bootstrap: the command of a job whose image holds Python and nothing of farcall's. No I/O.

The job definition holds it, and so the digest of the runtime that it fetches: trust goes from
RegisterJobDefinition to what runs. Equal options make equal commands, and share one definition.

``bootstrap_program.py`` is its source, to be read. What is sent is ``bootstrap_program.min.txt``,
which ``make bootstrap`` makes of it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import resources
from urllib.parse import quote, unquote

from farcall.backends.base import Runtime

# -I and -S: nothing of the working directory, of variables or of site folders is imported before
# the runtime was verified.
_HEAD = ("python3", "-I", "-S", "-c")
_BUCKET_AND_KEY = len(_HEAD) + 2


@functools.cache
def program() -> str:
    """Return the program, as a definition has it."""
    file = resources.files(__package__).joinpath("bootstrap_program.min.txt")
    return file.read_text(encoding="utf-8")


def command(runtime: Runtime) -> list[str]:
    """Return the command that fetches a runtime and becomes it.

    Args:
        runtime: Where it lies, and what it is for.
    """
    # As it is in the signature, whose characters are all encoded except these.
    name = quote(f"{runtime.bucket}/{runtime.key}", safe="/-._~")
    machine = {"arm64": "aarch64"}.get(runtime.architecture, runtime.architecture)
    place = runtime.bucket_url, name, runtime.region
    return [*_HEAD, program(), *place, machine, runtime.python]


def fetched(command: Sequence[str]) -> str:
    """Return the bucket and key of the runtime that a command fetches, ``bucket/key``.

    Returns:
        Empty for any other command. That of another version of farcall's counts.
    """
    is_ours = len(command) == len(_HEAD) + 6 and tuple(command[: len(_HEAD)]) == _HEAD
    is_ours = is_ours and command[-1].count(".") == 1 and "farcall_runtime" in command[len(_HEAD)]
    return unquote(command[_BUCKET_AND_KEY]) if is_ours else ""
