"""The Covalent door: ``executor="awsbatch"`` and ``ct.executor.AWSBatchExecutor``.

Covalent takes the class from the module that the entry point names, and the module's last name for
the plugin's (covalent/executor/__init__.py, 0.240).
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from covalent._shared_files import TaskRuntimeError
from covalent._shared_files.config import get_config
from covalent._shared_files.exceptions import TaskCancelledError
from covalent._shared_files.util_classes import RESULT_STATUS
from covalent._workflow.transportable_object import TransportableObject
from covalent.executor.base import AsyncBaseExecutor
from covalent.executor.schemas import ResourceMap, TaskSpec, TaskUpdate

from farcall import assets, covalent_state
from farcall.assets import TaskGroup
from farcall.electrons import CancelledGroupError, Key, Run, desk
from farcall.errors import FarcallError, JobLostError, SettingsError
from farcall.nodes import NodeEnd
from farcall.session import session_for
from farcall.settings import Place, Settings
from farcall_runtime.electron import Node
from farcall_runtime.envelope import Buffer

_log = logging.getLogger("farcall")

EXECUTOR_PLUGIN_NAME = "AWSBatchExecutor"

_SECTION = "executors.awsbatch"
_LEFT_TO_AWS = ("profile", "region", "credentials")
"""Options that AWS's own configuration decides where the section has them empty."""

_LOG_OPTIONS = ("log_stdout", "log_stderr")
_FOREIGN_IMAGES = "public.ecr.aws/covalent/"
_COLLECTED, _DELEGATED, _STATUS = "collected", "delegated", "status"


def _plugin_defaults() -> dict[str, Any]:
    """Return what Covalent writes into the section where the user has not."""
    defaults: dict[str, Any] = dict.fromkeys((*_LEFT_TO_AWS, *_LOG_OPTIONS), "")
    for name, option in Settings.model_fields.items():
        if name not in _LEFT_TO_AWS and option.default is not None:  # TOML has no word for None
            defaults[name] = option.default
    try:
        section = get_config(_SECTION)
    except KeyError:
        return defaults
    # Covalent takes "" for a gap to be filled (covalent/_shared_files/config.py); here it says
    # that there is no role, or no log group of one's own.
    return {**defaults, **{name: "" for name, value in section.items() if value == ""}}


_EXECUTOR_PLUGIN_DEFAULTS = _plugin_defaults()
covalent_state.keep_state_over_restarts()


