"""What Batch tells EventBridge: an event for every change of a job's state.

The events meet the rules of moto's default bus, as they were put there through EventBridge's API,
and are sent to the queues of moto's SQS that are these rules' targets. That takes a thread of its
own: no job waits for it, and none fails by it. Without a rule a change costs one look into an
empty dictionary.

moto's queues count all that they hold for each message they take or give, so they are given a few
at a time, and the others once these are read.

Other targets than queues get nothing, and what a target says about changing its input is not
looked at.

Sources:
    https://docs.aws.amazon.com/batch/latest/userguide/batch_job_events.html
    https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-use-resource-based.html
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import time
import uuid
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from farcall.local import names
from farcall.local.batch import describe
from farcall.local.batch.jobs import Job
from farcall.local.iam.policies import Need, Verdict, evaluate, many
from farcall.model.terminal import in_a_line

SOURCE = "aws.batch"
DETAIL_TYPE = "Batch Job State Change"

#: Of DescribeJobs's members, those that the example of an event lacks in AWS's documentation.
_UNTOLD = ("isCancelled", "isTerminated")
_PRINCIPAL = "events.amazonaws.com"
#: Messages in one of moto's queues, from which on others wait outside of it.
_FEW = 20

_log = logging.getLogger("farcall")


class Events:
    """The default bus, as Batch sees it.

    Args:
        bus: moto's backend of EventBridge in one region.
        sqs: moto's backend of SQS there.
        lock: Held while either is used: moto's backends are not safe to use from several threads.
        enforced: Whether permissions are, so that a queue's policy must let the rule send.
    """

    def __init__(
        self, bus: Any, sqs: Any, lock: AbstractContextManager[Any], *, enforced: bool
    ) -> None:
        self._bus = bus
        self._sqs = sqs
        self._lock = lock
        self._enforced = enforced
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="events")
        self._complained: set[str] = set()
        self._waiting: dict[Any, deque[_Message]] = {}  # by queue; another may have its name

    def changed(self, job: Job) -> None:
        """Tell that a job has entered its state. To be called on the engine's event loop only."""
        if self._rules:
            self._thread.submit(self._send, event(job))

    def refill(self, queue: Any) -> None:
        """Put into a queue of moto's what there is room for. To be called under the lock."""
        _drop_expired(queue)
        waiting = self._fresh(queue)
        while waiting and len(queue.messages) < _FEW:
            message = waiting.popleft()
            self._sqs.send_message(queue.name, message.text, group_id=message.group)

    def close(self) -> None:
        """Send nothing any more."""
        self._thread.shutdown(cancel_futures=True)

    @property
    def _rules(self) -> dict[str, Any]:
        rules: dict[str, Any] = self._bus.event_buses["default"].rules
        return rules

    def _send(self, told: dict[str, Any]) -> None:
        """Send an event to every target of every rule that it fits."""
        text = json.dumps(told, separators=(",", ":"))
        with self._lock:
            for rule in self._rules.values():
                try:
                    targets = rule.targets if _fits(rule, told) else ()
                except Exception as error:  # a pattern that moto cannot read
                    self._complain(rule.arn, f"The rule {rule.name} cannot be applied: {error}")
                    continue
                for target in targets:
                    self._try(rule, target, text)

    def _try(self, rule: Any, target: dict[str, Any], text: str) -> None:
        """Send to one target; what cannot be sent is lost, as it is in the end on AWS."""
        arn: str = target["Arn"]
        try:
            queue = _queue(self._sqs, arn)
            if self._enforced:
                _check_policy(queue.policy, arn, rule.arn)
            self._put(queue, text, target.get("SqsParameters", {}).get("MessageGroupId"))
        except Exception as error:  # whatever a user put there: the other targets get theirs
            self._complain(arn, f"The rule {rule.name} cannot send to {arn}: {error}")

    def _complain(self, about: str, text: str) -> None:
        if about not in self._complained:
            self._complained.add(about)
            _log.warning("%s", in_a_line(text))

    def _put(self, queue: Any, text: str, group: str | None) -> None:
        waiting = self._fresh(queue)
        waiting.append(_Message(time.monotonic(), text, group))
        if len(waiting) == 1:  # else there is no room, until somebody reads
            self.refill(queue)

    def _fresh(self, queue: Any) -> deque[_Message]:
        """Return what waits for room in a queue and is not beyond its retention."""
        waiting = self._waiting.setdefault(queue, deque())
        oldest = time.monotonic() - queue.message_retention_period
        while waiting and waiting[0].at < oldest:
            waiting.popleft()
        return waiting


class _Message(NamedTuple):
    at: float
    text: str
    group: str | None


def event(job: Job) -> dict[str, Any]:
    """Return the event that tells of a job's present state."""
    detail = describe.detail(job)
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": DETAIL_TYPE,
        "source": SOURCE,
        "account": names.ACCOUNT_ID,
        "time": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "region": names.REGION,
        "resources": [job.arn],
        "detail": {name: value for name, value in detail.items() if name not in _UNTOLD},
    }


def _fits(rule: Any, told: dict[str, Any]) -> bool:
    """Say whether a rule is for an event."""
    pattern = rule.event_pattern
    # To moto a rule with a schedule has an empty pattern, which fits everything.
    meant = rule.state == "ENABLED" and pattern.get_pattern()
    return bool(meant and pattern.matches_event(told))


def _drop_expired(queue: Any) -> None:
    """Delete messages beyond their retention, which moto keeps and stumbles over."""
    oldest_ms = (time.time() - queue.message_retention_period) * 1000
    for message in queue.messages:
        if message.sent_timestamp < oldest_ms:
            message.mark_received()
            queue.delete_message(message.receipt_handle)


def _queue(sqs: Any, arn: str) -> Any:
    """Return moto's queue of an ARN.

    Raises:
        ValueError: It is another kind of target, to which nothing is sent here.
    """
    if ":sqs:" not in arn:
        raise ValueError("it is no SQS queue, and nothing else is sent to here")
    return sqs.get_queue(arn.rpartition(":")[2])


def _check_policy(policy: str | None, queue_arn: str, rule_arn: str) -> None:
    """Check that a queue's policy lets EventBridge send for a rule.

    Raises:
        PermissionError: It does not.
        UnknownElementError: It has something that is not evaluated here.
    """
    document = json.loads(policy) if policy else {"Statement": []}
    statements = [
        {name: value for name, value in statement.items() if name != "Principal"}
        for statement in many(document["Statement"])
        if _is_meant(statement.get("Principal"))
    ]
    need = Need("sqs:SendMessage", queue_arn, {"aws:SourceArn": rule_arn})
    if evaluate([{"Statement": statements}], need) is not Verdict.ALLOWED:
        raise PermissionError("the queue's policy does not let it")


def _is_meant(principal: Any) -> bool:
    if not isinstance(principal, dict):
        return bool(principal == "*")
    return _PRINCIPAL in many(principal.get("Service")) or "*" in many(principal.get("AWS"))
