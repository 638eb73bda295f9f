"""Replay: download of a job's call for running it again outside of Batch.

Nothing is unpickled here. The task's part of the bundle is written to a folder, in which
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
"""An offset in the bundle, and the bytes at this offset."""


@dataclass(frozen=True)
class Found:
    """Task with its original bundle.

    Attributes:
        entry: The job.
        submission: The job's submission.
        index: The task's index in the job.
        bundle: The verified root of the bundle's index.
        explanation: Explanation of the job's result.
        call: Number of the first call without a result.
    """

    entry: Entry
    submission: Submission
    index: int
    bundle: Index
    explanation: Explanation
    call: int

    @property
    def python(self) -> str:
        """The Python version that pickled the bundle, such as ``"3.11"``."""
        return ".".join(map(str, self.bundle.python))

    def check_python(self) -> None:
        """Raise an error if this interpreter has another Python version than the bundle.

        Raises:
            VersionMismatchError: The versions differ.
        """
        if self.bundle.python == sys.version_info[:2]:
            return
        here = ".".join(map(str, sys.version_info[:2]))
        raise VersionMismatchError(
            f"job {self.entry.detail.job_id} was submitted by Python {self.python}, whose code "
            f"cannot run on this Python, {here}. Run farcall from an environment with Python "
            f"{self.python}."
        )


async def find(session: Session, job_id: str) -> Found:
    """Check whether a job can be replayed; for an array, its first failed task.

    Raises:
        JobLostError: Batch does not know the job.
        UnknownError: farcall did not submit the job, or it is an array without a failed task.
        FarcallError: The job cannot be replayed; the message has the reason.
        IntegrityError: The bundle differs from the submitted one.
        VersionMismatchError: Another version of farcall wrote the bundle.
        ServiceError: AWS refused a call.
    """
    detail = await session.describe(job_id)
    whole = Submission.whole(detail)
    if detail.array_size:
        children = (await explain(session, detail)).children
        if not children:
            raise UnknownError(
                f"job {job_id} has {detail.array_size} array tasks, and none of them has "
                f"failed. Name one of them, {job_id}:0 to {job_id}:{detail.array_size - 1}."
            )
        detail = await session.describe(children[0].job_id)
    entry = cast(Entry, Entry.of(detail))  # a job with a bundle is a farcall job
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
            f"job {detail.job_id} runs on several nodes, which need each other, but a replay "
            "runs one process"
        )
    if entry.workflow.dispatch:
        raise FarcallError(
            f"job {detail.job_id} runs electrons of dispatch {entry.workflow.dispatch}, whose "
            "arguments are stored by Covalent. Call the electron's function with the "
            "arguments that Covalent shows."
        )


async def fetch(
    session: Session,
    failed_call: Found,
    folder: Path,
    environment: dict[str, str],
    *,
    call: int | None = None,
    debug: bool = False,
) -> None:
    """Write the data for `farcall_runtime.replay` to a folder.

    Args:
        session: The event loop's session.
        failed_call: The task.
        folder: An empty folder.
        environment: Variables to set for the call.
        call: Number of the call in the task, from 0; by default the first one without a result.
        debug: Whether the debugger stops where the function fails.

    Raises:
        FarcallError: The bundle is no longer in the bucket.
        IntegrityError: The bundle differs from the submitted one.
        ServiceError: AWS refused a call.
    """
    submission = failed_call.submission
    store = session.stores.of(submission.where.bucket)
    try:
        pieces = await _parts(store, submission, failed_call.index)
        bucket = folder / submission.where.bucket
        objects = _shared(failed_call, pieces)
        manifest = failed_call.bundle.packages()
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
        number=failed_call.index if failed_call.bundle.entries > 1 else None,
        environment=environment,
        call=failed_call.call if call is None else call,
        debug=debug,
    )

    await _write(bucket / submission.where.bundle_key, failed_call.bundle.end, pieces)
    async with aiofiles.open(folder / ORDER, "w") as file:
        await file.write(json.dumps(order._asdict()))


async def _write(path: Path, size: int, pieces: Iterable[_Piece]) -> None:
    """Write pieces of a sparse file at their offsets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    async with aiofiles.open(path, "wb") as file:
        await file.truncate(size)
        for at, data in pieces:
            await file.seek(at)
            await file.write(data)


def _shared(failed_call: Found, pieces: Sequence[_Piece]) -> dict[str, int]:
    """Return keys and sizes of the shared values that function and arguments refer to.

    Raises:
        IntegrityError: A shared value is missing in the bundle's index.
    """
    *_, function, arguments = (data for _, data in pieces)
    wanted = {*envelope.references(function), *envelope.references(arguments)}
    where = failed_call.submission.where
    return {
        where.shared_key(value.sha256.hex(), failed_call.bundle.shared(value)): value.size
        for value in wanted
    }


async def _parts(store: Store, submission: Submission, number: int) -> list[_Piece]:
    """Return the parts of a bundle that a task reads, function and arguments last."""
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
    """Return the end of a bundle, with the verified root of its index."""
    try:
        tail = await store.get_end(submission.where.bundle_key, _FIRST_READ_BYTES)
        if tail is not None and (size := envelope.root_size(tail)) > len(tail):
            tail = await store.get_end(submission.where.bundle_key, size)
        if tail is None:
            raise _missing(submission.where.url)
        return tail, Index(bytes(tail[-envelope.root_size(tail) :]), submission.digest)
    except envelope.VersionMismatchError as error:
        text = f"{submission.where.url}: {error}. Use the farcall version that submitted it."
        raise VersionMismatchError(text) from error
    except envelope.IntegrityError as error:
        raise _changed(submission, error) from error


async def _first_failed(store: Store, submission: Submission, index: int) -> int:
    """Return a task's first call without a result; the first call if unknown."""
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
    # The call after these was cut off.
    return len(records) if stored.outcome.meta["status"] != OutcomeStatus.DONE else 0


def _missing(url: str) -> FarcallError:
    return FarcallError(
        f"{url} no longer exists, so the function and arguments are lost: the input data of a "
        "job is deleted when its results have been delivered, or by the bucket's lifecycle "
        "rule"
    )


def _changed(submission: Submission, error: Exception) -> IntegrityError:
    return IntegrityError(
        f"{submission.where.url} differs from what was submitted ({error}). Find out who "
        "writes to the bucket."
    )
