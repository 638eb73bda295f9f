"""Covalent server's database: the files of a task's assets, and the ID of its job.

The code uses the database in the same way as Covalent's dispatcher (covalent_dispatcher, 0.240),
inside the server's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from farcall.engine.batcher import Batcher
from farcall.model.errors import FarcallError
from farcall.model.workflows import Workflow
from farcall_runtime.envelope import Buffer

_log = logging.getLogger("farcall")

_BY_NAME = "{}"
"""Value that Covalent stores for an executor given by name."""

_ERROR = "error"

# --- assets -----------------------------------------------------------------------------------


class Stored(NamedTuple):
    """Database records of nodes.

    Attributes:
        files: The files of the nodes' assets, by node and Covalent's name of the asset.
        workflow: The dispatched lattice around all sublattices.
    """

    files: dict[tuple[int, str], Path]
    workflow: Workflow


def stored(dispatch_id: str, nodes: Iterable[int]) -> Stored:
    """Return the database records of nodes.

    The database names each asset's path, because the result of a sublattice or of a reused task is
    in another dispatch's folder.
    """
    from covalent_dispatcher._db.datastore import workflow_db
    from covalent_dispatcher._db.models import Lattice

    question = _assets_of(dispatch_id, nodes).add_columns(Lattice.name, Lattice.electron_id)
    files, name, sublattice = {}, "", None
    with workflow_db.session() as session:
        for number, key, asset, name, sublattice in session.execute(question):  # noqa: B007
            files[number, key] = Path(asset.storage_path, asset.object_key)
    workflow = Workflow(name, dispatch_id) if sublattice is None else _around(sublattice)
    return Stored(files, workflow)


@functools.lru_cache(maxsize=1024)
def _around(electron_id: int) -> Workflow:
    """Return the dispatch around a sublattice, given the sublattice's electron.

    The root that Covalent stores for a sublattice is the sublattice itself.
    """
    from covalent_dispatcher._db.datastore import workflow_db
    from covalent_dispatcher._db.models import Electron, Lattice
    from sqlalchemy import select

    question = select(Lattice.name, Lattice.dispatch_id, Lattice.electron_id)
    question = question.join(Electron, Electron.parent_lattice_id == Lattice.id)
    with workflow_db.session() as session:
        around = session.execute(question.where(Electron.id == electron_id)).one()
    if around.electron_id is None:
        return Workflow(around.name, around.dispatch_id)
    return _around(around.electron_id)


def lattice_function(dispatch_id: str) -> Path:
    """Return the file of a lattice's function."""
    from covalent_dispatcher._db.datastore import workflow_db
    from covalent_dispatcher._db.models import Asset, Lattice, LatticeAsset
    from sqlalchemy import select

    question = (
        select(Asset)
        .join(LatticeAsset, LatticeAsset.asset_id == Asset.id)
        .join(Lattice, LatticeAsset.meta_id == Lattice.id)
        .where(Lattice.dispatch_id == dispatch_id)
        .where(LatticeAsset.key == "workflow_function")
    )
    with workflow_db.session() as session:
        (asset,) = session.execute(question).one()
        return Path(asset.storage_path, asset.object_key)


def _assets_of(dispatch_id: str, nodes: Iterable[int]) -> Any:
    """Return the query for the assets of nodes: number, name and record of each."""
    from covalent_dispatcher._db.models import Asset, Electron, ElectronAsset, Lattice
    from sqlalchemy import select

    return (
        select(Electron.transport_graph_node_id, ElectronAsset.key, Asset)
        .join(Lattice, Electron.parent_lattice_id == Lattice.id)
        .join(ElectronAsset, ElectronAsset.meta_id == Electron.id)
        .join(Asset, ElectronAsset.asset_id == Asset.id)
        .where(Lattice.dispatch_id == dispatch_id)
        .where(Electron.transport_graph_node_id.in_(list(nodes)))
    )


def write_assets(dispatch_id: str, node: int, assets: Mapping[str, Buffer]) -> dict[str, Any]:
    """Write assets of a node into Covalent's store.

    Args:
        dispatch_id: The dispatch.
        node: The node's number.
        assets: The assets; an empty one is written only over a file that is not empty.

    Returns:
        The assets' part of a `TaskUpdate`.

    Raises:
        FarcallError: The assets could not be written.
    """
    written = {}
    places = {(node, key): data for key, data in assets.items()}
    for (_, key), path in _own_files(dispatch_id, places).items():
        data = assets[key]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.write_bytes(b"")  # free space so that Covalent can report the failure
            raise FarcallError(
                f"cannot write {len(data)} bytes to {path} ({error}). Free disk space on "
                "Covalent's server. The job's stored data is still in the bucket."
            ) from error
        written[key] = {"size": len(data)}
    return written


