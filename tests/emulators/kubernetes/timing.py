"""Pauses and limits of the local Kubernetes emulator, which tests shorten."""

from __future__ import annotations

from dataclasses import dataclass

#: Longest pause between two attempts of anything in seconds.
LONGEST_S = 300.0


@dataclass
class Timing:
    """Durations, in seconds except the scales.

    Attributes:
        sync_s: Minimum interval between two syncs of one Job. Kubernetes has 1 s.
        retry_s: Pause before an index is retried, doubled each time.
        refused_s: Pause after a pod was not admitted, doubled each time.
        pull_s: Pause after an image could not be pulled, doubled each time.
        deadline_scale: Factor on ``activeDeadlineSeconds`` of Jobs and pods.
        grace_scale: Factor on ``terminationGracePeriodSeconds``.

    Sources:
        https://kubernetes.io/docs/concepts/workloads/controllers/job/
        https://kubernetes.io/docs/concepts/containers/images/#imagepullbackoff
    """

    sync_s: float = 0.05
    retry_s: float = 10.0
    refused_s: float = 1.0
    pull_s: float = 10.0
    deadline_scale: float = 1.0
    grace_scale: float = 1.0


def doubled(first_s: float, times: int) -> float:
    """Return a pause after doubling it a number of times, up to a limit."""
    return min(first_s * 2.0 ** min(times, 60), LONGEST_S)
