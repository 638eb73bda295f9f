"""Job names: what Batch accepts, and no other job has. No I/O."""

from __future__ import annotations

import re
import secrets

_MOST_NAME = 90  # of Batch's 128 characters for a job's name; the rest makes it unique


def unique(name: str, otherwise: str = "task") -> str:
    """Make a name that Batch accepts and no other job has.

    Args:
        name: A name to recognise the job by; letters, digits, hyphens and underscores of it stay.
        otherwise: What stands for one of which nothing stays.
    """
    plain = re.sub("[^A-Za-z0-9_-]+", "-", name).strip("-_")[:_MOST_NAME] or otherwise
    return f"{plain}-{secrets.token_hex(8)}"
