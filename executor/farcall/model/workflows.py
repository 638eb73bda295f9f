"""Workflows: groups of jobs that belong together for their users. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

from farcall.model import terminal
from farcall_runtime.contract import ENV_DISPATCH, ENV_WORKFLOW

_MOST_CHARACTERS = 128

NODES = "nodes"
"""Key of a bundle's fact with the result of `list_nodes`."""

_MOST_NODES_BYTES = 32 * 1024
"""Maximum size in bytes, because each container reads the facts of its bundle."""


class Workflow(NamedTuple):
    """Workflow, whose jobs are listed and cancelled together.

    Attributes:
        name: Its name: the option ``workflow``, a lattice's, or a script's.
        dispatch: Covalent's dispatch ID, for a sublattice's electrons the outermost lattice's;
            empty without Covalent.
    """

    name: str
    dispatch: str = ""

    def environment(self) -> dict[str, str]:
        """Return a job's variables; a file name can contain any character."""
        name = terminal.in_a_line(self.name)
        variables = {ENV_WORKFLOW: name[:_MOST_CHARACTERS], ENV_DISPATCH: self.dispatch}
        return {name: value for name, value in variables.items() if value}


class NodeOf(NamedTuple):
    """Covalent node that runs as a task.

    Attributes:
        dispatch: The node's dispatch; a sublattice has its own.
        number: Covalent's number of the node in the dispatch.
    """

    dispatch: str
    number: int


def list_nodes(nodes: Iterable[NodeOf]) -> list[Any]:
    """Return a compact list of the nodes of a job's tasks.

    Returns:
        JSON for `node_at`: for each dispatch, runs of first number, step and count. It is empty if
        it would be too long.
    """
    dispatches: list[Any] = []
    for dispatch, group in groupby(nodes, key=lambda node: node.dispatch):
        runs: list[list[int]] = []
        for _, number in group:
            last = runs[-1] if runs else None
            if last and last[2] == 1:
                last[1:] = [number - last[0], 2]
            elif last and number == last[0] + last[1] * last[2]:
                last[2] += 1
            else:
                runs.append([number, 0, 1])
        dispatches.append([dispatch, runs])
    return dispatches if len(json.dumps(dispatches)) <= _MOST_NODES_BYTES else []


def node_at(listed: Any, index: int) -> NodeOf | None:
    """Return a task's node from the result of `list_nodes`; None if it is not in it."""
    try:
        for dispatch, runs in listed:
            for first, step, count in runs:
                if index < count:
                    return NodeOf(str(dispatch), int(first + step * index))
                index -= count
    except (TypeError, ValueError):
        pass
    return None
