"""Job names: what Batch accepts, and no other job has. No I/O."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

_MOST_NAME = 90  # of Batch's 128 characters for a job's name; the rest makes it unique


def unique(name: str, otherwise: str = "task") -> str:
    """Make a name that Batch accepts and no other job has.

    Args:
        name: A name to recognise the job by; letters, digits, hyphens and underscores of it stay.
        otherwise: What stands for one of which nothing stays.
    """
    plain = re.sub("[^A-Za-z0-9_-]+", "-", name).strip("-_")[:_MOST_NAME] or otherwise
    return f"{plain}-{secrets.token_hex(8)}"


# --- Platform names: the values of the option ``backend``, and what texts call each. No I/O -----
#
# Apart from the options, because texts are needed where nobody has options yet, such as by
# ``farcall --help``, and these bring pydantic with them.


BackendName: TypeAlias = Literal["batch", "kubernetes"]
BATCH: BackendName = "batch"
KUBERNETES: BackendName = "kubernetes"

PLATFORMS = {BATCH: "Batch", KUBERNETES: "Kubernetes"}
"""What texts call them."""


# --- Wording: numbers and names, as a sentence has them -----------------------------------------


_MOST_NAMED = 5


def counted(number: int, noun: str, plural: str = "s") -> str:
    """Return a number with what it counts, in the plural where it is not one."""
    return f"{number} {noun}{plural * (number != 1)}"


def named(names: Sequence[str], noun: str = "job") -> str:
    """Say how many there are, and name the first of them."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{counted(len(names), noun)} ({', '.join(names[:_MOST_NAMED])}{more})"


def in_queues(queues: Iterable[str]) -> str:
    """Return " in queue a, b"; empty where jobs have no queue, as on Kubernetes."""
    names = ", ".join(filter(None, queues))
    return f" in queue {names}" if names else ""