class AWSBatchExecutor(AsyncBaseExecutor):  # type: ignore[misc]  # Covalent is not typed
    """Runs electrons as AWS Batch jobs.

    ::

        executor = ct.executor.AWSBatchExecutor(vcpu=2, memory=3.75, time_limit=300)

        @ct.electron(executor=executor)        # or executor="awsbatch"
        def train_svm(data, C, gamma): ...

    An option is looked up in the arguments, then in ``FARCALL_<OPTION>``, then in the section
    ``[executors.awsbatch]`` of Covalent's configuration. Options are attributes, which may be set
    before the dispatch.

    Args:
        log_stdout: File that a task's stdout is appended to beside Covalent's own; relative to the
            dispatch's folder of results.
        log_stderr: The same for stderr.
        **options: See `farcall.Settings`.

    Raises:
        SettingsError: A value is wrong, or an option is unknown.
    """

    SUPPORTS_MANAGED_EXECUTION = True

    def __init__(
        self, log_stdout: str | None = None, log_stderr: str | None = None, **options: Any
    ) -> None:
        section = dict(get_config(_SECTION))
        logs = {"log_stdout": log_stdout, "log_stderr": log_stderr}
        if {**options, **logs} == section:  # made by Covalent, for its name alone
            options, logs = {}, {}
        given = {name: value for name, value in options.items() if value is not None}
        for name in _LOG_OPTIONS:
            logs[name] = logs.get(name) or section.pop(name, "")
        left = [name for name in _LEFT_TO_AWS if section.get(name) == ""]
        section = {name: value for name, value in section.items() if name not in left}
        settings = _resolve(section, given)
        _refuse_foreign_image(settings)
        super().__init__(**logs)
        self.__dict__.update(settings.model_dump(mode="json"))

    # --- the managed path ---------------------------------------------------------------------

    def get_upload_uri(self, task_group_metadata: Mapping[str, Any], object_key: str) -> str:
        """Return where Covalent is to copy one of a task group's assets to.

        It is to copy none: `send` reads them where they lie.
        """
        desk().gate.announce()
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
            SettingsError: An option is wrong, or names what does not exist.
            SubmissionError: Batch refused the job.
            ServiceError: AWS refused a call.
        """
        settings = self._settings()
        keys = _keys(task_group_metadata)
        group = await asyncio.to_thread(_read, keys[0][0], task_specs)
        electrons = group.electrons
        if any(each.is_sublattice for each in electrons):
            return await _delegate(task_specs, resources, task_group_metadata)
        if len(electrons) == 1 and electrons[0].is_collection:
            value = await asyncio.to_thread(group.collect)
            _collections[keys[0]] = value
            return {_COLLECTED: True}
        try:
            run = await desk().submit(settings, keys, group)
        except CancelledGroupError:
            raise TaskCancelledError from None
        await self._store_handle(run)
        return {"job_id": run.job.id if run.job else None}

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
            ServiceError: AWS refused a call.
        """
        if _DELEGATED in data:
            raise NotImplementedError
        run = desk().find(_keys(task_group_metadata)[0])
        if run is not None and await run.was_cancelled():
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
            ServiceError: AWS refused a call.
        """
        if isinstance(data, dict) and _STATUS in data:
            return list(await _local_executor().receive(task_group_metadata, data))
        updates = []
        for key in _keys(task_group_metadata):
            if key in _collections:
                output = {"output": _collections.pop(key)}
                updates.append(await _update(key, RESULT_STATUS.COMPLETED, output))
                continue
            run = desk().find(key)
            if data is not None and "job_id" not in data:
                run = await self._rejoin(key, task_group_metadata["task_group_id"])
                if run is None:
                    continue
            if run is None:
                updates.append(await _update(key, RESULT_STATUS.CANCELLED, {}))
                continue
            end = (await run.ends())[key[1]]
            await self._append_logs(key[0], end)
            updates.append(await _tell(key, end))
            desk().forget([key])
            run.take(key)
        return updates

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
        return await desk().cancel(self._settings(), key, job_handle)

    # --- the direct path ----------------------------------------------------------------------

    async def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        task_metadata: Mapping[str, Any],
    ) -> Any:
        """Run one task from its submission to its end.

        Args:
            function: What Covalent's dispatcher makes of an electron.
            args: Archives of its positional arguments.
            kwargs: Archives of its keyword arguments.
            task_metadata: Its dispatch and its node's number.

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
        _prepared[key] = await asyncio.to_thread(_from_objects, function, args, kwargs, key[1])
        run = await self._submit(key)
        await self._store_handle(run)
        value, stdout, stderr = await self.query_result(task_metadata)
        for text, stream in ((stdout, self.task_stdout), (stderr, self.task_stderr)):
            if stream is not None:
                stream.write(text)
        return value

    async def setup(self, task_metadata: Mapping[str, Any]) -> None:
        """Open the clients, and look whether what the options name exists.

        Raises:
            SettingsError: It does not.
            ServiceError: AWS refused a call.
        """
        settings = self._settings()
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
            FarcallError: There is no such task.
            SubmissionError: Batch refused the job.
            ServiceError: AWS refused a call.
        """
        run = await self._submit((task_metadata["dispatch_id"], task_metadata["node_id"]))
        return run.job.id if run.job else ""

    async def query_result(self, task_metadata: Mapping[str, Any]) -> tuple[Any, str, str]:
        """Wait for a task's end.

        Args:
            task_metadata: Its dispatch and its node's number.

        Returns:
            The archive of its value, its stdout and its stderr.

        Raises:
            TaskCancelledError: Its job was terminated.
            TaskRuntimeError: It failed.
            FarcallError: There is no such task.
            ServiceError: AWS refused a call.
        """
        key = task_metadata["dispatch_id"], task_metadata["node_id"]
        run = desk().find(key)
        if run is None:
            raise FarcallError(f"no job of node {key[1]} of dispatch {key[0]} is under way here")
        end = (await run.ends())[key[1]]
        desk().forget([key])
        stdout, stderr = (each.decode(errors="replace") for each in (end.stdout, end.stderr))
        if end.cancelled:
            raise TaskCancelledError(end.error)
        if end.value is None:
            if self.task_stdout is not None:
                self.task_stdout.write(stdout)
                self.task_stderr.write(f"{stderr}{end.error}\n")
            raise TaskRuntimeError(end.error)
        value = TransportableObject.deserialize(bytes(end.value))
        run.take(key)
        return value, stdout, stderr

    async def get_status(self, job_id: str) -> tuple[str, int]:
        """Ask Batch for a job.

        Returns:
            Its status in Batch's words, and its exit code, -1 while it has none.

        Raises:
            JobLostError: Batch does not know the job.
            ServiceError: Batch refused the call.
        """
        session = await session_for(self._settings())
        detail = await session.detail(job_id)
        if detail is None:
            raise JobLostError(
                f"Batch does not know job {job_id} in {session.aws.region}; is it the right "
                "region and account, and less than some days old?",
                job_id=job_id,
            )
        return detail.status.value, -1 if detail.exit_code is None else detail.exit_code

    def boto_session_options(self) -> dict[str, str]:
        """Return the keyword arguments for a ``boto3.Session`` of the same account and region."""
        settings = self._settings()
        options = {"region_name": settings.region}
        if settings.profile != Settings.model_fields["profile"].default:
            options["profile_name"] = settings.profile
        return options

    # --- parts --------------------------------------------------------------------------------

    def _settings(self) -> Settings:
        """Return the options as they are now; Covalent fills the attributes from JSON."""
        values = {name: self.__dict__[name] for name in Settings.model_fields}
        for name in (*_LEFT_TO_AWS, "endpoint_url"):
            if values[name] == Settings.model_fields[name].get_default(call_default_factory=True):
                del values[name]
        return _resolve({}, values)

    async def _submit(self, key: Key) -> Run:
        group = _prepared.pop(key, None)
        if group is None:
            raise FarcallError(
                f"node {key[1]} of dispatch {key[0]} was not made ready; run() does that"
            )
        try:
            return await desk().submit(self._settings(), [key], group)
        except CancelledGroupError:
            raise TaskCancelledError from None

    async def _store_handle(self, run: Run) -> None:
        """Tell Covalent the job's ID, for a cancel or a restart; the job goes on without, too."""
        if run.job is None or "_send_queue" not in self.__dict__:  # not called by Covalent
            return
        try:
            await covalent_state.store_job_handle(*run.keys[0], run.job.id)
        except Exception as error:  # Covalent's database may be locked, or its disk full
            _log.warning("job %s could not be noted in Covalent: %r", run.job.id, error)

    async def _rejoin(self, key: Key, group: int) -> Run | None:
        """Join a node's job again, or have a node without one started again."""
        if desk().find(key) is not None:
            return None
        job_id = await asyncio.to_thread(covalent_state.read_job_handle, *key)
        if job_id is not None:
            return desk().adopt(self._settings(), key, job_id)
        await covalent_state.start_again(key[0], group, key[1])
        return None

    async def _append_logs(self, dispatch_id: str, end: NodeEnd) -> None:
        if not self.log_stdout and not self.log_stderr:
            return
        texts = [each.decode(errors="replace") for each in (end.stdout, end.stderr)]
        folder = get_config("dispatcher.results_dir")
        files = (self.log_stdout, self.log_stderr)
        await self.write_streams_to_file(texts, files, dispatch_id, folder)


