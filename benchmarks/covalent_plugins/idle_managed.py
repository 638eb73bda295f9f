"""Covalent's floor, the managed way: an executor that runs nothing and answers with a file."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from covalent._shared_files.config import get_config
from covalent._shared_files.util_classes import RESULT_STATUS
from covalent._workflow.transportable_object import TransportableObject
from covalent.executor.base import AsyncBaseExecutor
from covalent.executor.schemas import ResourceMap, TaskSpec, TaskUpdate

EXECUTOR_PLUGIN_NAME = "IdleManagedExecutor"
_EXECUTOR_PLUGIN_DEFAULTS = {"answer": "", "copies": True}


class IdleManagedExecutor(AsyncBaseExecutor):
    """Answers every electron with the same value, from a file.

    Args:
        answer: The file, with the value's archive; None is the value without.
        copies: Whether Covalent copies the value from there, and what electrons take to files; it
            looks for each file in its database and reads each name as a URI. Without, it copies
            nothing, and the value is put straight into its store.
    """

    SUPPORTS_MANAGED_EXECUTION = True

    def __init__(self, answer: str = "", copies: bool = True) -> None:
        super().__init__()
        self.answer = answer
        self.copies = copies

    def get_upload_uri(self, task_group_metadata: Mapping[str, Any], object_key: str) -> str:
        """Have Covalent copy an electron's assets beside the server, or not at all."""
        if not self.copies:
            return ""
        group = task_group_metadata["task_group_id"]
        return f"file://{gettempdir()}/{task_group_metadata['dispatch_id']}/{group}/{object_key}"

    async def send(
        self,
        task_specs: Sequence[TaskSpec],
        resources: ResourceMap,
        task_group_metadata: Mapping[str, Any],
    ) -> None:
        """Do nothing."""

    async def poll(self, task_group_metadata: Mapping[str, Any], data: Any) -> Any:
        """Say at once that the electrons have ended."""
        return data

    async def receive(self, task_group_metadata: Mapping[str, Any], data: Any) -> list[TaskUpdate]:
        """Name the file, or put its content where Covalent keeps it."""
        path = Path(self.answer) if self.answer else _none()
        asset: dict[str, Any] = {"size": path.stat().st_size}
        if self.copies:
            asset["remote_uri"] = f"file://{path}"
        else:
            store = Path(get_config("dispatcher.results_dir"), task_group_metadata["dispatch_id"])
            for node in task_group_metadata["node_ids"]:
                target = store / f"node_{node}" / "results.tobj"
                await asyncio.to_thread(shutil.copyfile, path, target)
        return [
            TaskUpdate(
                dispatch_id=task_group_metadata["dispatch_id"],
                node_id=node,
                status=RESULT_STATUS.COMPLETED,
                assets={"output": asset},
            )
            for node in task_group_metadata["node_ids"]
        ]

    async def run(self, *_: Any) -> Any:
        """Refuse the older way, which Covalent does not go where the managed one is offered."""
        raise NotImplementedError


def _none() -> Path:
    path = Path(gettempdir()) / "none.tobj"
    if not path.exists():
        path.write_bytes(TransportableObject(None).serialize())
    return path
