"""Backends: the platforms that run jobs, with a package for each."""

from __future__ import annotations

from farcall.aws.clients import Aws
from farcall.backends.base import Backend
from farcall.config.settings import Settings
from farcall.model.names import KUBERNETES


def open_backend(settings: Settings, access: Aws) -> Backend:
    """Return the backend that the option ``backend`` selects; import no other.

    Args:
        settings: The options, including those that select the platform.
        access: The open clients.
    """
    if settings.backend == KUBERNETES:
        from farcall.backends.kubernetes.backend import KubernetesBackend

        return KubernetesBackend(access.timing, settings)
    from farcall.backends.batch.backend import BatchBackend

    return BatchBackend(access)
