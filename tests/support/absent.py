"""Test modules that cannot run because something is absent: skipped, and an error in CI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


class Absent(pytest.Module):
    """Stands for a test module; says what is absent without importing the module."""

    reason = ""

    @classmethod
    def because(cls, reason: str, path: Path, parent: pytest.Collector) -> Absent:
        """Return what `pytest_pycollect_makemodule` gives instead of a module."""
        module: Absent = cls.from_parent(parent, path=path)
        module.reason = reason
        return module

    def collect(self) -> list[Any]:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{self.reason}; in CI this is an error")
        pytest.skip(self.reason)  # a developer's machine need not have everything
