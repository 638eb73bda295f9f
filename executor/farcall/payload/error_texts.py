"""One-line failure reasons of calls, and groups of them. No I/O.

Nothing is unpickled. Two failures are the same if the error's class, the user's function that
raised it, and the message without numbers, addresses and UUIDs are the same.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from farcall.model import terminal
from farcall.model.errors import FarcallError
from farcall.model.failure_reasons import FailureReason

LONGEST = 200
"""Maximum characters of a reason."""

_MOST_GROUPS = 100
_MOST_SHOWN = 5
_OTHERS = "other errors"
_UUID = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_VARYING = re.compile(rf"{_UUID}|0x[0-9a-fA-F]+|(?<![A-Za-z_0-9])\d+(?:\.\d+)?(?:e[+-]?\d+)?")


class Reason(NamedTuple):
    """Failure reason of a call.

    Attributes:
        kind: Class of the error, as a traceback names it.
        text: Class and first line of the message, at most 200 characters, without control
            characters.
        place: File and function that raised it, ``"fit.py:solve"``; empty if unknown.
    """

    kind: str
    text: str
    place: str = ""

    @classmethod
    def of(cls, kind: str, message: str, place: str = "") -> Reason:
        """Return the reason for an error's class and message."""
        first = next((line for line in message.splitlines() if line.strip()), "")
        kind = _in_a_line(kind)
        text = _in_a_line(f"{kind}: {first.strip()}") if first else kind
        return cls(kind, text, _in_a_line(place))

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Reason:
        """Return the reason of a call that raised, from its record in the outcome."""
        first = record["chain"][0]
        return cls.of(str(first["type"]), str(first["message"]), str(record.get("place", "")))

    @classmethod
    def of_failure_reason(cls, why: FailureReason) -> Reason:
        """Return the reason for a `FailureReason` of a backend or an outcome."""
        return cls.of(why.kind.__name__, why.sentence)

    @classmethod
    def of_error(cls, error: BaseException) -> Reason:
        """Return the reason if only the error is known; run no user code."""
        kind = type(error).__name__
        if not isinstance(error, FarcallError):
            return cls.of(kind, "")
        job_id = getattr(error, "job_id", "")
        message = str(error)
        return cls.of(kind, message.partition(f": job {job_id}")[0] if job_id else message)

    @property
    def likeness(self) -> tuple[str, str, str]:
        """Key that is equal for all reasons of one group."""
        return self.kind, self.place, _VARYING.sub("#", self.text)


@dataclass
class Group:
    """Calls that failed for the same reason.

    Attributes:
        reason: Reason of the first call.
        example: Index of the first call.
        count: Number of calls.
        call: Summary of the first call's arguments; empty if unknown.
    """

    reason: Reason
    example: int
    count: int = 0
    call: str = ""
    varying: frozenset[int] = frozenset()
    """Positions of numbers, addresses and UUIDs in the text that differ between calls."""

    def __str__(self) -> str:
        """Return the reason, the number of calls, and an example."""
        call = f": {self.call}" if self.call else ""
        if self.count == 1:
            return f"{self.text} (call {self.example}{call})"
        return f"{self.count} x {self.text} (such as call {self.example}{call})"

    @property
    def text(self) -> str:
        """Common text of the reasons, with ``...`` where they differ."""
        places = itertools.count()
        return _VARYING.sub(
            lambda match: "..." if next(places) in self.varying else match[0], self.reason.text
        )

    def add(self, reason: Reason, count: int) -> None:
        """Add calls that failed for the same reason."""
        self.count += count
        both = zip(_VARYING.findall(self.reason.text), _VARYING.findall(reason.text), strict=False)
        self.varying |= {place for place, (one, other) in enumerate(both) if one != other}


class Groups:
    """Failed calls, grouped by reason; reasons above the maximum share one group."""

    def __init__(self) -> None:
        self._groups: dict[object, Group] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __str__(self) -> str:
        """Return the error classes with their counts: ``ValueError x14, KeyError x1``."""
        counts: Counter[str] = Counter()
        for group in self._groups.values():
            counts[group.reason.kind] += group.count
        lines = [f"{kind} x{count}" for kind, count in counts.most_common(_MOST_SHOWN)]
        left = counts.total() - sum(count for _, count in counts.most_common(_MOST_SHOWN))
        return ", ".join([*lines, f"others x{left}"] if left else lines)

    def add(self, number: int, reason: Reason, count: int = 1) -> Group:
        """Add failed calls.

        Returns:
            Their group.
        """
        key: object = reason.likeness
        if key not in self._groups and len(self._groups) >= _MOST_GROUPS:
            key, reason = _OTHERS, Reason(_OTHERS, _OTHERS)
        group = self._groups.setdefault(key, Group(reason, number))
        group.add(reason, count)
        return group

    @property
    def groups(self) -> list[Group]:
        """The groups, the largest first."""
        return sorted(self._groups.values(), key=lambda group: (-group.count, group.example))

    def record(self) -> list[dict[str, Any]]:
        """Return the groups as JSON."""
        return [
            {
                "text": group.text,
                "count": group.count,
                "example": group.example,
                "call": group.call or None,
            }
            for group in self.groups
        ]

    def lines(self) -> list[str]:
        """Return one line for each of the largest groups, and the number of other errors."""
        groups = self.groups
        lines = [str(group) for group in groups[:_MOST_SHOWN]]
        left = sum(group.count for group in groups[_MOST_SHOWN:])
        return [*lines, f"{left} x other errors"] if left else lines

    def summary(self) -> str:
        """Return one line: a single group's text, or the classes of several."""
        groups = self.groups
        if len(groups) != 1:
            return str(self)
        (only,) = groups
        return only.text if only.count == 1 else f"{only.count} x {only.text}"


def _in_a_line(text: str) -> str:
    text = terminal.in_a_line(text[: 2 * LONGEST])
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
