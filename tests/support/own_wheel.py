"""farcall's own wheel and sdist."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.program import stdout_of

ROOT = Path(__file__).parents[2]
RUN = (sys.executable, "-m", "uv", "run", "--isolated", "--no-project")
"""Command that runs a program in a separate environment."""

ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHON"))
}
"""Environment before tests get another home, so that uv's download cache is used."""

_BUILD = (
    "import sys, hatchling.build as build; "
    "print(build.build_wheel(sys.argv[1]), build.build_sdist(sys.argv[1]))"
)


def build_own(folder: Path) -> list[Path]:
    """Build wheel and sdist with hatchling."""
    output = stdout_of(sys.executable, "-c", _BUILD, folder, cwd=ROOT, env=ENVIRONMENT)
    return [folder / name for name in output.split()[-2:]]
