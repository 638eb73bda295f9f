"""Logging in a job: to stderr, with time, level and name, unless the function configures it.

Python writes nothing but the bare text of warnings where nobody has configured logging. What it
does that with is changed here, so nothing is taken over: handlers, ``basicConfig`` and
``dictConfig`` of the function count as if this was not there.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

OFF = "OFF"
"""Instead of a level: logging is left as Python has it."""

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up(level: str) -> None:
    """Have what is logged in this process be written to stderr.

    Args:
        level: The name of the least level that is written, or `OFF`; what is no level is `OFF`.
    """
    number = logging.getLevelName(level)
    if not isinstance(number, int) or logging.lastResort is None:
        return
    logging.root.setLevel(number)
    logging.lastResort.setLevel(logging.NOTSET)
    logging.lastResort.setFormatter(logging.Formatter(_FORMAT))
    configure = logging.basicConfig

    @functools.wraps(configure)
    def basic_config(**options: Any) -> None:
        # ``logging.info(...)`` and its like call it so, which is no configuration of anybody's.
        configure(**(options or {"format": _FORMAT}))

    logging.basicConfig = basic_config
