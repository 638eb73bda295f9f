"""The command as it is installed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FARCALL = Path(sys.executable).with_name("farcall")


@pytest.fixture
def farcall_command() -> Callable[..., Any]:
    """Runs ``farcall`` with some arguments, and variables of the environment beside the test's."""

    async def run(
        *arguments: object, answer: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            [FARCALL, *map(str, arguments)],
            input=answer,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **environment},
        )

    return run
