"""Replay: a call of a job, fetched to be run again elsewhere than on Batch.

Nothing is unpickled here. What of the bundle the task needs goes into a folder, in which
`farcall_runtime.replay` finds it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import aiofiles

from farcall.engine.session import Session
from farcall.model.errors import FarcallError, IntegrityError, UnknownError, VersionMismatchError
from farcall.model.submission import Submission
from farcall.operations.catalog import Entry
from farcall.operations.explain import Explanation, explain
from farcall.storage import outcomes
from farcall.storage.store import Store
from farcall_runtime import envelope
from farcall_runtime.contract import CallStatus, OutcomeStatus
from farcall_runtime.envelope import Buffer, Index, Part
from farcall_runtime.replay import ORDER, Order

_FIRST_READ_BYTES = 64 * 1024

_Piece = tuple[int, Buffer]
"""An offset in the bundle, and the bytes that are there."""


@dataclass(frozen=True)
class Found:
    """A task whose bundle is there, as it was submitted.

    Attributes:
        entry: The job.
        submission: What it carries.
        index: The task's number there.
        bundle: The verified root of the bundle's index.
        explanation: How the job ended.
        call: Number of the first call that gave no value.
    """

    entry: Entry
    submission: Submission
    index: int
    bundle: Index
    explanation: Explanation
    call: int

    @property
    def python(self) -> str:
        """The Python that pickled it, such as ``"3.11"``."""
        return ".".join(map(str, self.bundle.python))

    def check_python(self) -> None:
        """Refuse to run it in this interpreter where it is another's.

        Raises:
            VersionMismatchError: It is another's.
        """
        if self.bundle.python == sys.version_info[:2]:
            return
        here = ".".join(map(str, sys.version_info[:2]))
        raise VersionMismatchError(
            f"job {self.entry.detail.job_id} was submitted by Python {self.python}, whose code "
            f"this Python, {here}, cannot run; call farcall from an environment of Python "
            f"{self.python}"
        )


async def find(session: Session, job_id: str) -> Found:
    """Check whether a job can be replayed; of an array its first failed child is meant.

    Raises:
        JobLostError: Batch does not know the job.
        UnknownError: farcall did not submit it, or it is an array of which no child failed.
        FarcallError: It cannot be replayed; the message says why.
        IntegrityError: Its bundle is not what was submitted.
        VersionMismatchError: Its bundle was written by another farcall.
        ServiceError: AWS refused a call.
    """
    detail = await session.describe(job_id)
    whole = Submission.whole(detail)
    if detail.array_size:
        children = (await explain(session, detail)).children
        if not children:
            raise UnknownError(
                f"job {job_id} has {detail.array_size} array tasks, and none of them has "
                f"failed; name one of them, {job_id}:0 to {job_id}:{detail.array_size - 1}"
            )
        detail = await session.describe(children[0].job_id)
    entry = cast(Entry, Entry.of(detail))  # it carries a bundle
    _refuse_others(entry, whole)
    submission, index = Submission.of(detail)
    store = session.stores.of(submission.where.bucket)
    _, bundle = await _open(store, submission)
    explanation = await explain(session, detail)
    call = await _first_failed(store, submission, index)
    return Found(entry, submission, index, bundle, explanation, call)


def _refuse_others(entry: Entry, whole: Submission) -> None:
    detail = entry.detail
    if whole.nodes > 1 or detail.node_index is not None:
        raise FarcallError(
            f"job {detail.job_id} runs on several nodes, each of which needs the others; a replay "
            "runs one process"
        )
    if entry.workflow.dispatch:
        raise FarcallError(
            f"job {detail.job_id} runs electrons of dispatch {entry.workflow.dispatch}, whose "
            "arguments are Covalent's; call the electron's function with what Covalent shows"
        )


async def fetch(
    session: Session,
    found: Found,
    folder: Path,
    environment: dict[str, str],
    *,
    call: int | None = None,
    debug: bool = False,
) -> None:
    """Put into a folder what `farcall_runtime.replay` runs.

    Args:
        session: The event loop's session.
        found: The task.
        folder: An empty folder.
        environment: Variables to be set for it.
        call: Number of the call in the task, from 0; by default the first that gave no value.
        debug: Whether the debugger is to stop where the function fails.

    Raises:
        FarcallError: The bundle is no longer there.
        IntegrityError: It is not what was submitted.
        ServiceError: AWS refused a call.
    """
    submission = found.submission
    store = session.stores.of(submission.where.bucket)
    try:
        pieces = await _parts(store, submission, found.index)
        bucket = folder / submission.where.bucket
        objects = _shared(found, pieces)
        manifest = found.bundle.packages()
        if manifest is not None:
            objects[submission.where.package_key(manifest.sha256.hex())] = manifest.size
        for key, size in objects.items():
            data = await store.get_part(key, 0, size, size)
            if data is None:
                raise _missing(f"s3://{submission.where.bucket}/{key}")
            await _write(bucket / key, size, [(0, data)])
    except envelope.IntegrityError as error:
        raise _changed(submission, error) from error
    order = Order(
        bundle=submission.where.url,
        digest=submission.digest,
        number=found.index if found.bundle.entries > 1 else None,
        environment=environment,
        call=found.call if call is None else call,
        debug=debug,
    )

    await _write(bucket / submission.where.bundle_key, found.bundle.end, pieces)
    async with aiofiles.open(folder / ORDER, "w") as file:
        await file.write(json.dumps(order._asdict()))


async def _write(path: Path, size: int, pieces: Iterable[_Piece]) -> None:
    """Write parts of a file where they belong; what is between them takes no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    async with aiofiles.open(path, "wb") as file:
        await file.truncate(size)
        for at, data in pieces:
            await file.seek(at)
            await file.write(data)


