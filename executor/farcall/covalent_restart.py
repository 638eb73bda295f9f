"""Taking dispatches up again that an earlier process of Covalent's server has left.

Covalent starts nothing again after a restart. What its own dispatcher would do next is done here
by its own functions (covalent_dispatcher/_core, 0.240), inside the server's process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path

from covalent._shared_files.config import get_config

from farcall.errors import FarcallError

_BEGAN = datetime.now(timezone.utc)  # the server loads its plugins before it does anything else
_STATE_VARIABLE = "COVALENT_CACHE_DB_URL"


def keep_state_over_restarts() -> None:
    """Have the server keep the state of running dispatches in its database.

    By default it lies in a temporary file (covalent_dispatcher/_core/dispatcher_modules/caches.py,
    0.240), and a dispatch that was running when the server was killed can never be finished. The
    plugin is loaded before Covalent reads the variable.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None or Path(main).resolve().parts[-2:] != ("covalent_ui", "app.py"):
        return  # not the server; a client's children must not inherit the variable
    database = os.environ.get("COVALENT_DATABASE_URL")
    url = database or "sqlite+pysqlite:///" + get_config("dispatcher.db_path")
    os.environ.setdefault(_STATE_VARIABLE, url)


_orphans: dict[str, asyncio.Future[dict[int, list[int]]]] = {}
"""For each dispatch, the task groups whose turn had come when this process first looked."""


async def look_for_orphans(dispatch_id: str) -> None:
    """Note which task groups of a dispatch wait for nobody; call it before one of them goes on.

    Once a task has been received, Covalent itself starts those that waited for it.
    """
    looking = _orphans.get(dispatch_id)
    if looking is None or (looking.done() and (looking.cancelled() or looking.exception())):
        found = asyncio.to_thread(_find_orphans, dispatch_id)
        looking = _orphans[dispatch_id] = asyncio.ensure_future(found)
    await asyncio.wait([looking])


async def start_again(dispatch_id: str, group: int) -> None:
    """Have Covalent start a task group that an earlier process left without a job.

    Args:
        dispatch_id: The dispatch.
        group: Number of the task group.

    Raises:
        FarcallError: The server does not know how far the dispatch had come.
    """
    from covalent_dispatcher._core import dispatcher

    nodes = (await _orphans[dispatch_id]).pop(group, None)
    if nodes is not None:
        await dispatcher._submit_task_group(dispatch_id, nodes, group)


def _find_orphans(dispatch_id: str) -> dict[int, list[int]]:
    """Return the nodes of each task group of an earlier process that has no one to wait for."""
    from covalent_dispatcher._core.dispatcher_modules.caches import cache_db
    from covalent_dispatcher._db.datastore import workflow_db
    from covalent_dispatcher._db.models import Lattice, TaskGroupState
    from sqlalchemy import select

    with workflow_db.session() as session:
        statement = select(Lattice.started_at).where(Lattice.dispatch_id == dispatch_id)
        started = session.scalars(statement).first()
    if started is None or started.replace(tzinfo=timezone.utc) > _BEGAN:
        return {}  # it is this process that runs it
    with cache_db.session() as session:
        states = session.scalars(
            select(TaskGroupState).where(TaskGroupState.dispatch_id == dispatch_id)
        ).all()
        if not states:
            raise FarcallError(
                "Covalent's server has lost the state of this dispatch, so it cannot go on; run "
                f"it again with ct.redispatch({dispatch_id!r}, reuse_previous_results=True)"
            )
        return {
            state.task_group_id: json.loads(state.sorted_tasks)
            for state in states
            if state.num_pending_parents < 1
        }
