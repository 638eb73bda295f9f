"""Kubelet of the Kubernetes emulator: runs pods from ContainerCreating to the end.

A pod has one container, which is never restarted.

Sources:
    https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
    https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/
    https://kubernetes.io/docs/reference/command-line-tools-reference/kubelet/
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from farcall_local.runners.runner import AttemptSpec, Exit, Runner, Running, StartError
from tests.emulators.kubernetes import nodes, pod_status
from tests.emulators.kubernetes.containers import CannotStartError, Container, Volumes
from tests.emulators.kubernetes.errors import NotFoundError
from tests.emulators.kubernetes.job_pods import failures_of
from tests.emulators.kubernetes.kinds import POD, Kind
from tests.emulators.kubernetes.log_answers import PodLog
from tests.emulators.kubernetes.recorder import NORMAL, WARNING, Recorder
from tests.emulators.kubernetes.store import Store
from tests.emulators.kubernetes.timing import Timing, doubled

DEADLINE = "DeadlineExceeded"
PAST_DEADLINE = "Pod was active on the node longer than the specified deadline"
DEFAULT_GRACE_S = 30

_CANNOT_RUN = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
    "runc create failed: unable to start container process: error during container init: "
)

_log = logging.getLogger("farcall")

Change = Callable[[dict[str, Any]], dict[str, Any]]


class Kubelet:
    """Kubelet that runs pods, and stops them when they are deleted.

    Attributes:
        logs: Output of the pods whose containers have started, by UID.
        recorder: Records the kubelet's events.
        claims: Folder of persistent volume claims.
    """

    def __init__(self, store: Store, runner: Runner, timing: Timing) -> None:
        self.store = store
        self.runner = runner
        self.timing = timing
        self.logs: dict[str, PodLog] = {}
        self.recorder = Recorder(store, "kubelet", nodes.NAME)
        self._folder = tempfile.TemporaryDirectory(prefix="farcall-claims-")
        self.claims = Path(self._folder.name)
        self._runs: dict[str, PodRun] = {}  # by UID
        self._tasks: set[asyncio.Task[None]] = set()
        self._withheld: set[str] = set()

    def on_change(self, change: str, kind: Kind, document: dict[str, Any]) -> None:
        """Process a change of the store."""
        if kind is not POD:
            return
        meta = document["metadata"]
        uid, run = meta["uid"], self._runs.get(meta["uid"])
        if change == "DELETED":
            if log := self.logs.pop(uid, None):
                log.close()
            if run is not None:
                run.stop(0.0)
        elif run is not None:
            if "deletionTimestamp" in meta:
                run.stop(meta.get("deletionGracePeriodSeconds") or 0.0)
        elif document["spec"].get("nodeName") and not pod_status.is_over(document):
            run = self._runs[uid] = PodRun(self, document)
            task = asyncio.get_running_loop().create_task(self._run(uid, run))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def run_of(self, pod: dict[str, Any]) -> PodRun | None:
        """Return the run of a pod; None if it does not run."""
        return self._runs.get(pod["metadata"]["uid"])

    def withhold_image(self, image: str) -> None:
        """Make an image unavailable."""
        self._withheld.add(image)

    def release_image(self, image: str) -> None:
        """Make a withheld image available again."""
        self._withheld.discard(image)

    def objection(self, image: str) -> str:
        """Return why an image cannot be pulled; empty if it can."""
        if image not in self._withheld:
            return ""
        return (
            f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": '
            "pull access denied, repository does not exist or may require authorization: server "
            "message: insufficient_scope: authorization failed"
        )

    async def close(self) -> None:
        """Kill all containers."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._folder.cleanup()

    async def _run(self, uid: str, run: PodRun) -> None:
        try:
            await run.run()
        finally:
            del self._runs[uid]


