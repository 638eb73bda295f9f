"""Local AWS emulator: S3, CloudWatch Logs, STS, IAM and Batch on one port.

It is a development and test tool. It accepts requests that are signed with the access key that it
creates at its start, evaluates no policies, and keeps nothing after its end. It runs each job as a
process of the user who started it, or as a container (``docker``). S3, Logs, STS and IAM are
moto's. Batch is farcall's own and keeps the documented semantics of its operations: states and
their order, attempts and evaluateOnExit, timeouts, arrays, multi-node parallel jobs,
termination, limits and throttling.

`start` runs it in a child process. `serve` and `run_command` are the command line's uses of that
process. They need the ``local`` extra::

    pip install '.[local]'          # in farcall's folder

Not supported: EKS jobs, ecsProperties, fair-share scheduling and queue priorities; for processes,
images, and memory limits unless it is strict. Jobs share the machine's processors in the order of
their submission. A job that waits for a job that it submitted itself can wait forever if there are
few processors. The nodes of a multi-node parallel job, including containers, share this machine's
network: the main node's address is 127.0.0.1, and two nodes cannot listen on one port.
"""

from __future__ import annotations

from farcall_local.command import run_command, serve
from farcall_local.launch import LocalAWS, start

__all__ = ["LocalAWS", "run_command", "serve", "start"]
