"""Dispatches one lattice to a Covalent server; runs in that server's venv, without farcall.

``python -m benchmarks.covalent_client WORK`` waits for its end and prints one line of JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import covalent as ct
import numpy as np
from covalent._workflow.transportable_object import TransportableObject
from requests import HTTPError

_POLL_S = 0.5  # each costs the server some milliseconds, whoever's electrons it runs
_FINAL = {"COMPLETED", "FAILED", "CANCELLED", "POSTPROCESSING_FAILED"}
_UNIT = 1 if sys.platform == "darwin" else 1024


def double(x: int) -> int:
    """The trivial electron."""
    return 2 * x


def size(data: np.ndarray) -> int:
    """The electron that takes a large argument."""
    return data.nbytes


def make(count: int) -> np.ndarray:
    """The electron that has a large value, and a short `str`, which Covalent keeps, too."""
    return np.ones(count, np.uint8)


def _lattice(shape: str, executor: Any) -> Any:
    one, taking, making = (ct.electron(each, executor=executor) for each in (double, size, make))

    def trivial(count: int) -> Any:
        return [one(number) for number in range(count)]

    def argument(data: np.ndarray) -> Any:
        return taking(data)

    def result(count: int) -> Any:
        return making(count)

    flow = {"trivial": trivial, "argument": argument, "result": result}[shape]
    return ct.lattice(flow, executor="local", workflow_executor="local")


def _main(work: dict[str, Any]) -> dict[str, Any]:
    if "value_of" in work:
        return {"value": ct.get_result(work["value_of"]).result}
    executor = getattr(ct.executor, work["executor"])(**work["options"])
    if work["shape"] == "result" and "answer" in work["options"]:
        archive = TransportableObject(make(work["count"])).serialize()
        Path(executor.answer).write_bytes(archive)
    flow = _lattice(work["shape"], executor)
    given = make(work["count"]) if work["shape"] == "argument" else work["count"]
    began = time.time()
    dispatch_id = ct.dispatch(flow)(given)
    dispatched = time.time()
    while (status := _status(dispatch_id)) not in _FINAL:
        time.sleep(_POLL_S)
    return {
        "dispatch_id": dispatch_id,
        "status": status,
        "began": began,
        "dispatched": dispatched,
        "client_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT,
    }


def _status(dispatch_id: str) -> str:
    try:
        return str(ct.get_result(dispatch_id, status_only=True)["status"])
    except HTTPError:  # Covalent's database is locked while it copies something large
        return ""


if __name__ == "__main__":
    print(json.dumps(_main(json.loads(sys.argv[1]))))
