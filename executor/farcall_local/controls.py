"""Development calls that change the running local AWS emulator.

These calls exist only in the emulator. Over HTTP they are ``POST /_farcall/<name>`` with a JSON
document; in code they are the methods of `Controls`. `farcall_local.services.server` implements
them. This module does not import it, because it imports moto.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

#: Sentinel for an unchanged value, because None means "no limit".
UNCHANGED = -1.0


class KubernetesControls:
    """Development calls of the local Kubernetes emulator, such as ``evict("my-job")``.

    Each is a method of that name, described in `farcall_local.kubernetes.cluster.Cluster`, in
    `farcall_local.kubernetes.server.Faults` or in
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
    """Development calls, independent of how the server is reached."""

    @property
    def kubernetes(self) -> KubernetesControls:
        """Development calls of the local Kubernetes emulator, if there is one."""
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
        """Change durations and rates.

        Args:
            delays: Seconds that a job stays in a state, by the state's name such as ``STARTING``;
                in ``RUNNING`` they follow the end of its process. Replaces the previous delays.
            stop_grace_s: Seconds from SIGTERM to SIGKILL; by default 30, as on AWS.
            timeout_scale: Factor on job timeouts, whose minimum is 60 s; by default 1.
            credential_lifetime_s: Lifetime in seconds of the keys that containers get from now on;
                by default 6 hours.
            stream_s: Seconds after which a running task's output is stored for live reading; by
                default None, as on AWS: after 2 s, and less often for much output.
            submit_rate: SubmitJob calls per second, None for no limit; by default 50, as on AWS.
            api_rate: Calls per second of each other operation, None for no limit; by default 50.
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
        """Make the next calls of a Batch operation fail.

        Args:
            operation: Name of the operation, such as ``SubmitJob``.
            kind: ``throttle`` returns 429, ``error`` returns 500, ``lost`` does the work and
                closes the connection without a response.
            count: Number of calls.
        """
        self._call("fault", {"operation": operation, "kind": kind, "count": count})

    def reclaim(self, job_id: str) -> None:
        """Remove a running job's host, as a spot reclaim does.

        Args:
            job_id: ID of a job, child job or node that is ``STARTING`` or ``RUNNING``. For a
                multi-node parallel job, the main node's host is removed.
        """
        self._call("reclaim", {"job_id": job_id})

    def break_starts(self, *reasons: str) -> None:
        """Make the next attempts fail to start, for any jobs.

        Args:
            *reasons: Reason of each failed container, such as ``"CannotPullContainerError: pull
                image manifest has been retried"``. They replace unused reasons; without any, all
                containers start again.
        """
        self._call("break_starts", {"reasons": list(reasons)})

    @abc.abstractmethod
    def _call(self, name: str, document: dict[str, Any]) -> Any:
        """Reach the server, in this process or via HTTP, depending on the subclass."""
