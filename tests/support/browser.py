"""The browser of the tests: the one that .ci/browser finds."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SAID = subprocess.run(
    [Path(__file__).parents[2] / ".ci" / "browser"], capture_output=True, text=True, check=False
)

#: Its path; empty where there is none. Read here: tests see nothing of this environment.
BROWSER = _SAID.stdout.strip() if _SAID.returncode == 0 else ""
#: Why there is none.
LACKING = _SAID.stderr.strip()
