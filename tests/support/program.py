"""Programs of tests, in processes of their own."""

from __future__ import annotations

import subprocess
from typing import Any


def stdout_of(*command: object, **options: Any) -> str:
    """Return what a program printed; fail with its stderr unless it succeeds.

    Args:
        *command: The program and its arguments.
        **options: Further options of `subprocess.run`.
    """
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
