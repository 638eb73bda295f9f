"""Completion events: what Batch tells of jobs, read from an SQS queue.

Batch tells EventBridge of every change of a job's state, and a rule of the user's sends that to a
queue (docs/events.md). An event makes the end of a job known at once instead of at the next look,
and that is all it does: what is lost, late or told twice, or read by another client, is found by
looking.

Sources:
    https://docs.aws.amazon.com/batch/latest/userguide/batch_job_events.html
    https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ReceiveMessage.html
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any

from farcall.aws import clients
from farcall.aws.clients import Aws
from farcall.backends.batch.describe import from_describe
from farcall.backends.batch.endings import is_explained
from farcall.model.errors import ServiceError, SettingsError
from farcall.model.jobs import JobDetail, JobStatus

_log = logging.getLogger("farcall")

_WAIT_S = 20
"""For how long SQS holds a request while there is no message; the longest it allows."""

_MESSAGES = 10
"""Messages in one answer, and in one deletion; the most SQS allows."""

_HIDDEN_S = 5
"""For how long SQS hides what it has given out. A request that is broken off may take messages
along; they are to be seen again soon."""

_TOGETHER_S = 0.25
"""How long those that follow a message may take to be read together."""

_SHORTEST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_NO_QUEUE = ("NonExistentQueue", "QueueDoesNotExist", "InvalidAddress")


class EventQueues:
    """The queues from which one session reads events.

    Args:
        access: The open clients.
        note: Takes in what an event says of a job, this session's or another's.
        is_waiting: Tells whether anybody waits for the end of a job.
    """

    def __init__(
        self, access: Aws, note: Callable[[JobDetail], None], is_waiting: Callable[[], bool]
    ) -> None:
        self._access = access
        self._note = note
        self._is_waiting = is_waiting
        self._urls: dict[str, str] = {}
        self._readers: dict[str, asyncio.Future[None]] = {}
        self._stack = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._client: Any = None

    async def check(self, name: str) -> None:
        """Read what a queue holds, to see that it can be read.

        Args:
            name: The option ``event_queue``; where it is empty, nothing is done.

        Raises:
            SettingsError: There is no such queue here.
            ServiceError: SQS refused.
        """
        if not name:
            return
        try:
            await self._read(name, 0)
        except ServiceError as error:
            raise self._explain(name, error) from error

    def listen(self, name: str) -> None:
        """Read a queue while somebody waits for the end of a job.

        Args:
            name: The option ``event_queue``; where it is empty, nothing is done.
        """
        reader = self._readers.get(name)
        if name and (reader is None or reader.done()):
            self._readers[name] = asyncio.ensure_future(self._listen(name))

    async def close(self) -> None:
        """Stop reading, whatever SQS is about to answer."""
        for reader in self._readers.values():
            reader.cancel()
        await asyncio.gather(*self._readers.values(), return_exceptions=True)
        await self._stack.aclose()

    async def _listen(self, name: str) -> None:
        pause_s = 0.0
        # A request that is open when the last job ends is left to come to its end: to break it
        # off could lose a message on its way, and the next job would only open another.
        while self._is_waiting():
            try:
                if 0 < await self._read(name, _WAIT_S) < _MESSAGES:
                    await asyncio.sleep(_TOGETHER_S)
            except Exception as error:  # whatever it is, looking goes on
                level = logging.DEBUG if pause_s else logging.WARNING
                text = "%s; no events are read from event_queue %r for now, and jobs are polled"
                _log.log(level, text, error, name)
                pause_s = min(max(2 * pause_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
                await asyncio.sleep(pause_s)
            else:
                pause_s = 0.0

    async def _read(self, name: str, wait_s: int) -> int:
        """Take in the next messages of a queue, and delete them; return how many there were."""
        client = await self._sqs()
        url = await self._url(client, name)
        reply = await clients.call(
            client,
            "receive_message",
            QueueUrl=url,
            MaxNumberOfMessages=_MESSAGES,
            WaitTimeSeconds=wait_s,
            VisibilityTimeout=_HIDDEN_S,
        )
        messages = reply.get("Messages", [])
        for message in messages:
            detail = read_event(message.get("Body", ""))
            if detail is not None:
                self._note(detail)
        if messages:
            entries = [
                {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                for number, message in enumerate(messages)
            ]
            # What SQS fails to delete comes again, and says nothing new.
            await clients.call(client, "delete_message_batch", QueueUrl=url, Entries=entries)
        return len(messages)

    async def _sqs(self) -> Any:
        async with self._opening:
            if self._client is None:
                self._client = await self._stack.enter_async_context(self._access.client("sqs"))
            return self._client

    async def _url(self, client: Any, name: str) -> str:
        """Return a queue's URL, given that, its ARN or its name."""
        if "://" in name:
            return name
        if name not in self._urls:
            wanted = {"QueueName": name}
            if name.startswith("arn:"):
                *_, region, owner, queue = name.split(":")
                if region != self._access.region:
                    raise SettingsError(
                        f"event_queue is {name!r}, and the jobs are in {self._access.region}; "
                        "name a queue of that region: rules send to queues of their own",
                        option="event_queue",
                    )
                wanted = {"QueueName": queue, "QueueOwnerAWSAccountId": owner}
            reply = await clients.call(client, "get_queue_url", **wanted)
            self._urls[name] = reply["QueueUrl"]
        return self._urls[name]

    def _explain(self, name: str, error: ServiceError) -> Exception:
        if any(code in error.code for code in _NO_QUEUE):
            return SettingsError(
                f"event_queue is {name!r}, and there is no such queue in {self._access.region}; "
                "make it as docs/events.md shows, or leave event_queue empty",
                option="event_queue",
            )
        return ServiceError(
            f"event_queue is {name!r}, and it cannot be read: {error}; farcall works without it "
            "where event_queue is empty",
            operation=error.operation,
            code=error.code,
            request_id=error.request_id,
            status=error.status,
            sent=error.sent,
        )


def read_event(body: str) -> JobDetail | None:
    """Return what a message says of a job; None where it is no event, or not enough of one.

    AWS's examples of events lack the members by which DescribeJobs tells that somebody ended the
    job. A failure whose reason may be such a person's is left to be asked for.
    """
    try:
        event = json.loads(body)
        if (event["source"], event["detail-type"]) != ("aws.batch", "Batch Job State Change"):
            return None
        detail = from_describe(event["detail"])
        may_be_cancelled = detail.status is JobStatus.FAILED and not is_explained(detail)
        if not _is_sound(detail) or (may_be_cancelled and "isTerminated" not in event["detail"]):
            return None
    except Exception:  # anybody may have written anything
        return None
    return detail


def _is_sound(detail: JobDetail) -> bool:
    """Say whether a detail is of the types that Batch's own replies are of."""
    said = (detail.status_reason, detail.container_reason)
    texts = [detail.job_id, detail.name, *said]
    texts += [
        text for tried in detail.tried for text in (tried.status_reason, tried.container_reason)
    ]
    numbers = [detail.attempts_allowed, *(tried.exit_code or 0 for tried in detail.tried)]
    parent, colon, index = detail.job_id.partition(":")
    return (
        all(isinstance(text, str) for text in (*texts, detail.log_group, detail.log_stream))
        and all(isinstance(number, int) for number in numbers)
        and isinstance(detail.status_summary, dict)
        and bool(parent)
        and index.isdecimal() == bool(colon)
    )
