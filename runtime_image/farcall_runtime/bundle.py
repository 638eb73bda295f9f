"""Task of the container: read from its environment, fetched and verified."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, NamedTuple

from farcall_runtime import contract, envelope
from farcall_runtime.contract import ExitCode, Location
from farcall_runtime.envelope import Buffer, Index, Part, Reference
from farcall_runtime.storage import (
    SINGLE_PUT_BYTES,
    NotFoundError,
    Storage,
    StorageError,
    TooShortError,
    UnfitError,
    until_intact,
)

_FIRST_READ_BYTES = 64 * 1024
"""Size of the first request in bytes: the end of a bundle.

It contains all of a small bundle, and the functions of any bundle.
"""

LARGEST_OUTCOME_BYTES = 2 * SINGLE_PUT_BYTES
"""Larger than any outcome. Other writers may have stored any object under its key."""

_LARGEST_RECEIPT_BYTES = 64 * 1024
_MOST_RECEIPTS = 100  # each client that collects some of a bundle's results writes one


class RefusedError(Exception):
    """The task cannot be run here.

    Attributes:
        code: The exit code for this reason.
    """

    def __init__(self, code: ExitCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Assignment(NamedTuple):
    """Task that the container's environment names.

    Attributes:
        where: Location of the bundle.
        digest: SHA-256 of the bundle's index.
        key: Signs outcomes and output chunks.
        array_index: Index of the array task; None for a plain job.
        node: Index of this node of a multi-node job; the main node has 0.
        nodes: Number of nodes.
        attempt: Number of the attempt, from 1.
        job_id: The job's ID; for an array task with its index.
        may_be_cancelled: Whether a cancel marker may exist for this task.
    """

    where: Location
    digest: str
    key: bytes
    array_index: int | None
    attempt: int
    job_id: str
    node: int = 0
    nodes: int = 1
    may_be_cancelled: bool = False

    def __repr__(self) -> str:
        return f"<Assignment {self.number} of {self.where.url}, attempt {self.attempt}>"

    @property
    def entry(self) -> int:
        """Index of the task in the bundle; all nodes of a job have the same."""
        return self.array_index or 0

    @property
    def number(self) -> int:
        """Number for this container's own objects: the task's index, or the node's."""
        return self.array_index or self.node

    @property
    def is_main(self) -> bool:
        """Whether this container ends the job."""
        return self.node == 0

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Assignment:
        """Parse the environment.

        Raises:
            RefusedError: A variable is missing or violates the contract.
        """
        try:
            return cls(
                where=Location.parse(environment.get(contract.ENV_BUNDLE, "")),
                digest=_hexadecimal(contract.ENV_DIGEST, environment).hex(),
                key=_hexadecimal(contract.ENV_OUTCOME_KEY, environment),
                **_task(environment),
                **_place(environment),
            )
        except KeyError as error:
            text = f"{error.args[0]} is not set; submit jobs with this image using farcall"
            raise RefusedError(ExitCode.BAD_ENVIRONMENT, text) from error
        except ValueError as error:
            raise RefusedError(ExitCode.BAD_ENVIRONMENT, str(error)) from error


class Fetched(NamedTuple):
    """Payload that is ready to be read.

    Attributes:
        meta: The bundle's facts for all its containers.
        function: Offset and length of the pickled function in the payload file.
        arguments: Offset and length of the pickled arguments in the payload file.
        shared_at: Offset of the shared values that these refer to; see `envelope.places_of`.
        packages: The manifest of the task's packages; None if the image has them.
    """

    meta: dict[str, Any]
    function: tuple[int, int]
    arguments: tuple[int, int]
    shared_at: int
    packages: Reference | None = None


def _hexadecimal(name: str, environment: Mapping[str, str]) -> bytes:
    text = environment[name]
    with contextlib.suppress(ValueError):
        value = bytes.fromhex(text)
        if len(value) == hashlib.sha256().digest_size:
            return value
    raise ValueError(f"{name} must have 64 hexadecimal digits")


def _number(name: str, environment: Mapping[str, str], least: int) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise ValueError(f"{name} is {text!r}; it must be a number of at least {least}")
    return int(text)


def _task(environment: Mapping[str, str]) -> dict[str, Any]:
    """Read the task, the job and the attempt from the environment."""
    own = _number(contract.ENV_OWN_INDEX, environment, 0)
    job_id = environment.get(contract.ENV_OWN_JOB_ID) or environment.get(contract.ENV_JOB_ID, "")
    attempt = _attempt(environment)
    is_cancellable = environment.get(contract.ENV_CANCELLABLE) == "1"
    return {
        "array_index": own
        if own is not None
        else _number(contract.ENV_ARRAY_INDEX, environment, 0),
        "attempt": attempt,
        "job_id": job_id if own is None else f"{job_id}:{own}",
        "may_be_cancelled": is_cancellable or (own is not None and attempt > 1),
    }


