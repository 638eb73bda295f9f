"""joblib on the local AWS emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import joblib
import pytest

import farcall.joblib  # noqa: F401 - registers the backend
from farcall.client.loop_thread import close_shared


@pytest.fixture(autouse=True)
def _own_sessions() -> Iterator[None]:
    """Have each test open sessions of its own: those there are know another environment."""
    yield
    close_shared()


@pytest.fixture
def on_batch(options: dict[str, Any]) -> Callable[..., joblib.parallel_config]:
    """Make a block whose ``Parallel`` calls run on Batch."""
    return lambda **more: joblib.parallel_config(backend="farcall", **{**options, **more})


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file that calls wait for; it is there at the end in any case."""
    file = tmp_path / "gate"
    yield file
    file.touch()
