"""Covalent's managed path: assets stay in files; output and errors are returned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
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
from farcall.covalent.task_groups import groups_of_loop, planned_handle
from farcall.model.errors import FarcallError
from farcall.model.workflows import Workflow
from farcall_runtime.contract import Location
from farcall_runtime.electron import Node
from farcall_runtime.envelope import Buffer

T = TypeVar("T")

_JOB_ID, _COLLECTED, _DELEGATED, _STATUS = "job_id", "collected", "delegated", "status"


class ManagedExecutor(ConfiguredExecutor):
    """Methods that Covalent 0.240 calls: `send`, `poll`, `receive` and `cancel`."""

    SUPPORTS_MANAGED_EXECUTION = True

    def get_upload_uri(self, task_group_metadata: Mapping[str, Any], object_key: str) -> str:
        """Return an empty upload URI, because `send` reads Covalent's own files."""
        groups_of_loop().debouncer.announce()
        return ""

    async def send(
        self,
        task_specs: Sequence[TaskSpec],
        resources: ResourceMap,
        task_group_metadata: Mapping[str, Any],
    ) -> Any:
        """Submit a task group as one job.

        Args:
            task_specs: The group's nodes.
            resources: Ignored, because no assets are copied.
            task_group_metadata: Dispatch ID, group number and node numbers.

        Returns:
            The argument for `poll`.

        Raises:
            TaskCancelledError: The group was cancelled meanwhile.
            FarcallError: The submission failed; the text names the error and the reason.
        """
        with telling(TaskCancelledError):
            return await self._send(task_specs, resources, task_group_metadata)

    async def _send(
        self,
        task_specs: Sequence[TaskSpec],
        resources: ResourceMap,
        task_group_metadata: Mapping[str, Any],
    ) -> Any:
        keys = _keys(task_group_metadata)
        group, workflow = await asyncio.to_thread(_read, keys[0][0], task_specs)
        if any(each.is_for_server for each in group.electrons):
            return await _delegate(task_specs, resources, task_group_metadata)
        if group.is_collected:
            return {_COLLECTED: await asyncio.to_thread(group.collect)}
        settings, stored = self.settings, self.stored

        async def record_place(where: Location, index: int) -> None:
            await database.record_job(*keys[-1], stored, planned_handle(where, index))

        run = groups_of_loop().add(settings, keys, group, workflow)
        try:
            job_id = await groups_of_loop().submit(run, record_place)
        except CancelledGroupError:
            raise TaskCancelledError from None
        if job_id:  # not from the cache
            await database.record_job(*keys[-1], stored, job_id)
        return {_JOB_ID: job_id}

    async def poll(self, task_group_metadata: Mapping[str, Any], data: Any) -> Any:
        """Wait until a task group finishes.

        Args:
            task_group_metadata: Dispatch ID, group number and node numbers.
            data: The return value of `send`.

        Returns:
            The argument for `receive`.

        Raises:
            TaskCancelledError: The job was terminated, from anywhere.
            NotImplementedError: Covalent's own executor runs the group and reports its end itself.
            FarcallError: The result cannot be determined; the text names the error and the reason.
        """
        if _DELEGATED in data:
            raise NotImplementedError  # signals Covalent that the status is reported separately
        keys = _keys(task_group_metadata)
        run = groups_of_loop().find(keys[0])
        try:
            with telling():
                cancelled = run is not None and await _shown(run, run.was_cancelled())
        except Exception:  # Covalent fails the nodes and does not request them again
            groups_of_loop().forget(keys, ended=False)
            raise
        if cancelled:
            raise TaskCancelledError
        return data

    async def receive(self, task_group_metadata: Mapping[str, Any], data: Any) -> list[TaskUpdate]:
        """Return the results of a task group's nodes, with output and errors.

        Args:
            task_group_metadata: Dispatch ID, group number and node numbers.
            data: The return value of `poll`; None for nodes that were cancelled. It can also be
                the body of a request to Covalent's ``PUT .../electrons/{node}/job``. In that case,
                the method waits for a node whose job was submitted by an earlier process of the
                server, and restarts a node that has no job.

        Raises:
            FarcallError: An AWS call failed, the disk is full, or the dispatch's state is lost;
                the text names the error and the reason.
        """
        if isinstance(data, dict) and _STATUS in data:
            return list(await _local_executor().receive(task_group_metadata, data))
        group = task_group_metadata["task_group_id"]
        with telling():
            updates = [await self._receive(key, group, data) for key in _keys(task_group_metadata)]
        return [update for update in updates if update is not None]

    async def cancel(self, task_metadata: Mapping[str, Any], job_handle: str | None) -> bool:
        """Cancel a task in any state.

        The task's process gets SIGTERM, 20 seconds to clean up, then SIGKILL. Its output up to
        then is kept.

        Args:
            task_metadata: Dispatch ID and node number.
            job_handle: The job's ID; None if it has none yet.

        Returns:
            Whether a job is being terminated or will not be started.
        """
        key = task_metadata["dispatch_id"], task_metadata["node_id"]
        run = groups_of_loop().find(key)
        settings = run.settings if run else self.settings
        return await groups_of_loop().cancel(settings, key, job_handle)

    async def _receive(self, key: Key, group: int, data: Any) -> TaskUpdate | None:
        """Return one node's result; None if reported elsewhere or if the node restarts."""
        collected = data.get(_COLLECTED) if isinstance(data, dict) else None
        if isinstance(collected, bytes):  # a request's body cannot contain bytes
            return await _update(key, RESULT_STATUS.COMPLETED, {"output": collected})
        run = groups_of_loop().find(key)
        if run is None and data is None:
            return await _update(key, RESULT_STATUS.CANCELLED, {})
        if run is None:
            run = await self._rejoin(key, group)
        elif data is not None and not (isinstance(data, dict) and _JOB_ID in data):
            return None  # it is running, and `poll` reports its end
        if run is None:
            return None
        try:
            end = (await _shown(run, run.ends()))[key[1]]
            await self._append_logs(key[0], end)
            update = await _update_of(key, end)
        except BaseException:  # Covalent fails the node, or may retry
            groups_of_loop().forget([key], ended=False)
            raise
        groups_of_loop().forget([key])
        await run.take(key[1])
        return update

    async def _rejoin(self, key: Key, group: int) -> GroupRun | None:
        """Wait for a node's existing job, or restart a node that has none."""
        await restart.find_orphans(key[0])
        if restart.has_ended(*key):
            return None
        stored = await asyncio.to_thread(database.read_job, *key)
        job_id = await groups_of_loop().find_job(self.settings, stored)
        if job_id is not None:
            if job_id != stored:
                await database.record_job(*key, self.stored, job_id)
            return groups_of_loop().adopt(self.settings, key, job_id)
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
    """Wait until a run finishes; its nodes show why their status is unknown meanwhile."""
    run.on_trouble = lambda text: database.record_trouble(run.keys, text)
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
    records = database.stored(dispatch_id, numbers)
    group = assets.read_group(nodes, records.files)
    return with_projects(group, records.workflow), records.workflow


