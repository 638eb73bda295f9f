"""Traceback of an error that is the user's: farcall's own frames are left out of it.

What a job raised, and what farcall says on purpose, came about elsewhere: the frames between the
user's line and the ``raise`` tell nothing. Python's development mode, ``python -X dev``, keeps
them.
"""

from __future__ import annotations

import sys
from types import TracebackType

from farcall.model.errors import FarcallError


class frames_hidden:  # noqa: N801  # used like a function, as those of contextlib
    """Leave out the block's frames, and those below, from what it raises; see `hide_if_meant`.

    Python 3.10 shows the frame of the block itself.
    """

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
    """Leave out the frames of an error that is about to be raised again by a bare ``raise``.

    So it is done with a `FarcallError`, and with what was raised by a function that has set
    ``__tracebackhide__``, as pytest and IPython know it. All other errors are nobody's intention,
    and keep their frames.
    """
    if isinstance(error, FarcallError) or _was_raised_for_others(error.__traceback__):
        hide(error)


def hide(error: BaseException) -> None:
    """Leave out the frames of an error that is about to be raised again by a bare ``raise``."""
    if sys.flags.dev_mode:
        return
    if error.__traceback__ is not None:
        error.__traceback__.tb_next = None  # Python 3.10 goes on with it, whatever the error has
    BaseException.with_traceback(error, None)  # its class may do anything with its own


def _was_raised_for_others(stack: TracebackType | None) -> bool:
    if stack is None:
        return False
    while stack.tb_next is not None:
        stack = stack.tb_next
    return bool(stack.tb_frame.f_locals.get("__tracebackhide__"))
