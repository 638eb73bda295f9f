"""Container side of farcall: fetches and runs a task and stores its outcome.

Runs as ``python -m farcall_runtime``. It needs the standard library, cloudpickle and obstore, and
owns the wire contract that the client imports (`farcall_runtime.contract`,
`farcall_runtime.envelope`).

A function of a multi-node job calls `node` to find its node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farcall_runtime.nodes import Node, node

__all__ = ["Node", "node"]


def __getattr__(name: str) -> Any:
    """Import the functions' API on demand, because the supervisor does not need it."""
    if name in __all__:
        from farcall_runtime import nodes

        return getattr(nodes, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
