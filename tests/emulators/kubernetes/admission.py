"""Admission rule of Kueue's webhook, which each Job with a queue must pass.

Source: https://kueue.sigs.k8s.io/docs/tasks/run/jobs/#partial-admission
"""

from __future__ import annotations

from typing import Any

from tests.emulators.kubernetes.errors import ForbiddenError

QUEUE = "kueue.x-k8s.io/queue-name"
LEAST = "kueue.x-k8s.io/job-min-parallelism"


def check_job(job: dict[str, Any]) -> None:
    """Reject a Job whose minimum parallelism is not below its parallelism.

    Raises:
        ForbiddenError: Kueue rejects the Job.
    """
    metadata = job["metadata"]
    least = (metadata.get("annotations") or {}).get(LEAST)
    if QUEUE not in (metadata.get("labels") or {}) or least is None:
        return
    most = job["spec"].get("parallelism", 1) - 1
    if not 0 < int(least) <= most:
        raise ForbiddenError(
            'admission webhook "vjob.kb.io" denied the request: '
            f"metadata.annotations[{LEAST}]: Invalid value: {least}: "
            f"should be between 0 and {most}"
        )
