"""Words in remedies that stand for what differs from job to job. No I/O."""

from __future__ import annotations

from farcall.backends.matching import CREATED_BY, IMAGE, STARTED_BY
from farcall.model.jobs import JobDetail

__all__ = ["CREATED_BY", "IMAGE", "STARTED_BY", "filled"]


def filled(remedy: str, detail: JobDetail) -> str:
    """Return a remedy with what it says of a job in it."""
    if detail.is_command:
        words = {
            IMAGE: f"the image {detail.image}",
            CREATED_BY: "mounts, devices, secrets and user of the command, and pod_overlay",
            STARTED_BY: ", the command, and pod_overlay",
        }
    elif detail.runtime:
        words = {
            IMAGE: f"the image {detail.image} (stock_image_uri; image names one built from "
            "farcall's Dockerfile)",
            CREATED_BY: "mounts, s3_secret and pod_overlay",
            STARTED_BY: ", which needs python3, and pod_overlay",
        }
    else:
        words = {
            IMAGE: f"the image {detail.image} (the option image)",
            CREATED_BY: "mounts, s3_secret and pod_overlay",
            STARTED_BY: " (farcall's Dockerfile sets that of the task runner), and pod_overlay",
        }
    for mark, text in words.items():
        remedy = remedy.replace(mark, text)
    return remedy
