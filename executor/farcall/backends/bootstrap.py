"""Bootstrap: the command of jobs whose image contains only Python. No I/O.

The job definition contains it, and with it the digest of the runtime to download: trust extends
from RegisterJobDefinition to the code that runs. Equal options result in equal commands, and share
one definition. ``bootstrap_program.py`` is its readable source. ``bootstrap_program.min.txt``,
which ``make bootstrap`` generates from it, is sent.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import resources
from urllib.parse import quote, unquote

from farcall.backends.base import Runtime

# -I and -S import nothing from the working directory, variables or site folders before the runtime
# is verified.
_HEAD = ("python3", "-I", "-S", "-c")
_BUCKET_AND_KEY = len(_HEAD) + 2


@functools.cache
def program() -> str:
    """Return the program as it is in a definition."""
    file = resources.files(__package__).joinpath("bootstrap_program.min.txt")
    return file.read_text(encoding="utf-8")


def command(runtime: Runtime) -> list[str]:
    """Return the command that downloads a runtime and runs it.

    Args:
        runtime: Location of the runtime, and its platform.
    """
    # Encoded as in the signature, which encodes all characters except these.
    name = quote(f"{runtime.bucket}/{runtime.key}", safe="/-._~")
    machine = {"arm64": "aarch64"}.get(runtime.architecture, runtime.architecture)
    place = runtime.bucket_url, name, runtime.region
    return [*_HEAD, program(), *place, machine, runtime.python]


def fetched(command: Sequence[str]) -> str:
    """Return ``bucket/key`` of the runtime that a command downloads.

    Returns:
        Empty for any other command. Commands of other farcall versions are recognized.
    """
    is_ours = len(command) == len(_HEAD) + 6 and tuple(command[: len(_HEAD)]) == _HEAD
    is_ours = is_ours and command[-1].count(".") == 1 and "farcall_runtime" in command[len(_HEAD)]
    return unquote(command[_BUCKET_AND_KEY]) if is_ours else ""
