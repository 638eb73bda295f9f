"""One pod on its node: from ContainerCreating to its end, as a kubelet runs it.

A pod's one container is run, with no restart: a pod with several, or with init containers, is
refused in its status (CreateContainerError), and ``restartPolicy`` is taken for ``Never``.

Sources:
    https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
    https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farcall_local.kubernetes import pod_status
from farcall_local.kubernetes.errors import NotFoundError
from farcall_local.kubernetes.kinds import POD, Kind
from farcall_local.kubernetes.log_answers import PodLogs
from farcall_local.kubernetes.pod_environment import ConfigError, Container
from farcall_local.kubernetes.pod_template import failures_of
from farcall_local.kubernetes.pod_volumes import MountError, Volumes
from farcall_local.kubernetes.recorder import NORMAL, WARNING, Recorder
from farcall_local.kubernetes.store import Store
from farcall_local.kubernetes.timing import Timing, doubled
from farcall_local.runners.runner import AttemptSpec, Exit, Runner, Running, StartError

DEADLINE = "DeadlineExceeded"
PAST_DEADLINE = "Pod was active on the node longer than the specified deadline"
DEFAULT_GRACE_S = 30

_CANNOT_RUN = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
    "runc create failed: unable to start container process: error during container init: "
)
_NOT_STARTED = "CannotStartContainerError"
_ONE_CONTAINER = (
    "farcall's local Kubernetes emulator runs pods of one container, without init containers"
)

_log = logging.getLogger("farcall")

Change = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class World:
    """What a pod meets on its node.

    Attributes:
        store: Holds it.
        runner: Starts its container.
        logs: Takes its output.
        timing: How long things take.
        images: Those that cannot be had.
        recorder: Takes the kubelet's events.
        claims: Where the folders of claims are.
    """

    store: Store
    runner: Runner
    logs: PodLogs
    timing: Timing
    images: Images
    recorder: Recorder
    claims: Path


class _CannotStartError(Exception):
    """A container's state in which it waits, with its reason and message."""

    def __init__(self, reason: str, message: str, event: str, *, heals: bool = True) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.event = event
        self.heals = heals