def with_projects(group: TaskGroup, workflow: Workflow) -> TaskGroup:
    """Return a group with the projects that the client stored in the outermost lattice.

    Raises:
        FarcallError: A project is missing.
    """
    if not group.needed_projects:
        return group
    projects = assets.read_projects(database.lattice_function(workflow.dispatch))
    if group.needed_projects - projects.keys():
        raise FarcallError(
            f"dispatch {workflow.dispatch} has no project files for {group.name}. "
            "Dispatch the workflow again."
        )
    return replace(group, projects=projects)


async def _delegate(
    task_specs: Sequence[TaskSpec],
    resources: ResourceMap,
    task_group_metadata: Mapping[str, Any],
) -> dict[str, Any]:
    """Delegate a task group to Covalent's own executor on the server."""
    await _local_executor().send(task_specs, resources, task_group_metadata)
    return {_DELEGATED: True}


def _local_executor() -> Any:
    from covalent.executor import _executor_manager  # a circular import

    executor = _executor_manager.get_executor("local")
    executor._init_runtime(loop=asyncio.get_running_loop(), cancel_pool=None)
    return executor


async def _update_of(key: Key, end: NodeEnd) -> TaskUpdate:
    # Covalent's client cannot read a result if one of these is not valid UTF-8.
    contents: dict[str, Buffer] = {
        "stdout": end.stdout.decode(errors="replace").encode(),
        "stderr": end.stderr.decode(errors="replace").encode(),
        "error": as_utf8(end.error),
    }
    status = RESULT_STATUS.CANCELLED if end.cancelled else RESULT_STATUS.FAILED
    if end.value is not None:
        status = RESULT_STATUS.COMPLETED
        contents["output"] = end.value
    return await _update(key, status, contents)


async def _update(key: Key, status: Any, contents: Mapping[str, Buffer]) -> TaskUpdate:
    written = await asyncio.to_thread(database.write_assets, *key, contents) if contents else {}
    return TaskUpdate(dispatch_id=key[0], node_id=key[1], status=status, assets=written)