def _attempt(environment: Mapping[str, str]) -> int:
    """Read the number of the attempt, or count the earlier ones."""
    for name in (contract.ENV_OWN_ATTEMPT, contract.ENV_ATTEMPT):
        number = _number(name, environment, 1)
        if number is not None:
            return number
    counted = (contract.ENV_FAILED_ATTEMPTS, contract.ENV_IGNORED_ATTEMPTS)
    there = {name: text for name in counted if (text := environment.get(name))}
    return 1 + sum(_number(name, there, 0) or 0 for name in there)


def _place(environment: Mapping[str, str]) -> dict[str, Any]:
    """Read the index of this node and the number of nodes."""
    names = (contract.ENV_OWN_NODES, contract.ENV_OWN_NODE_INDEX)
    if contract.ENV_OWN_NODES not in environment:
        names = (contract.ENV_NODES, contract.ENV_NODE_INDEX)
    nodes = _number(names[0], environment, 1) or 1
    node = _number(names[1], environment, 0) or 0
    if node >= nodes:
        raise ValueError(f"{names[1]} is {node}, but the job has {nodes} nodes")
    if _number(contract.ENV_MAIN_NODE, environment, 0):
        raise ValueError(
            f"{contract.ENV_MAIN_NODE} is not 0; the main node of a farcall job is the first one"
        )
    return {"node": node, "nodes": nodes}


def stored_code(job: Assignment, storage: Storage) -> ExitCode | None:
    """Return the exit code of the container that stored the final outcome.

    Returns:
        The code in the outcome; None if there is no outcome.

    Raises:
        RefusedError: S3 could not be reached, or the stored outcome is not this job's.
    """
    key = job.where.outcome_key(job.entry)

    def read() -> envelope.Outcome:
        return envelope.open_outcome(job.key, key, storage.read(key, 0, LARGEST_OUTCOME_BYTES))

    try:
        return ExitCode(until_intact(read).meta["code"])
    except NotFoundError:
        return None
    except (TooShortError, envelope.EnvelopeError) as error:
        text = f"another client wrote {key} ({error})"
        raise RefusedError(ExitCode.OUTCOME_OCCUPIED, text) from error
    except UnfitError as error:
        raise RefusedError(ExitCode.STORE_UNFIT, str(error)) from error
    except StorageError as error:
        raise RefusedError(ExitCode.STORAGE_UNREACHABLE, str(error)) from error


def is_cancelled(job: Assignment, storage: Storage) -> bool:
    """Return whether a signed cancel marker exists for the task.

    Raises:
        RefusedError: S3 could not be reached.
    """
    key = job.where.cancelled_key(job.entry)
    try:
        envelope.open_note(job.key, key, storage.read(key, 0, _LARGEST_RECEIPT_BYTES))
    except (NotFoundError, TooShortError, envelope.EnvelopeError):
        return False
    except StorageError as error:
        raise RefusedError(ExitCode.STORAGE_UNREACHABLE, str(error)) from error
    return True


def is_receipted(job: Assignment, storage: Storage) -> bool:
    """Return whether a client's signed receipt includes the task's result.

    A client writes a receipt before it deletes an outcome, except for the last outcomes of a
    bundle: before those it deletes the bundle, and after that the receipts. So check receipts
    first, then the bundle.

    Raises:
        StorageError: S3 could not be reached, or refused.
    """
    for number in range(_MOST_RECEIPTS):
        key = job.where.receipt_key(number)
        try:
            data = storage.read(key, 0, _LARGEST_RECEIPT_BYTES)
            if job.entry in envelope.receipted(job.key, key, data, job.entry + 1):
                return True
        except NotFoundError:
            return False
        except (TooShortError, envelope.EnvelopeError):  # written by another user
            continue
    return False


def is_delivered(job: Assignment, storage: Storage) -> bool:
    """Return whether a client has the task's result, or the bundle was deleted.

    Raises:
        StorageError: S3 could not be reached, or refused.
    """
    if is_receipted(job, storage):
        return True
    try:
        storage.version(job.where.bundle_key)
    except NotFoundError:
        return True
    return False


def fetch(job: Assignment, storage: Storage, payload: BinaryIO) -> Fetched:
    """Fetch function and arguments into the payload file.

    Args:
        job: The task.
        storage: The bucket.
        payload: An empty file.

    Raises:
        RefusedError: The bundle or a shared value is missing or was changed; or the bundle is
            from another Python, or has no task for this container.
    """
    try:
        return until_intact(lambda: _fetch(job, storage, payload))
    except _SharedMissingError as error:
        text = (
            f"{error} (a value that the task shares with other tasks; was it deleted before the "
            "job started?)"
        )
        raise RefusedError(ExitCode.SHARED_MISSING, text) from error
    except NotFoundError as error:
        text = f"{error} (was it deleted before the job started?)"
        raise RefusedError(ExitCode.BUNDLE_MISSING, text) from error
    except envelope.VersionMismatchError as error:
        raise RefusedError(ExitCode.VERSION_MISMATCH, str(error)) from error
    except (TooShortError, envelope.IntegrityError) as error:
        raise RefusedError(ExitCode.INTEGRITY, f"{job.where.url}: {error}") from error
    except UnfitError as error:
        raise RefusedError(ExitCode.STORE_UNFIT, str(error)) from error
    except StorageError as error:
        raise RefusedError(ExitCode.STORAGE_UNREACHABLE, str(error)) from error


