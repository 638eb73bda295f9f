"""TorchX's scheduler ``aws_batch``: the factory that TorchX finds here, and nothing else.

TorchX imports this module on every command, so what the scheduler needs is imported once it is
asked for. The folders above are a namespace: neither may have an ``__init__.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx.plugins import register

if TYPE_CHECKING:
    from farcall.torchx.batch.scheduler import BatchScheduler


@register.scheduler(name="aws_batch")
def aws_batch(session_name: str, **params: Any) -> BatchScheduler:
    """Make the scheduler.

    Args:
        session_name: Name of TorchX's session.
        **params: What TorchX hands to every scheduler, which is nothing of ours.
    """
    from farcall.torchx.batch.scheduler import BatchScheduler

    return BatchScheduler(session_name)
