"""FilterLogEvents and GetLogEvents of the local AWS emulator, and with ``--aws`` of AWS itself.

Starts the emulator, because pages and limits are those of HTTP responses.
https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_FilterLogEvents.html
"""

from __future__ import annotations

import contextlib
import time
import uuid

import pytest
from botocore.exceptions import ClientError

from tests.support.patience import until

PAGE_BYTES = 2**20


class Group:
    """A log group for one test.

    Attributes:
        now: Start time of its events, in milliseconds.
    """

    def __init__(self, logs):
        self._logs = logs
        self.name = f"farcall-test-{uuid.uuid4().hex}"
        self.now = int(time.time() * 1000) - 60_000
        logs.create_log_group(logGroupName=self.name)

    def write(self, stream, *messages, at=0):
        """Write events with one timestamp to a stream; create the stream if needed."""
        with contextlib.suppress(self._logs.exceptions.ResourceAlreadyExistsException):
            self._logs.create_log_stream(logGroupName=self.name, logStreamName=stream)
        events = [{"timestamp": self.now + at, "message": message} for message in messages]
        if events:
            self._logs.put_log_events(
                logGroupName=self.name, logStreamName=stream, logEvents=events
            )

    def page(self, *streams, **how):
        return self._logs.filter_log_events(
            logGroupName=self.name, logStreamNames=list(streams), **how
        )

    def pages(self, *streams, **how):
        """Return all pages until one has no token."""
        found = [self.page(*streams, **how)]
        while found[-1].get("nextToken"):
            found.append(self.page(*streams, nextToken=found[-1]["nextToken"], **how))
        return found

    def events(self, *streams, **how):
        return [event for page in self.pages(*streams, **how) for event in page["events"]]

    def shown(self, count, *streams):
        """Wait for a number of events; a real account takes a few seconds."""
        until(lambda: len(self.events(*streams)) == count)

    def delete(self):
        self._logs.delete_log_group(logGroupName=self.name)


@pytest.fixture
def group(batch):
    made = Group(batch.logs)
    yield made
    made.delete()


def messages(events):
    return [event["message"] for event in events]


def test_streams_are_merged_by_time(group):
    group.write("a", "1", "2", at=1)
    group.write("b", "3", at=2)
    group.write("a", "4", at=3)
    group.write("c", "of another")
    group.shown(4, "a", "b")
    found = group.events("b", "a")
    assert messages(found) == ["1", "2", "3", "4"]
    assert [event["logStreamName"] for event in found] == ["a", "a", "b", "a"]
    assert [event["timestamp"] - group.now for event in found] == [1, 1, 2, 3]
    assert all(event["ingestionTime"] > group.now for event in found)


def test_events_have_unique_stable_ids(group):
    group.write("a", *["the same"] * 3)
    group.write("b", "the same")
    group.shown(4, "a", "b")
    ids = [event["eventId"] for event in group.events("a", "b")]
    assert len(set(ids)) == 4
    assert [event["eventId"] for event in group.events("a", "b", limit=1)] == ids


def test_missing_stream_fails_the_request(group):
    group.write("a", "1")
    with pytest.raises(ClientError) as refused:
        group.page("a", "b")
    assert refused.value.response["Error"] == {
        "Code": "ResourceNotFoundException",
        "Message": "The specified log stream does not exist.",
    }


def test_page_size_is_limited(group):
    line = "x" * 200_000
    for moment in range(8):
        group.write("a", line, at=moment)
    group.shown(8, "a")
    pages = group.pages("a")
    assert len(pages) > 1
    for page in pages:
        assert sum(len(event["message"]) for event in page["events"]) <= PAGE_BYTES
    assert all(len(page["events"]) <= 3 for page in group.pages("a", limit=3))


@pytest.mark.parametrize(
    ("from_head", "token"), [(True, "nextForwardToken"), (False, "nextBackwardToken")]
)
def test_pages_in_both_directions_are_complete(group, batch, from_head, token):
    for moment in range(7):
        group.write("a", str(moment), at=6 - moment)
    group.shown(7, "a")
    request = {"logGroupName": group.name, "logStreamName": "a", "startFromHead": from_head}
    pages = [batch.logs.get_log_events(**request, limit=3)]
    while pages[-1]["events"]:
        more = {"nextToken": pages[-1][token]}
        pages.append(batch.logs.get_log_events(**request, limit=3, **more))
    found = pages if from_head else pages[::-1]
    assert [text for page in found for text in messages(page["events"])] == list("6543210")