def _fetch(job: Assignment, storage: Storage, payload: BinaryIO) -> Fetched:
    payload.seek(0)
    payload.truncate()
    bundle = _Bundle(job, storage)
    _check_python(bundle.index)
    _check_number(job.array_index, bundle.index.entries)
    page = bundle.read(bundle.index.page(job.entry))
    entry = bundle.index.entry(job.entry, page)
    packages = bundle.index.packages()
    function, arguments = (
        bundle.bring(part, payload) for part in (bundle.index.function(entry.function), entry)
    )
    shared_at = payload.tell()
    payload.flush()
    wanted = [*_references(payload, *function), *_references(payload, *arguments)]
    if wanted:
        bundle.bring_shared(wanted, payload)
    payload.flush()
    return Fetched(bundle.index.meta, function, arguments, shared_at, packages)


class _SharedMissingError(Exception):
    """A shared value does not exist."""


def _references(payload: BinaryIO, at: int, length: int) -> list[Reference]:
    """Return the references of a frame in the payload; only its table is read."""
    descriptor = payload.fileno()
    size = envelope.table_size(os.pread(descriptor, 4, at)) if length else 0
    return envelope.references(os.pread(descriptor, min(size, length), at)) if length else []


def _check_python(index: Index) -> None:
    """Reject another minor version before unpickling, because code objects differ."""
    if index.python == sys.version_info[:2]:
        return
    theirs, ours = (".".join(map(str, pair)) for pair in (index.python, sys.version_info[:2]))
    raise envelope.VersionMismatchError(
        f"the function was pickled by Python {theirs}, but this image runs Python {ours}; "
        f"build the image on Python {theirs}, or run the workflow on Python {ours}"
    )


def _check_number(number: int | None, tasks: int) -> None:
    """Reject an ambiguous index.

    A single task is a plain job, for which Batch sets no index; 0 could mean no other task.

    Source:
        https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html
    """
    if number is None and tasks > 1:
        problem = "is not set, so it is unknown which one this container must run"
    elif number is not None and number >= tasks:
        problem = f"is {number}, so this container has no task"
    else:
        return
    text = f"the job has {tasks} tasks, but {contract.ENV_ARRAY_INDEX} {problem}"
    raise RefusedError(ExitCode.BAD_ENVIRONMENT, text)


class _Bundle:
    """Bundle in the bucket, whose end has been fetched.

    Attributes:
        index: The verified root of its index.
    """

    def __init__(self, job: Assignment, storage: Storage) -> None:
        self._where = job.where
        self._key = job.where.bundle_key
        self._storage = storage
        tail = storage.read_end(self._key, _FIRST_READ_BYTES)
        size = envelope.root_size(tail)
        if size > len(tail):
            tail = storage.read_end(self._key, size)
        self.index = Index(tail[-size:], job.digest)
        self._tail = memoryview(tail)
        self._tail_at = self.index.end - len(tail)

    def read(self, part: Part) -> Buffer:
        """Return a small part, which the caller must verify."""
        if part.offset >= self._tail_at:
            start = part.offset - self._tail_at
            return self._tail[start : start + part.length]
        return self._storage.read(self._key, part.offset, part.offset + part.length)

    def bring(self, part: Part, payload: BinaryIO) -> tuple[int, int]:
        """Append a part to the payload file; return its range there.

        Raises:
            IntegrityError: It differs from the index.
        """
        at = payload.tell()
        if part.offset >= self._tail_at:
            data = self.read(part)
            part.check(data)
            payload.write(data)
        else:
            digest = hashlib.sha256()
            for piece in self._storage.stream(self._key, part.offset, part.length):
                digest.update(piece)
                payload.write(piece)
            if digest.digest() != part.sha256:
                raise envelope.IntegrityError("a part of the input data differs from its index")
        payload.write(bytes(-part.length % envelope.ALIGNMENT))
        return at, part.length

    def bring_shared(self, wanted: Iterable[Reference], payload: BinaryIO) -> None:
        """Append the shared values that frames refer to, each once, to the payload file.

        They are fetched in parallel and verified.

        Raises:
            IntegrityError: A value is not named in the index, or differs from its digest.
        """
        places = envelope.places_of(wanted, payload.tell())
        values = list(places)
        ranges = [(self._key_of(each), 0, each.size) for each in values]
        try:
            pieces = self._storage.stream_all(ranges)
            for number, group in itertools.groupby(pieces, key=lambda piece: piece[0]):
                payload.seek(places[values[number]])
                digest = hashlib.sha256()
                for _, piece in group:
                    digest.update(piece)
                    payload.write(piece)
                if digest.digest() != values[number].sha256:
                    text = f"the content of {ranges[number][0]} does not match its name"
                    raise envelope.IntegrityError(text)
        except NotFoundError as error:
            raise _SharedMissingError(str(error)) from error

    def _key_of(self, value: Reference) -> str:
        return self._where.shared_key(value.sha256.hex(), self.index.shared(value))
