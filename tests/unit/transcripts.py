"""One attempt's output in a bucket and in CloudWatch, both scripted."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace

from farcall.model.submission import Submission
from farcall_runtime import envelope
from farcall_runtime.contract import Location
from tests.unit.fakes import Client

WHERE = Location("bucket", "farcall/v1/run", "bundle")
KEY = b"k" * 32
SUBMISSION = Submission("job-1", "n", WHERE, KEY, 1)
NOW = datetime(2026, 11, 22, 10, tzinfo=timezone.utc)


def access(replies):
    """Return open clients whose CloudWatch Logs gives these replies, and its client."""
    client = Client(get_log_events=replies)

    async def lend(service):
        assert service == "logs"
        return client

    return SimpleNamespace(client=lend), client


def page(*lines, token, at=NOW):
    """Return a reply of GetLogEvents."""
    moment = int(at.timestamp() * 1000)
    return {
        "events": [{"message": line, "timestamp": moment} for line in lines],
        "nextForwardToken": token,
    }


async def put(store, stream, sequence, data, attempt=1, key=KEY):
    """Store a chunk."""
    name = WHERE.chunk_key(0, attempt, stream, sequence)
    await store.put(name, envelope.seal_chunk(key, name, data), quick=True)


def texts(lines):
    return [line.text for line in lines]