def _shared(found: Found, pieces: Sequence[_Piece]) -> dict[str, int]:
    """Return the keys of the shared values that function and arguments refer to, and their sizes.

    Raises:
        IntegrityError: The bundle's index does not name one.
    """
    *_, function, arguments = (data for _, data in pieces)
    wanted = {*envelope.references(function), *envelope.references(arguments)}
    where = found.submission.where
    return {
        where.shared(value.sha256.hex()).data_key(found.bundle.shared(value)): value.size
        for value in wanted
    }


async def _parts(store: Store, submission: Submission, number: int) -> list[_Piece]:
    """Return what of a bundle a task's container reads; function and arguments come last."""
    tail, index = await _open(store, submission)
    tail_at = index.end - len(tail)
    key = submission.where.bundle_key

    async def read(part: Part) -> _Piece:
        if part.offset >= tail_at:
            start = part.offset - tail_at
            data: Buffer | None = memoryview(tail)[start : start + part.length]
        else:
            data = await store.get_part(key, part.offset, part.length, index.end)
        if data is None:
            raise _missing(submission.where.url)
        await asyncio.to_thread(part.check, data)
        return part.offset, data

    page = await read(index.page(number))
    entry = index.entry(number, page[1])
    function = await read(index.function(entry.function))
    return [(tail_at, tail), page, function, await read(entry)]


async def _open(store: Store, submission: Submission) -> tuple[Buffer, Index]:
    """Return the end of a bundle, and the verified root of its index that is in it."""
    try:
        tail = await store.get_end(submission.where.bundle_key, _FIRST_READ_BYTES)
        if tail is not None and (size := envelope.root_size(tail)) > len(tail):
            tail = await store.get_end(submission.where.bundle_key, size)
        if tail is None:
            raise _missing(submission.where.url)
        return tail, Index(bytes(tail[-envelope.root_size(tail) :]), submission.digest)
    except envelope.VersionMismatchError as error:
        text = f"{submission.where.url}: {error}; use the farcall that it was submitted with"
        raise VersionMismatchError(text) from error
    except envelope.IntegrityError as error:
        raise _changed(submission, error) from error


async def _first_failed(store: Store, submission: Submission, index: int) -> int:
    """Return which call of a task is the first without a value; the first where nobody knows."""
    try:
        stored = await outcomes.fetch(store, submission, submission.where.outcome_key(index))
    except envelope.EnvelopeError:
        return 0
    if stored is None:
        return 0
    records = stored.outcome.meta.get("results", ())
    for number, record in enumerate(records):
        if record["status"] != CallStatus.RETURNED:
            return number
    # It was cut off in the one after these.
    return len(records) if stored.outcome.meta["status"] != OutcomeStatus.DONE else 0


def _missing(url: str) -> FarcallError:
    return FarcallError(
        f"{url} is no longer there, and function and arguments with it: what a job was submitted "
        "with is deleted when its tasks have been delivered, or by the bucket's lifecycle rule"
    )


def _changed(submission: Submission, error: Exception) -> IntegrityError:
    return IntegrityError(
        f"{submission.where.url} is not what was submitted ({error}); find out who writes to the "
        "bucket"
    )
