"""Coroutine that explains itself if it is used without ``await``."""

from __future__ import annotations

import sys
import warnings
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from farcall.client.frames import frames_hidden
from farcall.model.errors import TaskNotPicklableError

R = TypeVar("R")

_OWN = __name__.partition(".")[0]
_seen: dict[Any, Any] = {}
"""Registry of `warnings`, so that a thousand calls in a loop warn once."""


class Awaitable(Coroutine[Any, Any, R]):
    """Object that asyncio's run, tasks, gather and wait_for accept as a coroutine.

    Its work begins with the await. Until then, its ``repr`` and the error of any other use name
    the code to write. If it is garbage-collected without an await, it warns, as Python's own
    coroutines do.

    Args:
        function: Name of the function.
        what: Description, such as ``call of simulate``.
        instead: Code to write instead.
    """

    def __init__(self, function: str, what: str, instead: str) -> None:
        self.__name__ = self.__qualname__ = function  # asyncio shows it in a task
        self._what = what
        self._instead = instead
        self._is_used = False
        self._has_warned = False
        self._work: Coroutine[Any, Any, R] | None = None
        frame: Any = sys._getframe(1)
        while frame.f_back is not None and _is_own(frame):
            frame = frame.f_back
        self._made_at = frame.f_code.co_filename, frame.f_lineno

    @abstractmethod
    def _coroutine(self) -> Coroutine[Any, Any, R]:
        """Return the coroutine that does the work, which is awaited at once."""

    def __repr__(self) -> str:
        if self._is_used:
            return f"<{self._what}>"
        return f"<{self._what}, not awaited: {self._instead}>"

    def __await__(self) -> Generator[Any, None, R]:
        with frames_hidden():
            self._is_used = True
            return (yield from self._coroutine().__await__())

    def send(self, value: Any) -> Any:
        """Resume the coroutine."""
        with frames_hidden():
            return self._at_work().send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error at the coroutine's current await."""
        with frames_hidden():
            return self._at_work().throw(*error)

    def close(self) -> None:
        """Close the coroutine."""
        self._is_used = True
        if self._work is not None:
            self._work.close()

    def _at_work(self) -> Coroutine[Any, Any, R]:
        if self._work is None:
            self._is_used = True
            self._work = self._coroutine()
        return self._work

    def __del__(self, _warn: Callable[..., None] = warnings.warn_explicit) -> None:
        if not self.__dict__.get("_is_used", True) and not self._has_warned:
            text = f"{self._what} was never awaited, so it did not run: {self._instead}"
            _warn(text, RuntimeWarning, *self._made_at, registry=_seen)

    if not TYPE_CHECKING:  # type checkers still report them as errors

        def __getattr__(self, name: str) -> NoReturn:
            is_probe = name.startswith("_")  # tools look up such names
            self._has_warned = self._has_warned or not is_probe
            raise AttributeError(
                f"{self._what} has no {name!r}, because it is not awaited yet: {self._instead}"
            )

        def __iter__(self) -> NoReturn:
            self._has_warned = True
            raise TypeError(f"{self._what} is not iterable: {self._instead}")

        def __reduce__(self) -> NoReturn:
            self._has_warned = True
            raise TaskNotPicklableError(
                f"{self._what} has no result, because it is not awaited yet: {self._instead}"
            )


class Unawaited(Awaitable[R]):
    """Call or submission that can be awaited once.

    Args:
        function: Name of the function.
        what: Description of the call.
        instead: Code to write instead.
        begin: Creates the coroutine that does the work.
    """

    def __init__(
        self, function: str, what: str, instead: str, begin: Callable[[], Coroutine[Any, Any, R]]
    ) -> None:
        super().__init__(function, what, instead)
        self._make: Callable[[], Coroutine[Any, Any, R]] | None = begin

    def _coroutine(self) -> Coroutine[Any, Any, R]:
        make, self._make = self._make, None  # release its arguments as early as possible
        if make is None:
            raise RuntimeError(f"{self._what} was already awaited. Keep its result, or call again")
        return make()


def _is_own(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _OWN