class PodRun:
    """Runs one pod."""

    def __init__(self, world: World, pod: dict[str, Any]) -> None:
        self._world = world
        self._pod = pod
        self._key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        self._uid = pod["metadata"]["uid"]
        self._loop = asyncio.get_running_loop()
        self._preparing: asyncio.Future[Running] | None = None
        self._running: Running | None = None
        self._volumes: Volumes | None = None
        self._stopped = False
        self._grace_s = 0.0
        self._lost = False
        self._over = False
        self._final: Change | None = None
        self._killed_as = ""
        self._killing: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Run the pod to its end, and delete it where that is wanted."""
        try:
            await self._live()
        except Exception:
            # A fault of ours must not leave a pod running forever.
            _log.exception("The pod %s broke", "/".join(self._key))
            text = "The local Kubernetes emulator failed; see its log."
            self._write(lambda pod: pod_status.failed(pod, "UnexpectedAdmissionError", text))
        finally:
            self._over = True
            for timer in (self._killing, self._deadline):
                if timer is not None:
                    timer.cancel()
            if self._volumes is not None:
                await asyncio.to_thread(self._volumes.remove)
        if not self._lost:
            self.let_go()

    def stop(self, grace_s: float, final: Change | None = None) -> None:
        """End the pod: SIGTERM, and SIGKILL after the grace.

        Args:
            grace_s: Seconds, before they are scaled. Who stops it again can shorten them.
            final: Makes its last status; by itself it is that of its container.
        """
        if self._over:
            return
        self._final = self._final or final
        first, self._stopped = not self._stopped, True
        self._grace_s = grace_s
        if self._preparing is not None:
            self._preparing.cancel()
        if self._running is not None:
            if first:
                self._terminate(self._running)
            self._kill_after(self._running)

    def kill(self, reason: str = "") -> None:
        """Kill the container; its state then says why."""
        if self._running is not None and not self._over:
            self._killed_as = reason
            self._running.kill()

    def lose(self) -> None:
        """Take the node away: what runs is gone, and nobody says so."""
        self._lost = self._stopped = True
        if self._preparing is not None:
            self._preparing.cancel()
        if self._running is not None:
            self._running.kill()

    def let_go(self) -> None:
        """Delete the pod for good where it was to be deleted."""
        there = self._world.store.get(POD, *self._key)
        if there is None or there["metadata"]["uid"] != self._uid:
            return
        if there["metadata"].get("deletionGracePeriodSeconds"):
            with contextlib.suppress(NotFoundError):
                self._world.store.delete(POD, *self._key, grace_s=0)

    @property
    def _container(self) -> dict[str, Any]:
        document: dict[str, Any] = self._pod["spec"]["containers"][0]
        return document

    async def _live(self) -> None:
        self._write(pod_status.waiting)
        self._set_deadline()
        self._preparing = asyncio.ensure_future(self._prepare())
        preparing = self._preparing
        try:
            self._running = await preparing
        except asyncio.CancelledError:
            if not self._stopped:
                await _kill_started(preparing)
                raise  # the server is closing
            self._end(lambda pod: pod_status.failed(pod, "", ""))
            return
        except StartError as error:
            text = f"{_CANNOT_RUN}{_exec(error)}"
            self._tell(WARNING, "Failed", f"Error: {text}")
            self._end(lambda pod: pod_status.ended(pod, 128, "StartError", text))
            return
        finally:
            self._preparing = None
        if self._stopped:  # when it had just started
            self._terminate(self._running)
            self._kill_after(self._running)
        await self._wait(self._running)

    async def _wait(self, running: Running) -> None:
        self._tell(NORMAL, "Started", f"Started container {self._container['name']}")
        self._write(pod_status.running)
        try:
            found = await running.wait()
        finally:
            self._over = True
            log = self._world.logs.of(self._uid)
            if log is not None:
                log.close()
        code, reason, text = self._exit(found)
        self._end(lambda pod: pod_status.ended(pod, code, reason, text))

    def _exit(self, found: Exit) -> tuple[int, str, str]:
        if found.code is None:
            text = "The container could not be located when the pod was terminated"
            return 137, "ContainerStatusUnknown", text
        if self._killed_as:
            return 137, self._killed_as, ""
        if found.reason is not None and found.reason.startswith("OutOfMemoryError"):
            return found.code, "OOMKilled", ""
        return found.code, "Error" if found.code else "Completed", ""

    def _end(self, of_container: Change) -> None:
        """Write the last status."""
        if self._lost:
            return
        self._write(of_container)
        if self._final is not None:
            self._write(self._final)

    def _set_deadline(self) -> None:
        limit = self._pod["spec"].get("activeDeadlineSeconds")
        if limit is not None:
            limit *= self._world.timing.deadline_scale
            self._deadline = self._loop.call_later(limit, self._exceed)

    def _exceed(self) -> None:
        if not self._over:
            self._tell(NORMAL, DEADLINE, PAST_DEADLINE)
            grace = self._pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
            self.stop(grace, lambda pod: pod_status.failed(pod, DEADLINE, PAST_DEADLINE))

    def _terminate(self, running: Running) -> None:
        self._tell(NORMAL, "Killing", f"Stopping container {self._container['name']}")
        running.terminate()

    def _kill_after(self, running: Running) -> None:
        due = self._loop.time() + self._grace_s * self._world.timing.grace_scale
        if self._killing is not None:
            if self._killing.when() <= due:
                return
            self._killing.cancel()
        self._killing = self._loop.call_at(due, running.kill)

    async def _prepare(self) -> Running:
        """Start the container as soon as everything that it needs exists."""
        failures = 0
        while True:
            try:
                return await self._start()
            except _CannotStartError as error:
                pause = doubled(self._world.timing.pull_s, failures)
                failures += 1
                await self._bear(error, pause)

    async def _bear(self, error: _CannotStartError, pause: float) -> None:
        """Tell why the container does not start, and wait before it is tried again."""
        self._tell(WARNING, error.event, error.message)
        if error.event == "Failed":
            self._tell(WARNING, "Failed", f"Error: {error.reason}")
        self._write(lambda pod: pod_status.waiting(pod, error.reason, error.message))
        if not error.heals:
            await self._loop.create_future()  # until somebody deletes the pod
        if error.reason == "ErrImagePull":
            await asyncio.sleep(pause / 2)
            image = self._container["image"]
            text = f'Back-off pulling image "{image}"'
            self._tell(NORMAL, "BackOff", text)
            self._tell(WARNING, "Failed", "Error: ImagePullBackOff")
            whole = f"{text}: ErrImagePull: {error.message}"
            self._write(lambda pod: pod_status.waiting(pod, "ImagePullBackOff", whole))
            pause /= 2
        await asyncio.sleep(pause)

    async def _start(self) -> Running:
        spec = self._pod["spec"]
        if len(spec["containers"]) > 1 or spec.get("initContainers"):
            raise _CannotStartError("CreateContainerError", _ONE_CONTAINER, "Failed", heals=False)
        image = self._container.get("image", "")
        objection = self._world.images.objection(image)
        if objection:
            self._tell(NORMAL, "Pulling", f'Pulling image "{image}"')
            raise _no_image(image, objection)
        attempt = self._spec(image)
        try:
            await self._world.runner.prepare(attempt)
        except StartError as error:
            text = (error.reason or error.status_reason).partition(": ")[2]
            raise _no_image(image, text) from error
        text = f'Container image "{image}" already present on machine'
        self._tell(NORMAL, "Pulled", text)
        self._tell(NORMAL, "Created", f"Created container: {self._container['name']}")
        try:
            return await self._world.runner.start(attempt)
        except StartError as error:
            reason = error.reason or error.status_reason
            if reason.startswith("CannotCreateContainerError"):
                raise _CannotStartError("CreateContainerError", reason, "Failed") from error
            raise

    def _spec(self, image: str) -> AttemptSpec:
        """Return what the runner starts.

        Raises:
            _CannotStartError: A Secret does not exist, or a volume cannot be mounted.
        """
        pod = self._world.store.get(POD, *self._key) or self._pod
        try:
            if self._volumes is None:
                self._volumes = Volumes(pod, self._world.claims)
            container = Container(self._world.store, pod)
        except MountError as error:
            text = str(error)
            raise _CannotStartError(pod_status.CREATING, text, "FailedMount") from error
        except ConfigError as error:
            text = str(error)
            raise _CannotStartError("CreateContainerConfigError", text, "Failed") from error
        security = self._container.get("securityContext") or {}
        return AttemptSpec(
            job_id=self._key[1],
            task_id=self._uid,
            attempt=str(1 + sum(failures_of(pod))),
            image=image,
            entrypoint=container.entrypoint,
            command=container.command,
            environment=container.environment,
            folder=self._container.get("workingDir", ""),
            user=str(security.get("runAsUser", "")),
            in_aws=False,
            mounts=self._volumes.mounts,
            host=self._volumes.host,
            output=self._world.logs.open(self._uid).write,
        )

    def _write(self, change: Change) -> None:
        if self._lost:
            return
        there = self._world.store.get(POD, *self._key)
        if there is not None and there["metadata"]["uid"] == self._uid:
            self._world.store.update(POD, {**there, "status": change(there)})

    def _tell(self, kind: str, reason: str, message: str) -> None:
        field = f"spec.containers{{{self._container['name']}}}"
        if not self._lost:
            self._world.recorder.tell(self._pod, kind, reason, message, field)


async def _kill_started(preparing: asyncio.Future[Running]) -> None:
    """Kill a container that had started when nobody was to wait for it any more."""
    if preparing.done() and not preparing.cancelled() and preparing.exception() is None:
        running = preparing.result()
        running.kill()
        await running.wait()


def _no_image(image: str, why: str) -> _CannotStartError:
    return _CannotStartError("ErrImagePull", f'Failed to pull image "{image}": {why}', "Failed")


def _exec(error: StartError) -> str:
    """Return what is wrong with a command, in the words of who runs it."""
    reason = error.reason or error.status_reason
    _, found, text = reason.partition("exec: ")
    return f"{found}{text}: unknown" if found else reason.removeprefix(f"{_NOT_STARTED}: ")


class Images:
    """Images that tests have made unavailable."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def withhold(self, image: str, heals_after: float | None) -> None:
        """Let an image not be pulled, for so many seconds; forever where it is None."""
        self._until[image] = time.monotonic() + (
            float("inf") if heals_after is None else heals_after
        )

    def objection(self, image: str) -> str:
        """Return why an image cannot be pulled; nothing where it can."""
        if time.monotonic() >= self._until.get(image, 0.0):
            return ""
        return (
            f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": '
            "pull access denied, repository does not exist or may require authorization: server "
            "message: insufficient_scope: authorization failed"
        )