class PodRun:
    """Run of one pod."""

    def __init__(self, kubelet: Kubelet, pod: dict[str, Any]) -> None:
        self._kubelet = kubelet
        self._pod = pod
        self._key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        self._uid = pod["metadata"]["uid"]
        self._loop = asyncio.get_running_loop()
        self._preparing: asyncio.Future[Running] | None = None
        self._running: Running | None = None
        self._volumes: Volumes | None = None
        self._stopped = False
        self._grace_s = 0.0
        self._over = False
        self._final: Change | None = None
        self._is_oom = False
        self._killing: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Run the pod to its end, and delete it if requested."""
        try:
            await self._run_container()
        except Exception:
            # An error in the emulator must not leave a pod running forever.
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
        self._delete_finally()

    def stop(self, grace_s: float, final: Change | None = None) -> None:
        """Stop the pod: SIGTERM, and SIGKILL after the grace period.

        Args:
            grace_s: Grace period in seconds, before scaling. A second stop can shorten it.
            final: Returns the last status; by default it is the container's.
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

    def oom(self) -> None:
        """Kill the container as the kernel does when memory runs out (OOMKilled, 137)."""
        if self._running is not None and not self._over:
            self._is_oom = True
            self._running.kill()

    def _delete_finally(self) -> None:
        """Delete the pod permanently if its deletion was requested."""
        there = self._kubelet.store.get(POD, *self._key)
        if there is None or there["metadata"]["uid"] != self._uid:
            return
        if there["metadata"].get("deletionGracePeriodSeconds"):
            with contextlib.suppress(NotFoundError):
                self._kubelet.store.delete(POD, *self._key, grace_s=0)

    @property
    def _container(self) -> dict[str, Any]:
        document: dict[str, Any] = self._pod["spec"]["containers"][0]
        return document

    async def _run_container(self) -> None:
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
            text = f"{_CANNOT_RUN}{error}"
            self._record(WARNING, "Failed", f"Error: {text}")
            self._end(lambda pod: pod_status.ended(pod, 128, "StartError", text))
            return
        finally:
            self._preparing = None
        if self._stopped:  # when it had just started
            self._terminate(self._running)
            self._kill_after(self._running)
        await self._wait(self._running)

    async def _wait(self, running: Running) -> None:
        self._record(NORMAL, "Started", f"Started container {self._container['name']}")
        self._write(pod_status.running)
        try:
            found = await running.wait()
        finally:
            self._over = True
            if log := self._kubelet.logs.get(self._uid):
                log.close()
        code, reason, text = self._exit(found)
        self._end(lambda pod: pod_status.ended(pod, code, reason, text))

    def _exit(self, found: Exit) -> tuple[int, str, str]:
        if found.code is None:
            text = "The container could not be located when the pod was terminated"
            return 137, "ContainerStatusUnknown", text
        if self._is_oom or (found.reason or "").startswith("OutOfMemoryError"):
            return 137, "OOMKilled", ""
        return found.code, "Error" if found.code else "Completed", ""

    def _end(self, of_container: Change) -> None:
        """Write the last status."""
        self._write(of_container)
        if self._final is not None:
            self._write(self._final)

    def _set_deadline(self) -> None:
        limit = self._pod["spec"].get("activeDeadlineSeconds")
        if limit is not None:
            limit *= self._kubelet.timing.deadline_scale
            self._deadline = self._loop.call_later(limit, self._stop_at_deadline)

    def _stop_at_deadline(self) -> None:
        if not self._over:
            self._record(NORMAL, DEADLINE, PAST_DEADLINE)
            grace = self._pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
            self.stop(grace, lambda pod: pod_status.failed(pod, DEADLINE, PAST_DEADLINE))

    def _terminate(self, running: Running) -> None:
        self._record(NORMAL, "Killing", f"Stopping container {self._container['name']}")
        running.terminate()

    def _kill_after(self, running: Running) -> None:
        due = self._loop.time() + self._grace_s * self._kubelet.timing.grace_scale
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
            except CannotStartError as error:
                self._record(WARNING, error.event, str(error))
                self._write(partial(pod_status.waiting, reason=error.reason, message=str(error)))
                await asyncio.sleep(doubled(self._kubelet.timing.pull_s, failures))
                failures += 1

    async def _start(self) -> Running:
        image = self._container.get("image", "")
        objection = self._kubelet.objection(image)
        if objection:
            raise _no_image(image, objection)
        attempt = self._spec(image)
        try:
            await self._kubelet.runner.prepare(attempt)
        except StartError as error:
            text = (error.reason or error.status_reason).partition(": ")[2]
            raise _no_image(image, text) from error
        text = f'Container image "{image}" already present on machine'
        self._record(NORMAL, "Pulled", text)
        self._record(NORMAL, "Created", f"Created container: {self._container['name']}")
        return await self._kubelet.runner.start(attempt)

    def _spec(self, image: str) -> AttemptSpec:
        """Return the runner's specification.

        Raises:
            CannotStartError: A Secret does not exist, or a volume cannot be mounted.
        """
        pod = self._kubelet.store.get(POD, *self._key) or self._pod
        if self._volumes is None:
            self._volumes = Volumes(pod, self._kubelet.claims)
        container = Container(self._kubelet.store, pod)
        security = self._container.get("securityContext") or {}
        log = self._kubelet.logs[self._uid] = PodLog()
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
            output=log.write,
        )

    def _write(self, change: Change) -> None:
        there = self._kubelet.store.get(POD, *self._key)
        if there is not None and there["metadata"]["uid"] == self._uid:
            self._kubelet.store.update(POD, {**there, "status": change(there)})

    def _record(self, kind: str, reason: str, message: str) -> None:
        field = f"spec.containers{{{self._container['name']}}}"
        self._kubelet.recorder.record(self._pod, kind, reason, message, field)


async def _kill_started(preparing: asyncio.Future[Running]) -> None:
    """Kill a container that started after its pod's run was cancelled."""
    if preparing.done() and not preparing.cancelled() and preparing.exception() is None:
        running = preparing.result()
        running.kill()
        await running.wait()


def _no_image(image: str, why: str) -> CannotStartError:
    text = f'Back-off pulling image "{image}": ErrImagePull: Failed to pull image "{image}": {why}'
    return CannotStartError("ImagePullBackOff", text)
