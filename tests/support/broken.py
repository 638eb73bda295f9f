"""Functions that raise exceptions whose own code fails, or that are malformed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

MESSAGE = "the message"


def text() -> NoReturn:
    class TextError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

        __repr__ = __str__

    raise TextError


def text_that_leaves() -> NoReturn:
    class LeavingError(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

        __repr__ = __str__

    raise LeavingError


def notes() -> NoReturn:
    class NotesError(Exception):
        @property
        def __notes__(self) -> list[str]:
            raise RuntimeError("no notes")

    raise NotesError(MESSAGE)


def wrong_notes() -> NoReturn:
    error = ValueError(MESSAGE)
    error.__notes__ = 7
    raise error


def cause() -> NoReturn:
    class CauseError(Exception):
        @property
        def __cause__(self) -> BaseException:
            raise RuntimeError("no cause")

        __context__ = __suppress_context__ = __cause__

    raise CauseError(MESSAGE)


def loop() -> NoReturn:
    error, other = ValueError(MESSAGE), LookupError("the other")
    error.__cause__, other.__cause__ = other, error
    raise error


def chain() -> NoReturn:
    error = last = ValueError(MESSAGE)
    for number in range(3000):
        last.__cause__ = last = LookupError(number)
    raise error


def pickle() -> NoReturn:
    class PickleError(Exception):
        def __reduce__(self) -> NoReturn:
            raise SystemExit(3)

    raise PickleError(MESSAGE)


def argument() -> NoReturn:
    class Argument:
        def __repr__(self) -> str:
            raise RuntimeError("no words")

        __eq__ = __str__ = __reduce__ = __repr__
        __hash__ = None

    raise ValueError(MESSAGE, Argument())


def surrogate() -> NoReturn:
    raise ValueError(f"{MESSAGE} \ud800")


def subclass() -> NoReturn:
    class Text(str):
        __slots__ = ()

        def __len__(self) -> int:
            raise RuntimeError("no length")

        encode = partition = splitlines = __format__ = __getitem__ = __len__

    class SubclassError(Exception):
        def __str__(self) -> str:
            return Text(MESSAGE)

    raise SubclassError


def huge() -> NoReturn:
    raise ValueError(MESSAGE + 20_000_000 * "!")


WAYS: list[Callable[[], NoReturn]] = [
    text,
    text_that_leaves,
    notes,
    wrong_notes,
    cause,
    loop,
    chain,
    pickle,
    argument,
    surrogate,
    subclass,
    huge,
]