_collections: dict[Key, bytes] = {}
"""Values of nodes that were no job."""

_prepared: dict[Key, TaskGroup] = {}
"""Tasks between `AWSBatchExecutor.run` and `AWSBatchExecutor.submit_task`."""


def _resolve(section: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    """Return the options in force; Covalent makes several executors for each task."""
    environment = [(n, v) for n, v in os.environ.items() if n.startswith(("AWS_", "FARCALL_"))]
    try:
        options = json.dumps([section, given, environment])
    except TypeError:  # a value that is none of TOML's; the settings say which
        return Settings.within(dict(section), _place(), **given)
    return _resolve_again(options)


@functools.lru_cache(maxsize=256)
def _resolve_again(options: str) -> Settings:
    section, given, _ = json.loads(options)
    return Settings.within(section, _place(), **given)


@functools.cache
def _place() -> Place:
    from covalent._shared_files.defaults import get_default_sdk_config

    return Place(EXECUTOR_PLUGIN_NAME, get_default_sdk_config()["config_file"])


def _refuse_foreign_image(settings: Settings) -> None:
    image = settings.container_image_uri
    if image.startswith(_FOREIGN_IMAGES):
        raise SettingsError(
            f"container_image_uri is {image!r}, the image of covalent-awsbatch-plugin, which "
            "cannot run farcall's jobs; build an image from farcall's Dockerfile, push it, and "
            f"set container_image_uri to its URI in [{_SECTION}] of {_place().file}",
            option="container_image_uri",
        )


def _keys(task_group_metadata: Mapping[str, Any]) -> list[Key]:
    dispatch_id = task_group_metadata["dispatch_id"]
    return [(dispatch_id, node) for node in task_group_metadata["node_ids"]]


def _read(dispatch_id: str, task_specs: Sequence[TaskSpec]) -> TaskGroup:
    nodes = [Node(spec.electron_id, spec.args, spec.kwargs) for spec in task_specs]
    return assets.read_group(nodes, functools.partial(covalent_state.asset_file, dispatch_id))


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


async def _delegate(
    task_specs: Sequence[TaskSpec],
    resources: ResourceMap,
    task_group_metadata: Mapping[str, Any],
) -> dict[str, Any]:
    """Leave a sublattice's graph to Covalent's own executor beside the server."""
    await _local_executor().send(task_specs, resources, task_group_metadata)
    return {_DELEGATED: True}


def _local_executor() -> Any:
    from covalent.executor import _executor_manager  # which loads this module

    executor = _executor_manager.get_executor("local")
    executor._init_runtime(loop=asyncio.get_running_loop(), cancel_pool=None)
    return executor


async def _tell(key: Key, end: NodeEnd) -> TaskUpdate:
    """Give Covalent what came of a node."""
    found: dict[str, Buffer] = {"stdout": end.stdout, "stderr": end.stderr}
    found["error"] = end.error.encode(errors="replace")
    status = RESULT_STATUS.CANCELLED if end.cancelled else RESULT_STATUS.FAILED
    if end.value is not None:
        status = RESULT_STATUS.COMPLETED
        found["output"] = end.value
    return await _update(key, status, {name: data for name, data in found.items() if len(data)})


async def _update(key: Key, status: Any, found: Mapping[str, Buffer]) -> TaskUpdate:
    written = await asyncio.to_thread(covalent_state.write_assets, *key, found) if found else {}
    return TaskUpdate(dispatch_id=key[0], node_id=key[1], status=status, assets=written)
