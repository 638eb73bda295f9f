from __future__ import annotations

import dataclasses
from typing import ClassVar

from project import helpers


@dataclasses.dataclass
class Point:
    x: int
    made: ClassVar[list[str]] = []

    def scaled(self) -> Point:
        return Point(helpers.triple(self.x))


class PickyError(Exception):
    """An exception whose constructor pickle cannot call."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"code {code} at {where}")
        self.code = code
        self.where = where


def scale(x):
    return Point(x).scaled()


def fail(code):
    raise PickyError(code, where="here")