# --- Kubelets: they run the pods that are bound to their nodes ----------------------------------
#
# All nodes are this machine: one object runs the pods of all.
#
# Source:
#     https://kubernetes.io/docs/reference/command-line-tools-reference/kubelet/


class Kubelet:
    """Runs pods, and ends them when they are deleted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._runs: dict[str, PodRun] = {}  # by UID
        self._tasks: set[asyncio.Task[None]] = set()
        self._nodes: dict[str, str] = {}  # UID -> node
        self._lost: set[str] = set()
        self._closed = False

    def note(self, change: str, kind: Kind, document: dict[str, Any]) -> None:
        """Take in a change of the store."""
        if kind is not POD or self._closed:
            return
        meta = document["metadata"]
        uid, run = meta["uid"], self._runs.get(meta["uid"])
        if change == "DELETED":
            if run is not None:
                run.stop(0.0)
            self._world.logs.forget(uid)
        elif run is not None:
            if "deletionTimestamp" in meta:
                run.stop(meta.get("deletionGracePeriodSeconds") or 0.0)
        elif self._is_new(document):
            self._begin(document)

    def run_of(self, uid: str) -> PodRun | None:
        """Return what runs a pod; None where it does not run."""
        return self._runs.get(uid)

    def evict(self, uid: str, final: Change) -> None:
        """End a pod at once, with a status of the node's."""
        run = self._runs.get(uid)
        if run is not None:
            run.stop(0.0, final)

    def lose(self, node: str) -> None:
        """Have a node answer no more: what runs there is gone, and nobody says so."""
        self._lost.add(node)
        for uid, run in self._runs.items():
            if self._nodes[uid] == node:
                run.lose()

    def find(self, node: str) -> None:
        """Have a node answer again."""
        self._lost.discard(node)

    async def close(self) -> None:
        """Kill what runs, and start nothing any more."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_new(self, pod: dict[str, Any]) -> bool:
        node = pod["spec"].get("nodeName")
        return bool(node) and node not in self._lost and not pod_status.is_over(pod)

    def _begin(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        run = self._runs[uid] = PodRun(self._world, pod)
        self._nodes[uid] = pod["spec"]["nodeName"]
        task = asyncio.get_running_loop().create_task(self._run(uid, run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, uid: str, run: PodRun) -> None:
        try:
            await run.run()
        finally:
            del self._runs[uid], self._nodes[uid]
