"""Pauses and limits of the local Kubernetes emulator, which tests shorten."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Where a pod can be held up, for `Timing.delays`.
STEPS = ("Create", "Schedule", "Start", "Finish")


@dataclass
class Timing:
    """How long things take; tests stretch and shorten it. All in seconds, except the scales.

    Attributes:
        sync_s: Least time between two looks at one Job. Kubernetes has 1 s.
        retry_s: Pause before an index is tried again, doubled each time.
        retry_max_s: Longest such pause.
        refused_s: Pause after a pod was not admitted, doubled each time up to a minute.
        pull_s: Pause after an image could not be pulled, doubled each time.
        pull_max_s: Longest such pause.
        lost_s: Until the pods of a node that does not answer are deleted.
        deadline_scale: Factor on ``activeDeadlineSeconds`` of Jobs and pods.
        grace_scale: Factor on ``terminationGracePeriodSeconds``.
        ttl_scale: Factor on ``ttlSecondsAfterFinished``.
        delays: Seconds a pod stays before a step: ``Create`` (the Job has none yet),
            ``Schedule``, ``Start`` (it is ContainerCreating), ``Finish`` (its process has ended).

    Sources:
        https://kubernetes.io/docs/concepts/workloads/controllers/job/
        https://kubernetes.io/docs/concepts/containers/images/#imagepullbackoff
    """

    sync_s: float = 0.05
    retry_s: float = 10.0
    retry_max_s: float = 600.0
    refused_s: float = 1.0
    pull_s: float = 10.0
    pull_max_s: float = 300.0
    lost_s: float = 300.0
    deadline_scale: float = 1.0
    grace_scale: float = 1.0
    ttl_scale: float = 1.0
    delays: dict[str, float] = field(default_factory=dict)


def doubled(first_s: float, times: int, most_s: float) -> float:
    """Return a pause that is doubled so many times, up to a limit."""
    return min(first_s * 2.0 ** min(times, 60), most_s)
