"""Default logging in a job: to stderr, with time, level and name.

Without configured logging, Python only writes the bare text of warnings. This module only changes
that last resort, so handlers, ``basicConfig`` and ``dictConfig`` of the function work as usual.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

OFF = "OFF"
"""Value instead of a level that keeps Python's default logging."""

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up(level: str) -> None:
    """Write this process's log records to stderr.

    Args:
        level: Name of the minimum level, or `OFF`; invalid names mean `OFF`.
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
        # ``logging.info(...)`` and similar functions call it without options; the user did not.
        configure(**(options or {"format": _FORMAT}))

    logging.basicConfig = basic_config
