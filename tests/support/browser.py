"""The browser for the tests, which .ci/browser finds."""

import subprocess
from pathlib import Path

_SAID = subprocess.run(
    [Path(__file__).parents[2] / ".ci" / "browser"], capture_output=True, text=True, check=False
)

#: Path of the browser; empty if it is missing. Read here, because tests do not see this
#: environment.
BROWSER = _SAID.stdout.strip() if _SAID.returncode == 0 else ""
#: Reason why the browser is missing.
LACKING = _SAID.stderr.strip()
