"""Notes that farcall adds to the errors of jobs."""

from __future__ import annotations


def notes(error: BaseException) -> list[str]:
    """Return an error's notes; on Python 3.10, they are its causes."""
    found = list(getattr(error, "__notes__", ()))
    while (error := error.__cause__) is not None:
        found.append(str(error))
    return found
