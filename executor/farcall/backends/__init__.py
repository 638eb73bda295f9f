"""Where jobs run: a folder for each backend. Nothing here waits for a task's value."""

from __future__ import annotations

from farcall.aws.clients import Aws
from farcall.backends.base import Backend


def open_backend(name: str, access: Aws) -> Backend:
    """Return the backend that the option ``backend`` chooses.

    Args:
        name: ``"batch"``, which is the only one.
        access: The open clients.
    """
    from farcall.backends.batch.backend import BatchBackend  # another one's imports are not paid

    if name != BatchBackend.name:
        raise ValueError(f"there is no backend {name!r}")
    return BatchBackend(access)
