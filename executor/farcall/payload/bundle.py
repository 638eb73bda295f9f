"""Bundles: a job's input, which is uploaded before the job is submitted. No I/O."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from farcall.config.settings import Settings
from farcall.model import names
from farcall.model.errors import TaskTooLargeError
from farcall.model.workflows import Workflow
from farcall.payload import call_texts
from farcall.payload.pickling import Origin, Packed
from farcall.payload.shared import Piece, Share, stay_here
from farcall_runtime import contract, envelope
from farcall_runtime.contract import Location
from farcall_runtime.envelope import Buffer

_STEP_BYTES = 8 * 1024 * 1024
"""Maximum bytes hashed in one call; the bytes before are uploaded meanwhile."""

_FULL_BYTES = 4 * 1024**3
"""Size in bytes at which a bundle stops taking tasks, so that its tasks can begin."""

_LARGEST_BYTES = 64 * 1024**3
"""Maximum size of a task's arguments in bytes.

An upload has at most 10,000 parts,
https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
"""


FIXED = "fixed"
"""Key of a bundle fact: names of the keyword arguments that all calls share."""


class Bundle:
    """A job's input; equal functions are stored once.

    It takes tasks until it is full; the remaining tasks are for another bundle.

    Args:
        settings: The options.
        root: Key prefix of the run.
        name: A recognizable name, such as the function's.
        tasks: Function and arguments of each task, at least one; all functions have one origin.
        workflow: The workflow of the tasks.
        facts: Further facts, JSON; read after the tasks.
        retry_of: ID of the job whose failed tasks these are; empty for none.
        most: Maximum number of tasks: the size of the largest array job.
        share: Stores the large values that its tasks refer to. It is called by `pieces`, which
            waits for its results.
        packages: Digest and size of the manifest of its tasks' packages; None for none.

    Attributes:
        where: Its location; its job has the same name, so that either can be found from the other.
        keys: All keys that it has had.
        key: Secret that signs the job's outcomes.
        size: Number of tasks, after `pieces` is exhausted.
        digest: SHA-256 of the root of its index in hexadecimal, after `pieces` is exhausted.
        texts: Summaries of its tasks for lists, after `pieces` is exhausted; see
            `farcall.payload.call_texts`.
    """

    def __init__(
        self,
        settings: Settings,
        root: str,
        name: str,
        tasks: Iterator[tuple[Packed, Packed]],
        workflow: Workflow,
        facts: Mapping[str, Any] | None = None,
        *,
        most: int,
        share: Share = stay_here,
        packages: Sequence[Any] | None = None,
        retry_of: str = "",
    ) -> None:
        self.where = Location(settings.s3_bucket_name, root, names.unique(name))
        self.keys = [self.where.bundle_key]
        self.key = secrets.token_bytes(32)
        self.size = 0
        self.digest = "0" * 64  # as long as the final digest
        self.texts = b""
        self._settings = settings
        self._tasks = tasks
        self._workflow = workflow
        self._facts = {} if facts is None else facts
        self._retry_of = retry_of
        self._most = most
        self._share = share
        self._packages = packages
        self._shared: dict[bytes, tuple[int, Future[str]]] = {}  # without the bytes

    def pieces(self) -> Iterator[Buffer]:
        """Yield the bytes, once, hashing them meanwhile and retaining none.

        Raises:
            TaskTooLargeError: The arguments of a task exceed the maximum size of an upload.
            Exception: Raised by sharing a value.
        """
        functions: dict[bytes, tuple[int, Packed]] = {}
        entries: list[tuple[int, int, bytes]] = []
        texts: list[str] = []
        total = 0
        function: Packed | None = None
        while len(entries) < self._most and total < _FULL_BYTES:
            task = next(self._tasks, None)
            if task is None:
                break
            if function is None:
                yield envelope.bundle_start(task[0].origin.minor)
            function, arguments = task
            if arguments.size > _LARGEST_BYTES:
                raise _too_large(arguments.size)
            number, _ = functions.setdefault(function.sha256, (len(functions), function))
            grown = self._record_shared((*function.shared, *arguments.shared))
            # The first task's shared values may be common to all tasks.
            total += grown if entries else 0
            digest = yield from _hashed(arguments.pieces)
            entries.append((number, arguments.size, digest))
            texts.append(arguments.text)
            total += arguments.size
        if function is None:
            raise ValueError("a bundle needs at least one task")
        self.texts = call_texts.seal(texts)
        pages, root = self._seal(function.origin, functions.values(), entries)
        if self.texts:
            yield self.texts
        yield pages
        for _, each in functions.values():
            yield from each.pieces
        yield root
        self.size, self.digest = len(entries), hashlib.sha256(root).hexdigest()

    def _seal(
        self,
        origin: Origin,
        functions: Iterable[tuple[int, Packed]],
        entries: Sequence[tuple[int, int, bytes]],
    ) -> envelope.SealedIndex:
        settings = self._settings
        shared = {
            digest.hex(): [generation.result(), size]
            for digest, (size, generation) in self._shared.items()
        }
        return envelope.seal_index(
            {
                "python": origin.python,
                "cloudpickle": origin.cloudpickle,
                "attempts": settings.attempts,
                "retry_on": settings.retry_on,
                "time_limit_s": settings.time_limit,
                "queue": settings.queue,
                **self._facts,
                **({contract.SHARED: shared} if shared else {}),
                **({contract.PACKAGES: self._packages} if self._packages else {}),
            },
            [(function.size, function.sha256) for _, function in functions],
            entries,
            origin.minor,
            self.texts,
        )

    def _record_shared(self, values: Iterable[Piece]) -> int:
        """Share the values that are not shared yet; return their size in bytes."""
        size = 0
        for value in values:
            if value.sha256 in self._shared:
                continue
            if value.size > _LARGEST_BYTES:
                raise _too_large(value.size)
            self._shared[value.sha256] = value.size, self._share(value)
            size += value.size
        return size

    def rename(self) -> Location:
        """Change the name and return the new location; the caller moves stored objects."""
        self.where = renamed(self.where)
        self.keys.append(self.where.bundle_key)
        return self.where

    def environment(self, *, url: str, region: str) -> dict[str, str]:
        """Return the job's environment variables, after `pieces` is exhausted."""
        environment = {
            contract.ENV_BUNDLE: self.where.url,
            contract.ENV_DIGEST: self.digest,
            contract.ENV_OUTCOME_KEY: self.key.hex(),
            contract.ENV_REGION: region,
            **self._workflow.environment(),
        }
        if url != contract.bucket_url(self.where.bucket, region):
            environment[contract.ENV_BUCKET_URL] = url
        if self._settings.s3_encryption:
            environment[contract.ENV_ENCRYPTION] = self._settings.s3_encryption
        if self._settings.s3_kms_key_id:
            environment[contract.ENV_KMS_KEY] = self._settings.s3_kms_key_id
        if self._retry_of:
            environment[contract.ENV_RETRY_OF] = self._retry_of
        rungs = self._settings.ladders.rungs(self._settings.memory, self._settings.queue)
        if rungs:
            environment[contract.ENV_RUNGS] = rungs
        return environment


def renamed(where: Location) -> Location:
    """Return an unused location for a bundle."""
    return where._replace(bundle=names.unique(where.bundle.rpartition("-")[0]))


def _hashed(pieces: Iterable[Buffer]) -> Generator[Buffer, None, bytes]:
    """Yield the bytes of pieces in steps; return their SHA-256."""
    digest = hashlib.sha256()
    for piece in pieces:
        for start in range(0, len(piece), _STEP_BYTES):
            step = piece[start : start + _STEP_BYTES] if len(piece) > _STEP_BYTES else piece
            digest.update(step)
            yield step
    return digest.digest()


def _too_large(size: int) -> TaskTooLargeError:
    return TaskTooLargeError(
        f"a task's arguments are {size / 1e9:.1f} GB, but the limit is "
        f"{_LARGEST_BYTES / 1e9:.0f} GB. Store them where the task can read them, and pass their "
        "location"
    )
