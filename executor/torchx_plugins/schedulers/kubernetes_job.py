"""TorchX's scheduler ``kubernetes_job``: the factory that TorchX finds here, and nothing else.

TorchX imports this module on every command, so what the scheduler needs is imported once it is
asked for. The folders above are a namespace: neither may have an ``__init__.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx.plugins import register

if TYPE_CHECKING:
    from farcall.torchx.kubernetes.scheduler import KubernetesScheduler


@register.scheduler(name="kubernetes_job")
def kubernetes_job(session_name: str, **params: Any) -> KubernetesScheduler:
    """Make the scheduler.

    Args:
        session_name: Name of TorchX's session.
        **params: What TorchX hands to every scheduler, which is nothing of ours.
    """
    from farcall.torchx.kubernetes.scheduler import KubernetesScheduler

    return KubernetesScheduler(session_name)