class _Troubles:
    """Writer of status messages into running nodes' errors, one at a time."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, int], str] = {}
        self._writing: asyncio.Task[None] | None = None

    def note(self, nodes: Iterable[tuple[str, int]], text: str) -> None:
        self._texts |= dict.fromkeys(nodes, text)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write())

    async def noted(self) -> None:
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        while self._texts:
            await asyncio.sleep(0)  # many nodes are reported one by one
            texts, self._texts = self._texts, {}
            try:
                await asyncio.to_thread(_write_errors, texts)
            except Exception as error:  # Covalent's database may be locked, or its disk full
                _log.warning("cannot show trouble on running tasks: %r", error)


_troubles: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Troubles]
_troubles = weakref.WeakKeyDictionary()


def record_trouble(nodes: Iterable[tuple[str, int]], text: str) -> None:
    """Show in the error of running nodes why their status is unknown.

    Covalent has no other field that clients read while a node runs. Await `trouble_noted` before
    writing a node's own error.

    Args:
        nodes: Dispatch ID and number of each node.
        text: The message; empty when the status is known again.
    """
    _troubles.setdefault(asyncio.get_running_loop(), _Troubles()).note(nodes, text)


async def trouble_noted() -> None:
    """Wait until the messages of nodes are written."""
    troubles = _troubles.get(asyncio.get_running_loop())
    if troubles is not None:
        await troubles.noted()


def _write_errors(texts: Mapping[tuple[str, int], str]) -> None:
    from covalent_dispatcher._db.datastore import workflow_db

    dispatches: dict[str, dict[tuple[int, str], bytes]] = {}
    for (dispatch_id, node), text in texts.items():
        assets = dispatches.setdefault(dispatch_id, {})
        assets[node, _ERROR] = text.encode(errors="replace")
    for dispatch_id, assets in dispatches.items():
        for place, path in _own_files(dispatch_id, assets).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(assets[place])
        # Clients read the size first, so the content must be written before it.
        with workflow_db.session() as session:
            nodes = {node for node, _ in assets}
            for node, key, asset in session.execute(_assets_of(dispatch_id, nodes)):
                if key == _ERROR:
                    asset.size = len(assets[node, key])


def _own_files(
    dispatch_id: str, assets: Mapping[tuple[int, str], Buffer]
) -> dict[tuple[int, str], Path]:
    """Return the paths to write assets to, by node and name.

    In a redispatch, Covalent points a new node's assets to the old node's files, which must not
    change (covalent_dispatcher/_dal/tg_ops.py).
    """
    from covalent_dispatcher._db.datastore import workflow_db
    from covalent_dispatcher._object_store.local import local_store

    files = {}
    with workflow_db.session() as session:
        nodes = {node for node, _ in assets}
        for node, key, asset in session.execute(_assets_of(dispatch_id, nodes)):
            data = assets.get((node, key))
            if data is not None and (len(data) or asset.size):
                where = local_store.get_uri_components(dispatch_id, node, key)
                if (asset.storage_path, asset.object_key) != where:
                    asset.storage_path, asset.object_key = where
                files[node, key] = Path(*where)
    return files


# --- jobs -------------------------------------------------------------------------------------


class _Handle(NamedTuple):
    dispatch_id: str
    node: int
    job_id: str
    executor: str


async def _store(handles: list[_Handle]) -> list[None]:
    """Store all pending handles in one transaction, outside the event loop.

    Covalent itself would commit each handle separately, which blocks its server meanwhile.
    """
    await asyncio.to_thread(_write_handles, handles)
    return [None] * len(handles)


_writers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Batcher[_Handle, None]]
_writers = weakref.WeakKeyDictionary()


async def record_job(dispatch_id: str, node: int, executor: str, job_id: str) -> None:
    """Store the ID of a task group's job, for cancellation or a restart.

    If the ID cannot be stored, the job continues.

    Args:
        dispatch_id: The dispatch.
        node: One of the group's nodes; they share Covalent's record of the job.
        executor: The executor's JSON as stored by Covalent. If a node's executor was given by
            name, the server keeps this JSON, so that Covalent's UI shows it and the node's options
            do not change.
        job_id: The ID, or a text with which `TaskGroups.find_job` finds the job.
    """
    loop = asyncio.get_running_loop()
    if loop not in _writers:
        _writers[loop] = Batcher(_store)
    try:
        await asyncio.shield(_writers[loop].add(_Handle(dispatch_id, node, job_id, executor)))
    except Exception as error:  # Covalent's database may be locked, or its disk full
        _log.warning("cannot record job %s in Covalent: %r", job_id, error)


def _write_handles(handles: list[_Handle]) -> None:
    from covalent_dispatcher._db.datastore import workflow_db
    from covalent_dispatcher._db.models import Electron, Job, Lattice
    from sqlalchemy import select

    wanted = {(each.dispatch_id, each.node): each for each in handles}
    statement = (
        select(Lattice.dispatch_id, Electron, Job)
        .join(Lattice, Electron.parent_lattice_id == Lattice.id)
        .join(Job, Electron.job_id == Job.id)
        .where(Lattice.dispatch_id.in_({dispatch_id for dispatch_id, _ in wanted}))
        .where(Electron.transport_graph_node_id.in_({node for _, node in wanted}))
    )
    with workflow_db.session() as session:
        for dispatch_id, electron, job in session.execute(statement):
            handle = wanted.get((dispatch_id, electron.transport_graph_node_id))
            if handle is not None:
                job.job_handle = json.dumps(handle.job_id)
                if electron.executor_data == _BY_NAME:
                    electron.executor_data = handle.executor


def read_job(dispatch_id: str, node: int) -> str | None:
    """Return the text that `record_job` stored for a node; None if there is none."""
    from covalent_dispatcher._db import jobdb

    (record,) = jobdb.get_job_records(jobdb.to_job_ids(dispatch_id, [node]))
    handle: Any = json.loads(record["job_handle"])
    return handle if isinstance(handle, str) else None
