"""Where jobs run: a folder for each backend. Nothing here waits for a task's value."""

from __future__ import annotations

from farcall.aws.clients import Aws
from farcall.backends.base import Backend
from farcall.model.names import KUBERNETES
from farcall.model.settings import Settings


def open_backend(settings: Settings, access: Aws) -> Backend:
    """Return the backend that the option ``backend`` chooses; another one's imports are not paid.

    Args:
        settings: The options, of which those count that say where the platform is.
        access: The open clients.
    """
    if settings.backend == KUBERNETES:
        from farcall.backends.kubernetes.backend import KubernetesBackend

        return KubernetesBackend(access, settings)
    from farcall.backends.batch.backend import BatchBackend

    return BatchBackend(access)
