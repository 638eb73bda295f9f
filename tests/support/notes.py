"""Notes that farcall adds to the errors of jobs."""

from __future__ import annotations


def notes(error: BaseException) -> list[str]:
    """Return an error's notes."""
    return list(getattr(error, "__notes__", ()))
