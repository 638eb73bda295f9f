"""``python -m farcall_runtime``: run the task this container was started for."""

from __future__ import annotations

import json
import os
import sys

from farcall_runtime import contract, runner


def main() -> int:
    """Run the task, or print the contract with ``--contract``; return the exit code."""
    if sys.argv[1:] == ["--contract"]:
        print(json.dumps(contract.describe(), indent=2))  # noqa: T201
        return 0
    return runner.run(os.environ)


if __name__ == "__main__":
    sys.exit(main())
