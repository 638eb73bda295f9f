"""The local AWS emulator: S3, CloudWatch Logs, STS, IAM and Batch on one port of this machine.

It is a development and test tool. It answers requests that are signed with the access key that it
makes at its start, evaluates no policies, keeps nothing after its end, and runs each job as a
process of the user who started it, or as a container (``docker``). S3, Logs, STS and IAM are
moto's. Batch is farcall's own and keeps the documented semantics of the operations it has: states
and their order, attempts and evaluateOnExit, timeouts, arrays, multi-node parallel jobs and
dependencies, cancel and terminate, limits and throttling.

`start` runs it in a child process, `serve` and `run_command` are the command line's two uses of
that, and `LocalServer` is the same server inside this process. They need the ``local`` extra::

    pip install 'farcall[local]'

What it does not do: EKS jobs, ecsProperties, fair-share scheduling and queue priorities; as
processes, memory limits and images. Jobs share the machine's processors in the order they come. A
job that waits for a job it has submitted itself can wait forever where processors are few. The
nodes of a multi-node parallel job, containers too, share this machine's network: the main node's
address is 127.0.0.1, and two nodes cannot listen on one port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farcall_local.command import run_command, serve
from farcall_local.launch import LocalAWS, start

if TYPE_CHECKING:
    from farcall_local.services.server import LocalServer

__all__ = ["LocalAWS", "LocalServer", "run_command", "serve", "start"]


def __getattr__(name: str) -> Any:
    """Import the server when it is asked for, because it brings moto with it."""
    if name != "LocalServer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from farcall_local.launch import require_extra

    require_extra()
    from farcall_local.services.server import LocalServer

    return LocalServer
