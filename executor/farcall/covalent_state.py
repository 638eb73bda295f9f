"""What the Covalent door asks of Covalent's server beyond the plugin interface.

Covalent keeps a task's job handle and starts nothing again after a restart; both are reached
through the functions its own dispatcher uses (covalent_dispatcher/_core, 0.240). Everything here
runs inside the server's process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from covalent._shared_files.config import get_config

from farcall.errors import FarcallError

_STATE_VARIABLE = "COVALENT_CACHE_DB_URL"


def keep_state_over_restarts() -> None:
    """Have the server keep the state of running dispatches in its database.

    By default it lies in a temporary file (covalent_dispatcher/_core/dispatcher_modules/caches.py,
    0.240), and a dispatch that was running when the server was killed can never be finished.
    The plugin is loaded before Covalent reads the variable.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None or Path(main).resolve().parts[-2:] != ("covalent_ui", "app.py"):
        return  # not the server; a client's children must not inherit the variable
    database = os.environ.get("COVALENT_DATABASE_URL")
    url = database or "sqlite+pysqlite:///" + get_config("dispatcher.db_path")
    os.environ.setdefault(_STATE_VARIABLE, url)


async def job_handle(dispatch_id: str, node: int) -> str | None:
    """Return the job's ID that was stored for a node, or None if there is none."""
    from covalent_dispatcher._core.data_modules import job_manager

    (record,) = await job_manager.get_jobs_metadata(dispatch_id, [node])
    handle: Any = json.loads(record["job_handle"])
    return handle if isinstance(handle, str) else None


async def set_job_handle(dispatch_id: str, node: int, job_id: str) -> None:
    """Store the job's ID for a node of a task group that is not its first."""
    from covalent_dispatcher._core.data_modules import job_manager

    await job_manager.set_job_handle(dispatch_id, node, json.dumps(job_id))


async def start_again(dispatch_id: str, group: int, node: int) -> None:
    """Have Covalent start a task group that has no job, if its turn has come.

    Args:
        dispatch_id: The dispatch.
        group: Number of the task group.
        node: The node that was asked for; a group is started for its first one.

    Raises:
        FarcallError: The server does not know how far the dispatch had come.
    """
    from covalent_dispatcher._core import dispatcher
    from covalent_dispatcher._core.dispatcher_modules.caches import _task_group_cache

    try:
        pending = await _task_group_cache.get_pending(dispatch_id, group)
        nodes = await _task_group_cache.get_task_group(dispatch_id, group)
    except IndexError as error:
        raise FarcallError(
            "Covalent's server has lost the state of this dispatch, so it cannot go on; run it "
            f"again with ct.redispatch({dispatch_id!r}, reuse_previous_results=True)"
        ) from error
    if pending < 1 and nodes[0] == node:
        await dispatcher._submit_task_group(dispatch_id, nodes, group)
