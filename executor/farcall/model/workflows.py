"""Workflows: what jobs belong to, in the eyes of whoever looks at them. No I/O."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from farcall.model import terminal
from farcall.model.settings import Settings
from farcall_runtime.contract import ENV_DISPATCH, ENV_WORKFLOW

_MOST_CHARACTERS = 128

NODES = "nodes"
"""Under which a bundle says what `list_nodes` wrote."""

_MOST_NODES_BYTES = 32 * 1024
"""Each container reads a bundle's facts, with one request as long as they are few."""


class Workflow(NamedTuple):
    """A workflow, whose jobs are listed and cancelled together.

    Attributes:
        name: Its name: the option ``workflow``, a lattice's, or a script's.
        dispatch: Covalent's ID of the dispatch, of a sublattice's electrons that of the lattice
            around all; empty where Covalent has no part in it.
    """

    name: str
    dispatch: str = ""

    @classmethod
    def of(cls, settings: Settings) -> Workflow:
        """Return the workflow of what this process submits."""
        return cls(settings.workflow or _script())

    def environment(self) -> dict[str, str]:
        """Return what a job's environment says of it; a file's name can have anything in it."""
        name = terminal.in_a_line(self.name)
        said = {ENV_WORKFLOW: name[:_MOST_CHARACTERS], ENV_DISPATCH: self.dispatch}
        return {name: value for name, value in said.items() if value}


class NodeOf(NamedTuple):
    """A node that Covalent runs as a task.

    Attributes:
        dispatch: The dispatch that has it; a sublattice's is one of its own.
        number: Covalent's number of it there.
    """

    dispatch: str
    number: int


def list_nodes(nodes: Iterable[NodeOf]) -> list[Any]:
    """Write down in few words which node each task of a job is.

    Returns:
        JSON for `node_at`: of each dispatch runs of first number, step and count. It is empty
        where that would be too long.
    """
    found: list[Any] = []
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
        found.append([dispatch, runs])
    return found if len(json.dumps(found)) <= _MOST_NODES_BYTES else []


def node_at(listed: Any, index: int) -> NodeOf | None:
    """Return which node a task is, given what `list_nodes` wrote; None if that does not say."""
    try:
        for dispatch, runs in listed:
            for first, step, count in runs:
                if index < count:
                    return NodeOf(str(dispatch), int(first + step * index))
                index -= count
    except (TypeError, ValueError):
        pass
    return None


def _script() -> str:
    """Return the name of the program that runs, as its author would call it."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m
        name = str(spec.name).removesuffix(".__main__")
        return "notebook" if name == "ipykernel_launcher" else name
    path = getattr(main, "__file__", None)
    return Path(path).name if path else "interactive"
