"""Command jobs on Kubernetes.

Starts the local Kubernetes emulator, because nodes learn their index from their pods.
"""

from __future__ import annotations

import pytest

import farcall_local
from farcall import BatchExecutor


@pytest.mark.core
async def test_nodes_know_their_index(
    kubernetes: farcall_local.LocalAWS,
) -> None:
    """Even if a node ends a second after its start."""
    told = "echo $FARCALL_NODE_INDEX of $FARCALL_NODE_COUNT"
    async with BatchExecutor(vcpu=0.1, memory=0.1, retry_attempts=1) as executor:
        job = await executor.command("busybox:1", ["sh", "-c", f"{told}; sleep 1"], nodes=2)
        lines = [line.text async for line in job.logs(follow=True)]
        result = await job.wait()
    assert "0 of 2" in lines
    assert result.exit_codes[0] == 0
