"""Job names that Batch accepts and that are unique. No I/O."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

_MOST_NAME = 90  # Batch accepts 128 characters; the rest is the unique suffix


def unique(name: str, otherwise: str = "task") -> str:
    """Return a unique name that Batch accepts.

    Args:
        name: Readable name; only its letters, digits, hyphens and underscores are kept.
        otherwise: Replacement if no character is kept.
    """
    plain = re.sub("[^A-Za-z0-9_-]+", "-", name).strip("-_")[:_MOST_NAME] or otherwise
    return f"{plain}-{secrets.token_hex(8)}"


# --- Platform names: the values of the option ``backend``, and their names in texts. No I/O -----
#
# Separate from the options, because ``farcall --help`` needs them without importing pydantic.


BackendName: TypeAlias = Literal["batch", "kubernetes"]
ENV_EMULATOR_PYTHON = "FARCALL_EMULATOR_PYTHON"
"""Interpreter of a local AWS emulator whose jobs are processes; set for its clients."""
EMULATOR_IMAGE = "farcall-local-process"
"""Image of the jobs that a local AWS emulator runs as processes."""

BATCH: BackendName = "batch"
KUBERNETES: BackendName = "kubernetes"

PLATFORMS = {BATCH: "Batch", KUBERNETES: "Kubernetes"}
"""Display names of the platforms."""


# --- Wording: numbers and names in sentences ----------------------------------------------------


_MOST_NAMED = 5


def install(extra: str) -> str:
    """Return the command that installs an extra, in a sentence."""
    return f"Run `pip install '.[{extra}]'` in farcall's folder; farcall is not on PyPI yet."


def counted(number: int, noun: str, plural: str = "s") -> str:
    """Return a number with its noun, in the plural unless it is one."""
    return f"{number} {noun}{plural * (number != 1)}"


def named(names: Sequence[str], noun: str = "job") -> str:
    """Return the number of names, and the first of them."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{counted(len(names), noun)} ({', '.join(names[:_MOST_NAMED])}{more})"


def in_queues(queues: Iterable[str]) -> str:
    """Return " in queue a, b"; empty if jobs have no queue, as on Kubernetes."""
    names = ", ".join(filter(None, queues))
    return f" in queue {names}" if names else ""
