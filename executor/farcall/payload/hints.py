"""Hint on what a function raised in its job, where the cause is that it ran in a job."""

from __future__ import annotations

import re

_IS_PLAIN = (
    "Inside a job a task of farcall's is the plain function, which runs there: call it as "
    "function(...), without await; its calls become jobs where the workflow runs"
)
_IS_LACKING = (
    "The Python of the job has no {0}: add its package to the image (PIP_PACKAGES, see "
    "docs/image.md); where `farcall local` runs jobs as processes, install it beside the farcall "
    "that serves, with `python -m pip install`"
)
_HINTS = (
    (
        "AttributeError",
        r"'(function|method)' object has no attribute '(map|starmap|submit|run|local)'",
        _IS_PLAIN,
    ),
    ("TypeError", r"object .+ can't be used in 'await' expression", _IS_PLAIN),
    ("TypeError", r"'.+' object can't be awaited", _IS_PLAIN),
    ("ValueError|TypeError", r"a coroutine was expected, got .*", _IS_PLAIN),
    ("ModuleNotFoundError", r"No module named '(\w+)(?:\.[^']*)?'.*", _IS_LACKING),
)
"""By class and text of the error; what is in its groups stands in the hint."""


def hint(kind: str, message: str) -> str:
    """Return what to do about an error; empty where there is nothing to say.

    Args:
        kind: Its class, such as ``"AttributeError"``.
        message: Its text.
    """
    for kinds, text, found in _HINTS:
        meant = re.fullmatch(text, message)
        if meant is not None and re.fullmatch(kinds, kind.rpartition(".")[2]):
            return found.format(*meant.groups())
    return ""
