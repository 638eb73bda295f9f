"""One SubmitJob: the bundle it carries, and what is needed to find its outcomes. No I/O."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from farcall.errors import FarcallError
from farcall.payload import Packed
from farcall.settings import Settings
from farcall.states import JobDetail
from farcall_runtime import contract, envelope
from farcall_runtime.contract import Location
from farcall_runtime.envelope import Buffer


@dataclass(frozen=True)
class Submission:
    """A job that Batch accepted: a plain one, or an array.

    Attributes:
        job_id: The job's ID; of an array the parent's.
        name: The job's name.
        where: The bundle's place in the bucket.
        key: What outcomes are signed with.
        size: Number of tasks.
    """

    job_id: str
    name: str
    where: Location
    key: bytes = field(repr=False)
    size: int

    def id_of(self, index: int) -> str:
        """Return the ID of one task's job."""
        return self.job_id if self.size == 1 else f"{self.job_id}:{index}"

    @classmethod
    def of(cls, detail: JobDetail) -> tuple[Submission, int]:
        """Find out from Batch's description what a job of ours carries.

        Returns:
            The submission, and the number of the job in it.

        Raises:
            FarcallError: farcall did not submit the job, or it is an array job as a whole.
        """
        try:
            where = Location.parse(detail.environment.get(contract.ENV_BUNDLE, ""))
            key = bytes.fromhex(detail.environment[contract.ENV_OUTCOME_KEY])
        except (KeyError, ValueError) as error:
            raise FarcallError(
                f"job {detail.job_id} ({detail.name}) was not submitted by farcall"
            ) from error
        if detail.array_size:
            raise FarcallError(
                f"job {detail.job_id} is an array of {detail.array_size}; attach to one of its "
                f"children, {detail.job_id}:0 to {detail.job_id}:{detail.array_size - 1}"
            )
        parent, _, index = detail.job_id.partition(":")
        size = 2 if index else 1  # all that matters is whether the ID has an index
        return cls(parent, detail.name, where, key, size), int(index or 0)


@dataclass(frozen=True)
class Bundle:
    """What is uploaded before a job is submitted.

    Attributes:
        where: Its place.
        pieces: Its bytes.
        environment: What the job has to know.
        key: What the job's outcomes are signed with.
    """

    where: Location
    pieces: list[Buffer] = field(repr=False)
    environment: dict[str, str] = field(repr=False)
    key: bytes = field(repr=False)


def make_bundle(
    settings: Settings,
    root: str,
    tasks: Sequence[tuple[Packed, Packed]],
    *,
    endpoint: str,
    region: str,
) -> Bundle:
    """Put tasks into one bundle; equal functions are in it once.

    Args:
        settings: The options.
        root: Key prefix of the run.
        tasks: Function and arguments of each; all functions of one origin.
        endpoint: URL of S3 where it is not AWS's own, else empty.
        region: Region of the bucket.
    """
    functions: dict[bytes, tuple[int, Packed]] = {}
    entries = []
    for function, arguments in tasks:
        number, _ = functions.setdefault(function.sha256, (len(functions), function))
        entries.append((number, arguments.size, arguments.sha256))
    origin = tasks[0][0].origin
    index = envelope.seal_index(
        {
            "python": origin.python,
            "cloudpickle": origin.cloudpickle,
            "attempts": settings.retry_attempts,
            "retry_on": settings.retry_on,
            "time_limit_s": settings.time_limit,
        },
        [(function.size, function.sha256) for _, function in functions.values()],
        entries,
        origin.minor,
    )
    pieces: list[Buffer] = [index]
    for _, function in functions.values():
        pieces.extend(function.pieces)
    for _, arguments in tasks:
        pieces.extend(arguments.pieces)
    where = Location(settings.s3_bucket_name, root, secrets.token_hex(8))
    key = secrets.token_bytes(32)
    environment = {
        contract.ENV_BUNDLE: where.url,
        contract.ENV_DIGEST: hashlib.sha256(index).hexdigest(),
        contract.ENV_OUTCOME_KEY: key.hex(),
        contract.ENV_REGION: region,
    }
    if endpoint:
        environment[contract.ENV_ENDPOINT] = endpoint
    return Bundle(where, pieces, environment, key)
