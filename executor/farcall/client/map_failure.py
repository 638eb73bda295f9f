"""Progress of a failed map, attached to a call's error."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from farcall.model.terminal import in_a_line
from farcall.payload import results

_MOST_NAMED = 3
_NAME_CHARACTERS = 80


@dataclass(frozen=True)
class MapFailure:
    """Progress of a map when the error of one of its calls was raised.

    It is the error's attribute ``map_failure``. Unfinished calls were cancelled, except the calls
    of a pool's map, which continue until its iterator is closed.

    Attributes:
        total: Number of calls; for inputs without a length, the number of submitted calls.
        failed: Calls without a result, among those whose outcomes were read.
        cancelled: Unfinished calls that were cancelled.
        cancelled_tasks: Tasks of these calls; with a ``chunksize``, a task has several calls.
        unsubmitted: Calls without a job.
        kept: Other finished calls, whose results were not collected.
        errors: Number of calls by error class, the most frequent first.
        run: Name of the run, with which `BatchExecutor.recover` returns the kept results.
        job_ids: The map's jobs.
        unfinished: Unfinished calls of a pool's map, which continue.
    """

    total: int
    failed: int
    cancelled: int
    cancelled_tasks: int
    unsubmitted: int
    kept: int
    errors: tuple[tuple[str, int], ...]
    run: str
    job_ids: tuple[str, ...]
    unfinished: int = 0

    @property
    def message(self) -> str:
        """Summary in one line: "3 of 100 raised ValueError; 95 were cancelled because of it"."""
        text = f"{self.failed:,} of {self.total:,} raised {self._named}"
        if self.cancelled:
            tasks = (
                ""
                if self.cancelled == self.cancelled_tasks
                else f" calls in {self.cancelled_tasks} tasks"
            )
            text += f"; {self.cancelled}{tasks} {_were(self.cancelled)} cancelled because of it"
        if self.unfinished:
            text += f"; {self.unfinished:,} {_have(self.unfinished)} not finished"
        if self.unsubmitted:
            text += f"; {self.unsubmitted:,} {_were(self.unsubmitted)} not submitted"
        return text

    @property
    def _named(self) -> str:
        names = [in_a_line(name)[:_NAME_CHARACTERS] for name, _ in self.errors[:_MOST_NAMED]]
        if len(self.errors) == 1:
            return names[0]
        counts = (count for _, count in self.errors)
        text = ", ".join(f"{name} x{count}" for name, count in zip(names, counts, strict=False))
        more = len(self.errors) - len(names)
        return f"{text} and {more} more" if more else text

    def annotate(self, error: BaseException, way: str) -> None:
        """Attach the progress to an error that is being raised.

        Args:
            error: The error.
            way: Method that returns the kept results.
        """
        text = f"map: {self.message}."
        if self.unfinished:
            text += " They continue until the iterator is closed."
        if self.kept:
            text += f" Get the computed results with `{way}`."
        with contextlib.suppress(Exception):  # the error's class may override attribute access
            error.map_failure = self  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            results.add_note(error, text)


def names_of(errors: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return error classes with their counts, the most frequent first."""
    return tuple(sorted(errors.items(), key=lambda each: -each[1]))


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"
