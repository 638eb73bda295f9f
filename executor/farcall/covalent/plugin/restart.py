"""Resumption of dispatches that a stopped Covalent server left unfinished.

Covalent restarts nothing by itself. This module performs the dispatcher's next steps with
Covalent's own functions (covalent_dispatcher/_core, 0.240), inside the server's process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from covalent._shared_files.config import get_config

from farcall.model.errors import FarcallError

_BEGAN = datetime.now(UTC)  # the server loads its plugins first
_STATE_VARIABLE = "COVALENT_CACHE_DB_URL"
_COMPLETED = "COMPLETED"
_ENDED = (_COMPLETED, "FAILED", "CANCELLED")


def is_server() -> bool:
    """Return whether this process is Covalent's server."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return main is not None and Path(main).resolve().parts[-2:] == ("covalent_ui", "app.py")


def keep_state_over_restarts() -> None:
    """Configure the server to keep the state of running dispatches in its database.

    By default the state is in a temporary file
    (covalent_dispatcher/_core/dispatcher_modules/caches.py, 0.240), and a dispatch that was
    running when the server was killed can never finish. The plugin is loaded before Covalent reads
    the variable.
    """
    if not is_server():
        return  # the child processes of a client must not inherit the variable
    database = os.environ.get("COVALENT_DATABASE_URL")
    url = database or "sqlite+pysqlite:///" + get_config("dispatcher.db_path")
    os.environ.setdefault(_STATE_VARIABLE, url)


class Left(NamedTuple):
    """State of a dispatch that an earlier process of the server left unfinished.

    Attributes:
        groups: Nodes of the task groups that were ready to run.
        ended: Nodes that had finished.
        is_over: Whether nothing of the dispatch is running or can run.
    """

    groups: dict[int, list[int]]
    ended: set[int]
    is_over: bool


_left: dict[str, asyncio.Future[Left]] = {}
"""State of each dispatch when this process first read it."""


async def find_orphans(dispatch_id: str) -> None:
    """Find a dispatch's orphaned task groups; call before resuming a group.

    When a task's result arrives, Covalent starts the tasks that waited for it, and finishes the
    dispatch after the last one. If the server stopped between a task's end and these steps, this
    function performs them.
    """
    search = _left.get(dispatch_id)
    if search is None or (search.done() and (search.cancelled() or search.exception())):
        search = _left[dispatch_id] = asyncio.ensure_future(_search(dispatch_id))
    await asyncio.wait([search])


def has_ended(dispatch_id: str, node: int) -> bool:
    """Return whether a node had finished when `find_orphans` read it."""
    search = _left[dispatch_id]
    return search.exception() is None and node in search.result().ended


async def _search(dispatch_id: str) -> Left:
    from covalent_dispatcher._core import data_manager, dispatcher

    left = await asyncio.to_thread(_find_left, dispatch_id)
    if left.is_over:
        await dispatcher._finalize_dispatch(dispatch_id)
        await data_manager.persist_result(dispatch_id)
    return left


async def start_again(dispatch_id: str, group: int) -> None:
    """Make Covalent start a task group that an earlier process left without a job.

    Raises:
        FarcallError: The server has lost the dispatch's progress.
    """
    from covalent_dispatcher._core import dispatcher

    nodes = (await _left[dispatch_id]).groups.pop(group, None)
    if nodes is not None:
        await dispatcher._submit_task_group(dispatch_id, nodes, group)


def _find_left(dispatch_id: str) -> Left:
    """Find unfinished task groups, and correct Covalent's counts of pending inputs."""
    from covalent_dispatcher._core.dispatcher_modules.caches import cache_db
    from covalent_dispatcher._db.datastore import workflow_db
    from covalent_dispatcher._db.models import Lattice, TaskGroupState, WorkflowState
    from sqlalchemy import select

    with workflow_db.session() as session:
        statement = select(Lattice.started_at).where(Lattice.dispatch_id == dispatch_id)
        started = session.scalars(statement).first()
    if started is None or started.replace(tzinfo=UTC) > _BEGAN:
        return Left({}, set(), is_over=False)  # this process runs it
    nodes, waits = _read_nodes(dispatch_id)
    with cache_db.session() as session:
        states = session.scalars(
            select(TaskGroupState).where(TaskGroupState.dispatch_id == dispatch_id)
        ).all()
        if not states:
            raise FarcallError(
                "Covalent's server has lost the state of this dispatch, so it cannot "
                f"continue. Run ct.redispatch({dispatch_id!r}, reuse_previous_results=True) to "
                "run it again."
            )
        groups = {}
        for state in states:
            state.num_pending_parents = waits[state.task_group_id]
            if not state.num_pending_parents:
                groups[state.task_group_id] = json.loads(state.sorted_tasks)
        ended = {number for number, status in nodes.items() if status in _ENDED}
        unfinished = sum(n not in ended for numbers in groups.values() for n in numbers)
        counted = session.get(WorkflowState, dispatch_id)
        if counted is not None:
            counted.num_unresolved_tasks = unfinished
        session.commit()
    return Left(groups, ended, is_over=not unfinished)


def _read_nodes(dispatch_id: str) -> tuple[dict[int, str], Counter[int]]:
    """Return the nodes' states and each task group's number of pending inputs."""
    from covalent_dispatcher._db.datastore import workflow_db
    from covalent_dispatcher._db.models import Electron, ElectronDependency, Lattice
    from sqlalchemy import select

    with workflow_db.session() as session:
        mine = select(Electron).join(Lattice, Electron.parent_lattice_id == Lattice.id)
        electrons = session.scalars(mine.where(Lattice.dispatch_id == dispatch_id)).all()
        by_id = {electron.id: electron for electron in electrons}
        edges = session.scalars(
            select(ElectronDependency).where(ElectronDependency.electron_id.in_(by_id))
        ).all()
        waits: Counter[int] = Counter()
        for edge in edges:
            child, parent = by_id[edge.electron_id], by_id[edge.parent_electron_id]
            if child.task_group_id != parent.task_group_id and parent.status != _COMPLETED:
                waits[child.task_group_id] += 1
        return {e.transport_graph_node_id: e.status for e in electrons}, waits
