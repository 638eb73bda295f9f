"""Covalent's direct path, for callers that drive one task from its submission to its end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from covalent._shared_files import TaskRuntimeError
from covalent._shared_files.exceptions import TaskCancelledError
from covalent._workflow.transportable_object import TransportableObject

from farcall.covalent import assets
from farcall.covalent.assets import TaskGroup
from farcall.covalent.group_run import CancelledGroupError
from farcall.covalent.node_results import telling
from farcall.covalent.plugin import database
from farcall.covalent.plugin.options import ConfiguredExecutor
from farcall.covalent.task_groups import under_way
from farcall.engine.session import session_for
from farcall.model.errors import FarcallError
from farcall_runtime.electron import Node


class DirectExecutor(ConfiguredExecutor):
    """What the documented plugin interface has beside the managed path."""

    async def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        task_metadata: Mapping[str, Any],
    ) -> Any:
        """Run one task from its submission to its end.

        Returns:
            The archive of its value.

        Raises:
            TaskCancelledError: Its job was terminated.
            TaskRuntimeError: It failed; what it says is in its stderr too.
            SettingsError: An option is wrong, or names what does not exist.
            SubmissionError: Batch refused the job.
            ServiceError: AWS refused a call.
        """
        key = task_metadata["dispatch_id"], task_metadata["node_id"]
        by_server = "_send_queue" in self.__dict__
        group = await asyncio.to_thread(_from_objects, function, args, kwargs, key[1])
        workflow = None
        if by_server:
            workflow = (await asyncio.to_thread(database.stored, key[0], key[1:])).workflow
        under_way().add(self.settings, [key], group, workflow)
        job_id = await self.submit_task(task_metadata, {})
        if by_server:
            await database.note_job(*key, self.stored, job_id)
        value, stdout, stderr = await self.query_result(task_metadata)
        for text, stream in ((stdout, self.task_stdout), (stderr, self.task_stderr)):
            if stream is not None:
                stream.write(text)
        return value

    async def _execute(self, *args: Any, **kwargs: Any) -> Any:
        """Do what the dispatcher calls, which keeps nothing of an error but its text."""
        with telling():
            return await super()._execute(*args, **kwargs)

    async def setup(self, task_metadata: Mapping[str, Any]) -> None:
        """Open the clients, and check whether what the options name exists.

        Raises:
            SettingsError: It does not.
            ServiceError: AWS refused a call.
        """
        settings = self.settings
        await (await session_for(settings)).submitter(settings)

    async def teardown(self, task_metadata: Mapping[str, Any]) -> None:
        """Do nothing: all tasks share the clients, which close with the event loop."""

    async def submit_task(
        self, task_metadata: Mapping[str, Any], identity: Mapping[str, Any]
    ) -> str:
        """Submit the task that `run` has made ready.

        Args:
            task_metadata: Its dispatch and its node's number.
            identity: Not needed: the account is nothing a job's request has to name.

        Returns:
            The job's ID.

        Raises:
            TaskCancelledError: It was cancelled meanwhile.
            FarcallError: There is no such task.
            SubmissionError: Batch refused the job.
            ServiceError: AWS refused a call.
        """
        key = task_metadata["dispatch_id"], task_metadata["node_id"]
        run = under_way().find(key)
        if run is None or run.group is None:
            raise FarcallError(
                f"node {key[1]} of dispatch {key[0]} was not made ready; run() does that"
            )
        try:
            return await under_way().submit(run)
        except CancelledGroupError:
            raise TaskCancelledError from None

    async def query_result(self, task_metadata: Mapping[str, Any]) -> tuple[Any, str, str]:
        """Wait for a task's end.

        Returns:
            The archive of its value, its stdout and its stderr.

        Raises:
            TaskCancelledError: Its job was terminated.
            TaskRuntimeError: It failed.
            FarcallError: There is no such task.
            ServiceError: AWS refused a call.
        """
        key = task_metadata["dispatch_id"], task_metadata["node_id"]
        run = under_way().find(key)
        if run is None:
            raise FarcallError(f"no job of node {key[1]} of dispatch {key[0]} is under way here")
        try:
            end = (await run.ends())[key[1]]
        finally:
            under_way().forget([key])
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
        """Ask Batch for a job.

        Returns:
            Its status in Batch's words, and its exit code, -1 while it has none.

        Raises:
            JobLostError: Batch does not know the job.
            ServiceError: Batch refused the call.
        """
        session = await session_for(self.settings)
        detail = await session.describe(job_id)
        return detail.status.value, -1 if detail.exit_code is None else detail.exit_code


def _from_objects(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], number: int
) -> TaskGroup:
    """Make a task group of what Covalent's dispatcher hands to `AWSBatchExecutor.run`."""
    if not isinstance(function, functools.partial) or len(function.args) != 3:
        raise FarcallError(
            f"run() was called with {function!r}; Covalent's dispatcher calls it with an "
            "electron's wrapper. To run a plain function use farcall.BatchExecutor"
        )
    transportable, before, after = function.args
    inputs = {index: value.serialize() for index, value in enumerate(args)}
    names = {name: len(args) + index for index, name in enumerate(kwargs)}
    inputs |= {names[name]: value.serialize() for name, value in kwargs.items()}
    hooks = assets.hooks_of(
        [[part.get_serialized() for part in hook[:3]] + [hook[3]] for hook in before],
        [[part.get_serialized() for part in hook[:3]] + [hook[3]] for hook in after],
    )
    node = Node(number, range(len(args)), names)
    return assets.group_of(node, transportable.serialize(), hooks, inputs)
