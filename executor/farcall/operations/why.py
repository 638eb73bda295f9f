"""What a job was called with, and why it failed, as lists show it. No I/O."""

from __future__ import annotations

from typing import Any, NamedTuple


class Why(NamedTuple):
    """What is known of a job beside Batch's words; see `farcall.operations.reasons`.

    Attributes:
        call: The call, in a line: ``fit(lr=0.1, depth=3)``; None where that is not known.
        error: Why it failed: ``ValueError: singular matrix``, of an array in short why its
            children did; None where it has not, or that is not known.
        errors: Of an array, the groups of its failed children: ``text``, ``count``, ``example``,
            the index of one of them, and ``call``, its call or None.
        trouble: Why something of this is not known, where somebody should look into it.
    """

    call: str | None = None
    error: str | None = None
    errors: tuple[dict[str, Any], ...] = ()
    trouble: str | None = None


NOTHING = Why()
"""What is known of a job that was not asked for."""
