"""Covalent's managed path: assets stay in files, and streams and error text both arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from covalent._shared_files.config import get_config
from covalent._shared_files.exceptions import TaskCancelledError
from covalent._shared_files.util_classes import RESULT_STATUS
from covalent.executor.schemas import ResourceMap, TaskSpec, TaskUpdate

from farcall.covalent import assets
from farcall.covalent.assets import TaskGroup
from farcall.covalent.group_run import CancelledGroupError, GroupRun, Key
from farcall.covalent.node_results import NodeEnd, as_utf8, telling
from farcall.covalent.plugin import database, restart
from farcall.covalent.plugin.options import ConfiguredExecutor
from farcall.covalent.task_groups import planned_handle, under_way
from farcall.model.workflows import Workflow
from farcall_runtime.contract import Location
from farcall_runtime.electron import Node
from farcall_runtime.envelope import Buffer

T = TypeVar("T")

_JOB_ID, _COLLECTED, _DELEGATED, _STATUS = "job_id", "collected", "delegated", "status"


class ManagedExecutor(ConfiguredExecutor):
    """What Covalent 0.240 calls: `send`, `poll`, `receive`, and `cancel`."""

    SUPPORTS_MANAGED_EXECUTION = True

    def get_upload_uri(self, task_group_metadata: Mapping[str, Any], object_key: str) -> str:
        """Return where Covalent is to copy one of a task group's assets to.

        It is to copy none: `send` reads them where they lie.
        """
        under_way().debouncer.announce()
        return ""

    async def send(
        self,
        task_specs: Sequence[TaskSpec],
        resources: ResourceMap,
        task_group_metadata: Mapping[str, Any],
    ) -> Any:
        """Submit a task group as one job.

        Args:
            task_specs: Its nodes.
            resources: Where their assets were copied to; they were not.
            task_group_metadata: Its dispatch, its number and those of its nodes.

        Returns:
            What `poll` takes.

        Raises:
            TaskCancelledError: It was cancelled meanwhile.
            FarcallError: It could not be submitted; the text names the error and says why.
        """
        with telling(TaskCancelledError):
            return await self._send(task_specs, resources, task_group_metadata)

    async def _send(
        self,
        task_specs: Sequence[TaskSpec],
        resources: ResourceMap,
        task_group_metadata: Mapping[str, Any],
    ) -> Any:
        settings = self.settings
        keys = _keys(task_group_metadata)
        group, workflow = await asyncio.to_thread(_read, keys[0][0], task_specs)
        electrons = group.electrons
        if any(each.is_for_server for each in electrons):
            return await _delegate(task_specs, resources, task_group_metadata)
        if len(electrons) == 1 and electrons[0].is_collection:
            return {_COLLECTED: await asyncio.to_thread(group.collect)}
        stored = self.stored

        async def note_place(where: Location, index: int) -> None:
            await database.note_job(*keys[-1], stored, planned_handle(where, index))

        run = under_way().add(settings, keys, group, workflow)
        try:
            job_id = await under_way().submit(run, note_place)
        except CancelledGroupError:
            raise TaskCancelledError from None
        await database.note_job(*keys[-1], stored, job_id)
        return {_JOB_ID: job_id}

    async def poll(self, task_group_metadata: Mapping[str, Any], data: Any) -> Any:
        """Wait for the end of a task group.

        Args:
            task_group_metadata: Its dispatch, its number and those of its nodes.
            data: What `send` returned.

        Returns:
            What `receive` takes.

        Raises:
            TaskCancelledError: Its job was terminated, from wherever.
            NotImplementedError: Covalent's own executor runs it and will tell by itself.
            FarcallError: Its end cannot be known; the text names the error and says why.
        """
        if _DELEGATED in data:
            raise NotImplementedError  # by which Covalent means: you will be told
        keys = _keys(task_group_metadata)
        run = under_way().find(keys[0])
        try:
            with telling():
                cancelled = run is not None and await _shown(run, run.was_cancelled())
        except Exception:  # Covalent ends the nodes, and does not ask for them again
            under_way().forget(keys, ended=False)
            raise
        if cancelled:
            raise TaskCancelledError
        return data

    async def receive(self, task_group_metadata: Mapping[str, Any], data: Any) -> list[TaskUpdate]:
        """Return how nodes of a task group ended, with value, output and error.

        Args:
            task_group_metadata: Their dispatch, their task group and their numbers.
            data: What `poll` returned; None for nodes that were cancelled; of a request to
                Covalent's ``PUT .../electrons/{node}/job`` the body, and then a node whose job was
                submitted by an earlier process of the server is waited for, and one without a job
                is started again.

        Raises:
            FarcallError: AWS refused a call, there is no room for what came, or the dispatch's
                state is lost; the text names the error and says which.
        """
        if isinstance(data, dict) and _STATUS in data:
            return list(await _local_executor().receive(task_group_metadata, data))
        group = task_group_metadata["task_group_id"]
        with telling():
            updates = [await self._receive(key, group, data) for key in _keys(task_group_metadata)]
        return [update for update in updates if update is not None]

    async def cancel(self, task_metadata: Mapping[str, Any], job_handle: str | None) -> bool:
        """End a task, whatever state it is in.

        The task's process gets SIGTERM, 20 seconds to clean up, then SIGKILL; what it wrote up to
        then is kept.

        Args:
            task_metadata: Its dispatch and its node's number.
            job_handle: The job's ID; None if it has none yet.

        Returns:
            Whether something is being ended, or will not be begun.
        """
        key = task_metadata["dispatch_id"], task_metadata["node_id"]
        run = under_way().find(key)
        settings = run.settings if run else self.settings
        return await under_way().cancel(settings, key, job_handle)

    async def _receive(self, key: Key, group: int, data: Any) -> TaskUpdate | None:
        """Return how one node ended; None where others will tell, or it begins again."""
        collected = data.get(_COLLECTED) if isinstance(data, dict) else None
        if isinstance(collected, bytes):  # which no request's body can hold
            return await _update(key, RESULT_STATUS.COMPLETED, {"output": collected})
        run = under_way().find(key)
        if run is None and data is None:
            return await _update(key, RESULT_STATUS.CANCELLED, {})
        if run is None:
            run = await self._rejoin(key, group)
        elif data is not None and not (isinstance(data, dict) and _JOB_ID in data):
            return None  # it is under way, and `poll` will tell
        if run is None:
            return None
        try:
            end = (await _shown(run, run.ends()))[key[1]]
            await self._append_logs(key[0], end)
            update = await _tell(key, end)
        except BaseException:  # Covalent ends the node, or may be asked to look again
            under_way().forget([key], ended=False)
            raise
        under_way().forget([key])
        await run.take(key[1])
        return update

    async def _rejoin(self, key: Key, group: int) -> GroupRun | None:
        """Join a node's job again, or have a node without one started again."""
        await restart.look_for_orphans(key[0])
        if restart.has_ended(*key):
            return None
        stored = await asyncio.to_thread(database.read_job, *key)
        job_id = await under_way().find_job(self.settings, stored.handle)
        if job_id is not None:
            if job_id != stored.handle:
                await database.note_job(*key, self.stored, job_id)
            if stored.is_cancelled:
                await under_way().note_cancelled(self.settings, job_id)
            return under_way().adopt(self.settings, key, job_id)
        await restart.start_again(key[0], group)
        return None

    async def _append_logs(self, dispatch_id: str, end: NodeEnd) -> None:
        if not self.log_stdout and not self.log_stderr:
            return
        texts = [each.decode(errors="replace") for each in (end.stdout, end.stderr)]
        folder = get_config("dispatcher.results_dir")
        files = (self.log_stdout, self.log_stderr)
        await self.write_streams_to_file(texts, files, dispatch_id, folder)


