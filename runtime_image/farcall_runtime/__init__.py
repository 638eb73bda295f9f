"""The container side of farcall: fetch one task, run it in a child process, store what came of it.

Runs as ``python -m farcall_runtime``. It needs the standard library, cloudpickle and obstore, and
owns the wire contract that the client imports (`farcall_runtime.contract`,
`farcall_runtime.envelope`).

A function that runs on several nodes asks `node` on which of them it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farcall_runtime.nodes import Node, node

__all__ = ["Node", "node"]


def __getattr__(name: str) -> Any:
    """Import what a function asks for: the supervisor starts without it."""
    if name in __all__:
        from farcall_runtime import nodes

        return getattr(nodes, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
