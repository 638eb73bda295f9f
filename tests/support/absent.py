"""Test modules that lack a requirement: they are skipped, and fail in CI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


class Absent(pytest.Module):
    """A stand-in for a test module that is not imported, because a requirement is missing."""

    reason = ""

    @classmethod
    def because(cls, reason: str, path: Path, parent: pytest.Collector) -> Absent:
        """Return a stand-in, for use in `pytest_pycollect_makemodule`."""
        module: Absent = cls.from_parent(parent, path=path)
        module.reason = reason
        return module

    def collect(self) -> list[Any]:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{self.reason}; in CI this is an error")
        pytest.skip(self.reason)  # a developer's machine may lack requirements
