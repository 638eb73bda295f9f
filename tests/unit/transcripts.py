"""Output of one attempt in a bucket and in CloudWatch, both scripted."""

from datetime import UTC, datetime
from types import SimpleNamespace

from farcall.backends.batch.backend import BatchBackend
from farcall.engine.logs.nodes import NodeAttempt
from farcall.engine.logs.sources import LogSource, PacedLogs, Part
from farcall.model.submission import Submission
from farcall.storage.chunks import Written
from farcall_runtime import envelope
from farcall_runtime.contract import Location
from tests.unit.fakes import TIMING, Client

WHERE = Location("bucket", "farcall/v1/run", "bundle")
KEY = b"k" * 32
SUBMISSION = Submission("job-1", "n", WHERE, KEY, 1)
NOW = datetime(2026, 11, 22, 10, tzinfo=UTC)


def access(replies):
    """Return clients and a CloudWatch Logs client with these responses."""
    client = Client(get_log_events=replies)

    async def lend(service):
        assert service == "logs"
        return client

    return SimpleNamespace(client=lend, batch=None, timing=TIMING), client


def page(*lines, token, at=NOW):
    """Return a response of GetLogEvents."""
    moment = int(at.timestamp() * 1000)
    return {
        "events": [{"message": line, "timestamp": moment} for line in lines],
        "nextForwardToken": token,
    }


async def put(store, stream, sequence, data, attempt=1, key=KEY, index=0):
    """Store a chunk."""
    name = WHERE.chunk_key(index, attempt, stream, sequence)
    await store.put(name, envelope.seal_chunk(key, name, data), quick=True)


def texts(lines):
    return [line.text for line in lines]


def written(chunks, stored, tail=b"", gaps=()):
    """Return an outcome's description of a stdout with a number of chunks."""
    nothing = {"chunks": 0, "stored": 0}
    streams = {"stdout": {"chunks": chunks, "stored": stored, "gaps": gaps}, "stderr": nothing}
    return Written(SUBMISSION, 0, 1, streams, {"stdout": tail, "stderr": b""})


class Counted:
    """A store that counts the requested objects."""

    def __init__(self, store):
        self.bucket = store.bucket
        self.asked = []
        self._store = store

    async def get_dated(self, key, **options):
        self.asked.append(int(key.rpartition("/")[2]))
        return await self._store.get_dated(key, **options)

    async def list_keys(self, prefix):
        return await self._store.list_keys(prefix)


async def log(transcript, *lines, at=NOW):
    """Yield the unseen lines of a log with exactly these lines."""
    opened, _ = access([page(*lines, token="1", at=at), page(token="1")])
    logs = PacedLogs(BatchBackend(opened), TIMING)
    yield transcript.begin_log()
    async for found in LogSource(logs, NodeAttempt(0, 1, "g", "s"), Part()).read():
        yield transcript.unseen(found)


def ended(out=(0, 0, b""), err=(0, 0, b""), **more):
    """Return an outcome: chunks, bytes in them, and the rest, for each stream."""
    meta = {
        name: {"chunks": chunks, "stored": stored, "dropped": 0, **more.get(name, {})}
        for name, (chunks, stored, _) in (("stdout", out), ("stderr", err))
    }
    return Written(SUBMISSION, 0, 1, meta, {"stdout": out[2], "stderr": err[2]}, NOW)


async def every(batches):
    return texts([line async for batch in batches for line in batch])
