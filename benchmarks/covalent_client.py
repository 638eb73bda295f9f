"""Dispatch of one lattice from a Covalent server's environment.

``python -m benchmarks.covalent_client EXECUTOR OPTIONS COUNT`` dispatches a lattice and waits
until it has finished. ``... DISPATCH_ID`` fetches its result, which is not measured. Each command
prints one line of JSON. The server's environment does not contain farcall.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC
from typing import Any

import covalent as ct

_POLL_S = 0.5
_FINAL = {"COMPLETED", "FAILED", "CANCELLED", "POSTPROCESSING_FAILED"}


def double(x: int) -> int:
    """Return the double; the trivial electron."""
    return 2 * x


def _dispatch(name: str, options: dict[str, Any], count: int) -> dict[str, Any]:
    electron = ct.electron(double, executor=getattr(ct.executor, name)(**options))

    def workflow(count: int) -> Any:
        return [electron(number) for number in range(count)]

    lattice = ct.lattice(workflow, executor="local", workflow_executor="local")
    began = time.time()
    dispatch_id = ct.dispatch(lattice)(count)
    while ct.get_result(dispatch_id, status_only=True)["status"] not in _FINAL:
        time.sleep(_POLL_S)
    return {"dispatch_id": dispatch_id, "began": began}


def _result(dispatch_id: str) -> dict[str, Any]:
    found = ct.get_result(dispatch_id)
    ended = found.end_time.replace(tzinfo=UTC).timestamp()
    return {"ended": ended, "value": found.result, "error": found.error}


if __name__ == "__main__":
    first, *more = sys.argv[1:]
    done = _dispatch(first, json.loads(more[0]), int(more[1])) if more else _result(first)
    print(json.dumps(done))
