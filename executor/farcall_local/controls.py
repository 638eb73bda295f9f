"""What a developer may change in the local AWS emulator while it runs, for whoever calls it.

These calls exist in the emulator only. Over HTTP they are ``POST /_farcall/<name>`` with a JSON
document; in code they are the methods of `Controls`. `farcall_local.services.server` carries them
out; nothing of it is imported here, because it brings moto with it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

#: What stands for "leave it as it is", where None means "no limit".
UNCHANGED = -1.0


class KubernetesControls:
    """The development calls of the local Kubernetes emulator, such as ``evict("my-job")``.

    Each is a method of that name, described in `farcall_local.kubernetes.cluster.Cluster`, in
    `farcall_local.kubernetes.faults.Faults` or in
    `farcall_local.kubernetes.embedded.EmbeddedKubernetes`.

    Args:
        reach: Reaches the server with a call's name and document.
    """

    def __init__(self, reach: Callable[[str, dict[str, Any]], Any]) -> None:
        self._reach = reach

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any, **options: Any) -> Any:
            document = {"call": name, "arguments": arguments, "options": options}
            return self._reach("kubernetes", document)["answer"]

        return call


class Controls(abc.ABC):
    """The development calls, for whoever can reach the server."""

    @property
    def kubernetes(self) -> KubernetesControls:
        """Those of the local Kubernetes emulator, where there is one."""
        return KubernetesControls(self._call)

    def configure(
        self,
        *,
        delays: dict[str, float] | None = None,
        stop_grace_s: float | None = None,
        timeout_scale: float | None = None,
        credential_lifetime_s: float | None = None,
        stream_s: float | None = UNCHANGED,
        submit_rate: float | None = UNCHANGED,
        api_rate: float | None = UNCHANGED,
    ) -> None:
        """Stretch or shorten what takes time.

        Args:
            delays: Seconds a job stays in a state, by the state's name such as ``STARTING``; in
                ``RUNNING`` they follow the end of its process. Replaces the former delays.
            stop_grace_s: Seconds from SIGTERM to SIGKILL; 30 at first, as on AWS.
            timeout_scale: Factor on the timeouts of jobs, whose least value is 60 s; 1 at first.
            credential_lifetime_s: How long the keys are good for that containers get from now on;
                6 hours at first.
            stream_s: Seconds after which a task's output is stored while it runs, so that it can
                be read along; None at first, as on AWS: after 2 s, and much output less often.
            submit_rate: SubmitJob calls a second, None for no limit; 50 at first, as on AWS.
            api_rate: Calls a second of each other operation, likewise.
        """
        document: dict[str, Any] = {
            "delays": delays,
            "stop_grace_s": stop_grace_s,
            "timeout_scale": timeout_scale,
            "credential_lifetime_s": credential_lifetime_s,
        }
        document = {name: value for name, value in document.items() if value is not None}
        others = {"stream_s": stream_s, "submit_rate": submit_rate, "api_rate": api_rate}
        document.update({name: given for name, given in others.items() if given != UNCHANGED})
        self._call("configure", document)

    def fault(self, operation: str, kind: str, count: int = 1) -> None:
        """Let the next calls of a Batch operation go wrong.

        Args:
            operation: Such as ``SubmitJob``.
            kind: ``throttle`` answers 429, ``error`` answers 500, ``lost`` does the work and
                closes the connection without an answer.
            count: How many calls.
        """
        self._call("fault", {"operation": operation, "kind": kind, "count": count})

    def reclaim(self, job_id: str) -> None:
        """Take away the host of a job under way, as a spot reclaim does.

        Args:
            job_id: A job, a child of an array, or a node, that is ``STARTING`` or ``RUNNING``. A
                multi-node parallel job stands for its main node.
        """
        self._call("reclaim", {"job_id": job_id})

    def break_starts(self, *reasons: str) -> None:
        """Let the next attempts fail to start, whichever jobs they are of.

        Args:
            *reasons: What the container's reason of each is to say, such as
                ``"CannotPullContainerError: pull image manifest has been retried"``. They replace
                those that were not used up; none at all lets every container start again.
        """
        self._call("break_starts", {"reasons": list(reasons)})

    @abc.abstractmethod
    def _call(self, name: str, document: dict[str, Any]) -> Any:
        """Reach the server, in this process or by HTTP: each subclass has its own way."""
