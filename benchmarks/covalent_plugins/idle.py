"""Floor for Covalent: a managed executor that runs nothing and returns None."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covalent._shared_files.config import get_config
from covalent._shared_files.util_classes import RESULT_STATUS
from covalent._workflow.transportable_object import TransportableObject
from covalent.executor.base import AsyncBaseExecutor
from covalent.executor.schemas import TaskUpdate

EXECUTOR_PLUGIN_NAME = "IdleExecutor"
_EXECUTOR_PLUGIN_DEFAULTS: dict[str, str] = {}


class IdleExecutor(AsyncBaseExecutor):
    """Executor that stores None for each electron, so that nothing is copied."""

    SUPPORTS_MANAGED_EXECUTION = True

    async def send(self, *_: Any) -> None:
        """Do nothing."""

    async def poll(self, _metadata: Mapping[str, Any], data: Any) -> Any:
        """Return immediately."""
        return data

    async def receive(
        self, task_group_metadata: Mapping[str, Any], _data: Any
    ) -> list[TaskUpdate]:
        """Write the results into Covalent's store."""
        archive = TransportableObject(None).serialize()
        dispatch = task_group_metadata["dispatch_id"]
        store = Path(get_config("dispatcher.results_dir"), dispatch)
        ended = {"status": RESULT_STATUS.COMPLETED, "assets": {"output": {"size": len(archive)}}}
        updates = []
        for node in task_group_metadata["node_ids"]:
            (store / f"node_{node}" / "results.tobj").write_bytes(archive)
            updates.append(TaskUpdate(dispatch_id=dispatch, node_id=node, **ended))
        return updates

    async def run(self, *_: Any) -> Any:
        """Raise an error; Covalent never calls this abstract method on a managed executor."""
        raise NotImplementedError
