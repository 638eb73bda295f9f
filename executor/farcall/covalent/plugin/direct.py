"""Covalent's direct path, for callers that run one task from start to result."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from covalent._shared_files import TaskRuntimeError
from covalent._shared_files.exceptions import TaskCancelledError
from covalent._workflow.transportable_object import TransportableObject

from farcall.covalent import assets
from farcall.covalent.assets import Electron, TaskGroup
from farcall.covalent.group_run import CancelledGroupError
from farcall.covalent.node_results import telling
from farcall.covalent.plugin import database
from farcall.covalent.plugin.managed import with_projects
from farcall.covalent.plugin.options import ConfiguredExecutor
from farcall.covalent.task_groups import groups_of_loop
from farcall.engine.session import session_for
from farcall.model.errors import FarcallError
from farcall_runtime import archive
from farcall_runtime.electron import Hook, Node


class DirectExecutor(ConfiguredExecutor):
    """Methods of the documented plugin interface that the managed path does not use."""

    async def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        task_metadata: Mapping[str, Any],
    ) -> Any:
        """Run one task from submission to result.

        Returns:
            The archive of the task's result.

        Raises:
            TaskCancelledError: The job was terminated.
            TaskRuntimeError: The task failed; the message is also in its stderr.
            SettingsError: An option is wrong or names a resource that does not exist.
            SubmissionError: Batch rejected the job.
            ServiceError: An AWS call failed.
        """
        key = task_metadata["dispatch_id"], task_metadata["node_id"]
        by_server = "_send_queue" in self.__dict__
        group = await asyncio.to_thread(_from_objects, function, args, kwargs, key[1])
        workflow = None
        if by_server:
            workflow = (await asyncio.to_thread(database.stored, key[0], key[1:])).workflow
            group = await asyncio.to_thread(with_projects, group, workflow)
        groups_of_loop().add(self.settings, [key], group, workflow)
        job_id = await self.submit_task(task_metadata, {})
        if by_server:
            await database.record_job(*key, self.stored, job_id)
        value, stdout, stderr = await self.query_result(task_metadata)
        for text, stream in ((stdout, self.task_stdout), (stderr, self.task_stderr)):
            if stream is not None:
                stream.write(text)
        return value

    async def _execute(self, *args: Any, **kwargs: Any) -> Any:
        """Run a task for the dispatcher, which keeps only an error's text."""
        with telling():
            return await super()._execute(*args, **kwargs)

    async def setup(self, task_metadata: Mapping[str, Any]) -> None:
        """Open the clients and check that the resources named in the options exist.

        Raises:
            SettingsError: A resource does not exist.
            ServiceError: An AWS call failed.
        """
        settings = self.settings
        await (await session_for(settings)).submitter(settings)

    async def teardown(self, task_metadata: Mapping[str, Any]) -> None:
        """No-op: all tasks share the clients, which close with the event loop."""

    async def submit_task(
        self, task_metadata: Mapping[str, Any], identity: Mapping[str, Any]
    ) -> str:
        """Submit the task that `run` has prepared.

        Args:
            task_metadata: Dispatch ID and node number.
            identity: Ignored, because a job request does not name the account.

        Returns:
            The job's ID.

        Raises:
            TaskCancelledError: The task was cancelled meanwhile.
            FarcallError: There is no such task.
            SubmissionError: Batch rejected the job.
            ServiceError: An AWS call failed.
        """
        key = task_metadata["dispatch_id"], task_metadata["node_id"]
        run = groups_of_loop().find(key)
        if run is None or run.group is None:
            raise FarcallError(
                f"node {key[1]} of dispatch {key[0]} was not prepared. Call run(), which "
                "prepares it."
            )
        try:
            return await groups_of_loop().submit(run)
        except CancelledGroupError:
            raise TaskCancelledError from None

    async def query_result(self, task_metadata: Mapping[str, Any]) -> tuple[Any, str, str]:
        """Wait until a task finishes.

        Returns:
            The archive of the task's result, its stdout and its stderr.

        Raises:
            TaskCancelledError: The job was terminated.
            TaskRuntimeError: The task failed.
            FarcallError: There is no such task.
            ServiceError: An AWS call failed.
        """
        key = task_metadata["dispatch_id"], task_metadata["node_id"]
        run = groups_of_loop().find(key)
        if run is None:
            raise FarcallError(f"this process runs no job of node {key[1]} of dispatch {key[0]}")
        try:
            end = (await run.ends())[key[1]]
        finally:
            groups_of_loop().forget([key])
        stdout, stderr = (each.decode(errors="replace") for each in (end.stdout, end.stderr))
        if end.cancelled:
            raise TaskCancelledError(end.error)
        if end.value is None:
            if self.task_stdout is not None:
                self.task_stdout.write(stdout)
                self.task_stderr.write(f"{stderr}{end.error}\n")
            raise TaskRuntimeError(end.error)
        value = TransportableObject.deserialize(bytes(end.value))
        await run.take(key[1])
        return value, stdout, stderr

    async def get_status(self, job_id: str) -> tuple[str, int]:
        """Return a job's Batch status and exit code.

        Returns:
            Batch's status, and the exit code, which is -1 until the job has one.

        Raises:
            JobLostError: Batch does not know the job.
            ServiceError: Batch rejected the call.
        """
        session = await session_for(self.settings)
        detail = await session.describe(job_id)
        return detail.status.value, -1 if detail.exit_code is None else detail.exit_code


def _from_objects(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], number: int
) -> TaskGroup:
    """Build a task group from the dispatcher's arguments to `AWSBatchExecutor.run`."""
    if not isinstance(function, functools.partial) or len(function.args) != 3:
        raise FarcallError(
            f"run() was called with {function!r}, but only Covalent's dispatcher calls it, "
            "with an electron's wrapper. Use farcall.BatchExecutor to run a plain function."
        )
    transportable, before, after = function.args
    inputs = {index: value.serialize() for index, value in enumerate(args)}
    names = {name: len(args) + index for index, name in enumerate(kwargs)}
    inputs |= {names[name]: value.serialize() for name, value in kwargs.items()}
    node = Node(number, range(len(args)), names)
    only = Electron(node, archive.parse(transportable.serialize()), _hooks(before), _hooks(after))
    return TaskGroup([only], {number: archive.parse(data) for number, data in inputs.items()})


def _hooks(given: Sequence[Any]) -> list[Hook]:
    return [
        assets.hook_of(
            function.get_serialized(), args.get_serialized(), kwargs.get_serialized(), keyword
        )
        for function, args, kwargs, keyword in given
    ]
