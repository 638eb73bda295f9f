"""Functions that tests run as jobs. They are pickled by value, like users' functions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE_S


def wait_for(path: str | Path, value: Any = 0) -> Any:
    """Wait until a file exists, and return a value."""
    deadline = time.monotonic() + PATIENCE_S
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return value
