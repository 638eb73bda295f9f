"""Tracebacks without farcall's own frames.

A job's exceptions and farcall's intentional errors do not originate in farcall's frames, so the
frames between the user's line and the ``raise`` carry no information. Python's development mode,
``python -X dev``, keeps them.
"""

from __future__ import annotations

import sys
from types import TracebackType

from farcall.model.errors import FarcallError


class frames_hidden:  # noqa: N801  # used like a function, as in contextlib
    """Remove the block's and lower frames from its errors; see `hide_if_meant`."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _stack: TracebackType | None,
    ) -> None:
        if error is not None:
            hide_if_meant(error)


def hide_if_meant(error: BaseException) -> None:
    """Remove the frames of an error that a bare ``raise`` is about to raise again.

    This applies to a `FarcallError`, and to errors raised by a function that has set
    ``__tracebackhide__``, as in pytest and IPython. All other errors are unexpected and keep their
    frames.
    """
    if isinstance(error, FarcallError) or _was_raised_for_others(error.__traceback__):
        hide(error)


def hide(error: BaseException) -> None:
    """Remove the frames of an error that a bare ``raise`` is about to raise again."""
    if sys.flags.dev_mode:
        return
    BaseException.with_traceback(error, None)  # its class may override with_traceback


def _was_raised_for_others(stack: TracebackType | None) -> bool:
    if stack is None:
        return False
    while stack.tb_next is not None:
        stack = stack.tb_next
    return bool(stack.tb_frame.f_locals.get("__tracebackhide__"))