async def _shown(run: GroupRun, wait: Awaitable[T]) -> T:
    """Wait for a run's end; its nodes show meanwhile what keeps it from being known."""
    run.tell = lambda text: database.note_trouble(run.keys, text)
    try:
        return await wait
    finally:
        await database.trouble_noted()


def _keys(task_group_metadata: Mapping[str, Any]) -> list[Key]:
    dispatch_id = task_group_metadata["dispatch_id"]
    return [(dispatch_id, node) for node in task_group_metadata["node_ids"]]


def _read(dispatch_id: str, task_specs: Sequence[TaskSpec]) -> tuple[TaskGroup, Workflow]:
    nodes = [Node(spec.electron_id, spec.args, spec.kwargs) for spec in task_specs]
    numbers = {n for node in nodes for n in (node.number, *node.args, *node.kwargs.values())}
    found = database.stored(dispatch_id, numbers)
    return assets.read_group(nodes, found.files), found.workflow


async def _delegate(
    task_specs: Sequence[TaskSpec],
    resources: ResourceMap,
    task_group_metadata: Mapping[str, Any],
) -> dict[str, Any]:
    """Leave a task group to Covalent's own executor beside the server."""
    await _local_executor().send(task_specs, resources, task_group_metadata)
    return {_DELEGATED: True}


def _local_executor() -> Any:
    from covalent.executor import _executor_manager  # which loads this module

    executor = _executor_manager.get_executor("local")
    executor._init_runtime(loop=asyncio.get_running_loop(), cancel_pool=None)
    return executor


async def _tell(key: Key, end: NodeEnd) -> TaskUpdate:
    """Give Covalent what came of a node."""
    # Covalent's client cannot read a result with other bytes than UTF-8 in one of these.
    found: dict[str, Buffer] = {
        "stdout": end.stdout.decode(errors="replace").encode(),
        "stderr": end.stderr.decode(errors="replace").encode(),
        "error": as_utf8(end.error),
    }
    status = RESULT_STATUS.CANCELLED if end.cancelled else RESULT_STATUS.FAILED
    if end.value is not None:
        status = RESULT_STATUS.COMPLETED
        found["output"] = end.value
    return await _update(key, status, found)


async def _update(key: Key, status: Any, found: Mapping[str, Buffer]) -> TaskUpdate:
    written = await asyncio.to_thread(database.write_assets, *key, found) if found else {}
    return TaskUpdate(dispatch_id=key[0], node_id=key[1], status=status, assets=written)
