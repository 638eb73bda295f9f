"""Failure of a map: what a call's error says of the other calls."""

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
    """How far a map had come when the error of one of its calls was raised.

    The error has it as ``error.map_failure``. The calls that had not ended by then were ended;
    those of a pool's map go on until its iterator is left.

    Attributes:
        total: Number of calls; of inputs without a length, of those that were submitted.
        failed: Calls without a value, as far as their outcomes were read.
        ended: Calls that had not ended, and were ended.
        ended_tasks: The tasks of these; several calls are one with a ``chunksize``.
        unsubmitted: Calls of which there is no job.
        kept: Calls that had ended otherwise, and whose values nobody has taken.
        errors: How many calls raised an error of which class, the most frequent first.
        run: Name of the run, for `BatchExecutor.recover`, which gives the values that are kept.
        job_ids: The map's jobs.
        unfinished: Calls of a pool's map that had not ended, and go on.
    """

    total: int
    failed: int
    ended: int
    ended_tasks: int
    unsubmitted: int
    kept: int
    errors: tuple[tuple[str, int], ...]
    run: str
    job_ids: tuple[str, ...]
    unfinished: int = 0

    @property
    def sentence(self) -> str:
        """All of it in a line: "3 of 100 raised ValueError; 95 were ended because of it"."""
        told = f"{self.failed:,} of {self.total:,} raised {self._named}"
        if self.ended:
            tasks = "" if self.ended == self.ended_tasks else f" calls in {self.ended_tasks} tasks"
            told += f"; {self.ended}{tasks} {_were(self.ended)} ended because of it"
        if self.unfinished:
            told += f"; {self.unfinished:,} {_have(self.unfinished)} not ended"
        if self.unsubmitted:
            told += f"; {self.unsubmitted:,} {_were(self.unsubmitted)} not submitted"
        return told

    @property
    def _named(self) -> str:
        names = [in_a_line(name)[:_NAME_CHARACTERS] for name, _ in self.errors[:_MOST_NAMED]]
        if len(self.errors) == 1:
            return names[0]
        counts = (count for _, count in self.errors)
        told = ", ".join(f"{name} x{count}" for name, count in zip(names, counts, strict=False))
        more = len(self.errors) - len(names)
        return f"{told} and {more} more" if more else told

    def tell(self, error: BaseException, way: str) -> None:
        """Have an error that is raised say it.

        Args:
            error: The error.
            way: What gives the values that are kept.
        """
        told = f"map: {self.sentence}."
        if self.unfinished:
            told += " They go on until the iterator is left."
        if self.kept:
            told += f" Values that were computed: {way}."
        with contextlib.suppress(Exception):  # its class may have code of its own
            error.map_failure = self  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            results.add_note(error, told)


def names_of(errors: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return classes of errors with their numbers, the most frequent first."""
    return tuple(sorted(errors.items(), key=lambda each: -each[1]))


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"
