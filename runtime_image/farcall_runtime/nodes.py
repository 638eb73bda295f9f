"""Node of a multi-node job: its index, and the main node's address.

A function with the option ``nodes`` runs on each node with the same arguments. With this module it
finds the other nodes, for MPI, torchrun, Dask or Ray.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from typing import NamedTuple

from farcall_runtime.contract import (
    ENV_BUCKET_URL,
    ENV_MAIN_ADDRESS,
    ENV_NODE_INDEX,
    ENV_NODES,
    ENV_OWN_MAIN_ADDRESS,
    ENV_OWN_NODE_INDEX,
    ENV_OWN_NODES,
)

_HERE = "127.0.0.1"
_NAMED_S, _PAUSE_S = 60.0, 0.5
"""Maximum wait for a host name in seconds, because a cluster's DNS may be late."""

_OUTSIDE = "192.0.2.1"
"""An unassigned address, https://www.rfc-editor.org/rfc/rfc5737"""


class Node(NamedTuple):
    """Node of a job.

    Attributes:
        index: Its number, from 0; the main node has 0.
        count: Number of nodes.
        main_address: IPv4 address or host name of the main node, for the other nodes.
    """

    index: int  # type: ignore[assignment]  # shadows tuple's method, which is not needed here
    count: int  # type: ignore[assignment]
    main_address: str

    @property
    def is_main(self) -> bool:
        """Whether this is the main node: the job ends when its function returns."""
        return self.index == 0


def node() -> Node:
    """Return the node on which this process runs.

    Outside of jobs, and in jobs on one node, that is node 0 of 1 with address 127.0.0.1. Processes
    that the function starts get the same node.
    """
    environment = os.environ
    count = int(environment.get(ENV_OWN_NODES) or environment.get(ENV_NODES, "1"))
    if count == 1:
        return Node(0, 1, _HERE)
    index = environment.get(ENV_OWN_NODE_INDEX) or environment.get(ENV_NODE_INDEX, "0")
    address = environment.get(ENV_OWN_MAIN_ADDRESS) or environment.get(ENV_MAIN_ADDRESS, _HERE)
    return Node(int(index), count, address)


def set_main_address(environment: MutableMapping[str, str]) -> None:
    """Add the main node's address to its own environment, because Batch leaves it out.

    If the platform provides a host name, its address replaces it. The name may be resolvable a
    moment later than the container starts, so farcall waits for it.
    """
    name = environment.get(ENV_OWN_MAIN_ADDRESS)
    if name and int(environment.get(ENV_OWN_NODES) or "1") > 1:
        if environment.get(ENV_OWN_NODE_INDEX) == "0":
            environment[ENV_OWN_MAIN_ADDRESS] = own_address(environment.get(ENV_BUCKET_URL, ""))
        else:
            environment[ENV_OWN_MAIN_ADDRESS] = _address_of(name)
        return
    if int(environment.get(ENV_NODES, "1")) > 1 and ENV_MAIN_ADDRESS not in environment:
        environment[ENV_MAIN_ADDRESS] = own_address(environment.get(ENV_BUCKET_URL, ""))


def _address_of(name: str) -> str:
    """Return the IPv4 address of a name, or the name if it does not resolve in time."""
    until = time.monotonic() + _NAMED_S
    while True:
        try:
            address: str = socket.gethostbyname(name)
        except OSError:
            if time.monotonic() >= until:
                return name
            time.sleep(_PAUSE_S)
        else:
            return address


def own_address(url: str = "") -> str:
    """Return the IPv4 address from which this container reaches others.

    Nothing is sent.

    Args:
        url: URL of the bucket, if the job has one: a nearby host. If it is a folder, all nodes are
            on this machine.
    """
    from urllib.parse import urlsplit  # needed only on multi-node jobs

    if url.startswith("file:"):
        return _HERE
    for host in filter(None, (urlsplit(url).hostname, _OUTSIDE)):
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((host, 9))
                address: str = probe.getsockname()[0]
        except OSError:  # no such host, or no network
            continue
        return address
    return _HERE
