"""What a task writes: chunks from the bucket while it runs, CloudWatch where there are none."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote

from farcall import aws, output
from farcall.aws import Aws
from farcall.details import JobDetail
from farcall.errors import IntegrityError, ServiceError
from farcall.store import Store
from farcall.submission import Submission
from farcall_runtime import envelope
from farcall_runtime.contract import STDERR, STDOUT, STREAMS
from farcall_runtime.envelope import Outcome

_PARALLEL = 8
_CHUNK = re.compile(rf"/(\d+)/({'|'.join(STREAMS)})/(\d+)$")
_LAST_LINES = 200


async def read_chunks(
    store: Store,
    submission: Submission,
    index: int,
    attempt: int,
    stream: str,
    said: Mapping[str, Any],
) -> bytes:
    """Return the first chunks of one stream of one attempt, joined, with a note where one is gone.

    Args:
        store: The bucket.
        submission: The task's job.
        index: Its number there.
        attempt: The attempt, from 1.
        stream: ``"stdout"`` or ``"stderr"``.
        said: What the outcome says of the stream: how many chunks there are, and bytes in them.

    Raises:
        IntegrityError: A chunk is not the one the container wrote.
        ServiceError: S3 refused.
    """
    places = asyncio.Semaphore(_PARALLEL)

    async def read(sequence: int) -> bytes | None:
        async with places:
            key = submission.where.chunk_key(index, attempt, stream, sequence)
            return await _read_chunk(store, submission, key)

    chunks = await asyncio.gather(*map(read, range(said["chunks"])))
    if None in chunks:
        kept = sum(len(chunk) for chunk in chunks if chunk is not None)
        chunks[chunks.index(None)] = output.deleted(said["stored"] - kept)
    return b"".join(filter(None, chunks))


async def read_whole(
    store: Store, submission: Submission, index: int, outcome: Outcome
) -> tuple[bytes, bytes]:
    """Return all that an attempt wrote to stdout and to stderr, with a note where some is lost.

    Args:
        store: The bucket.
        submission: The task's job.
        index: Its number there.
        outcome: What the attempt stored at its end.

    Raises:
        IntegrityError: A chunk is not the one the container wrote.
        ServiceError: S3 refused.
    """
    attempt = int(outcome.meta["attempt"])
    found = []
    for stream, tail in ((STDOUT, outcome.stdout), (STDERR, outcome.stderr)):
        said, data = outcome.meta[stream], bytes(tail)
        if said["chunks"]:
            data = await read_chunks(store, submission, index, attempt, stream, said) + data
        found.append(output.join(data, said["gaps"]) if "gaps" in said else data)
    return found[0], found[1]


class Tail:
    """Reads a task's chunks as they appear; each call brings what is new.

    Args:
        store: The bucket.
        submission: The task's job.
        index: Its number there.

    Attributes:
        seen: By attempt and stream, how many chunks were read.
    """

    def __init__(self, store: Store, submission: Submission, index: int) -> None:
        self._store = store
        self._submission = submission
        where = submission.where
        self._prefix = f"{where.root}/streams/{where.bundle}/{index}/"
        self.seen: dict[tuple[int, str], int] = {}

    async def read(self) -> list[tuple[int, str, bytes]]:
        """Return new chunks: attempt, stream and bytes, in the order of attempts.

        Raises:
            IntegrityError: A chunk is not the one the container wrote.
            ServiceError: S3 refused.
        """
        found = []
        for key, _ in await self._store.list_keys(self._prefix):
            match = _CHUNK.search(key)
            if match is None:
                continue
            attempt, stream, sequence = int(match[1]), match[2], int(match[3])
            if sequence < self.seen.get((attempt, stream), 0):
                continue
            data = await _read_chunk(self._store, self._submission, key)
            found.append((attempt, stream, data or b""))
            self.seen[attempt, stream] = sequence + 1
        return found


async def last_lines(access: Aws, detail: JobDetail) -> str:
    """Return the end of a job's CloudWatch log; empty where there is none to be read.

    It holds both streams, without telling them apart.
    """
    if not detail.log_stream:
        return ""
    try:
        async with access.client("logs") as client:
            reply = await aws.call(
                client,
                "get_log_events",
                logGroupName=detail.log_group,
                logStreamName=detail.log_stream,
                limit=_LAST_LINES,
                startFromHead=False,
            )
    except ServiceError:
        return ""  # a missing log must not hide why the job failed
    return "".join(f"{event['message']}\n" for event in reply.get("events", []))


async def cloudwatch(access: Aws, detail: JobDetail) -> AsyncIterator[str]:
    """Yield the lines of a job's CloudWatch log up to now.

    Raises:
        ServiceError: CloudWatch Logs refused.

    Source:
        https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_GetLogEvents.html
    """
    if not detail.log_stream:
        return
    token: dict[str, str] = {}
    async with access.client("logs") as client:
        while True:
            reply = await aws.call(
                client,
                "get_log_events",
                logGroupName=detail.log_group,
                logStreamName=detail.log_stream,
                startFromHead=True,
                **token,
            )
            for event in reply.get("events", []):
                yield event["message"]
            # An empty page is not the end; the same token twice is.
            following = reply["nextForwardToken"]
            if token.get("nextToken") == following:
                return
            token = {"nextToken": following}


def url(region: str, detail: JobDetail) -> str | None:
    """Return the address of a job's log in the AWS console, or None where there is no log."""
    if not detail.log_stream:
        return None
    group, stream = (
        quote(quote(name, safe=""), safe="").replace("%", "$")
        for name in (detail.log_group, detail.log_stream)
    )
    host = f"{region}.console.aws.amazon.com"
    if region.startswith("cn-"):
        host = "console.amazonaws.cn"
    elif region.startswith("us-gov-"):
        host = "console.amazonaws-us-gov.com"
    return (
        f"https://{host}/cloudwatch/home?region={region}"
        f"#logsV2:log-groups/log-group/{group}/log-events/{stream}"
    )


async def _read_chunk(store: Store, submission: Submission, key: str) -> bytes | None:
    """Return what is in a chunk; None if it is not there."""
    try:
        data = await store.get(key)
        if data is None:
            return None
        return bytes(envelope.open_chunk(submission.key, key, data))
    except envelope.EnvelopeError as error:
        raise IntegrityError(
            f"output s3://{store.bucket}/{key} is not what the job wrote ({error})",
            job_id=submission.job_id,
        ) from error
