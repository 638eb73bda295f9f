"""In-memory S3, Batch and STS in one process, which counts the client's requests.

It listens on one port for the measured client and on another port for the jobs, whose requests are
not counted. It checks no signatures and encrypts nothing. `benchmarks.fleet` runs the jobs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from email.utils import formatdate
from functools import partial
from typing import Any
from xml.sax.saxutils import escape, unescape

from aiohttp import web

from farcall_runtime.contract import ENV_BUNDLE, Location

CONTROL = "/_bench/"
ACCOUNT = "123456789012"
REGION = "us-east-1"

_ARN = f"arn:aws:batch:{REGION}:{ACCOUNT}"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_KEY = re.compile(r"<Key>(.*?)</Key>", re.DOTALL)
_IDENTITY = (
    '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
    f"<GetCallerIdentityResult><Account>{ACCOUNT}</Account><UserId>benchmark</UserId>"
    f"<Arn>arn:aws:iam::{ACCOUNT}:user/benchmark</Arn></GetCallerIdentityResult>"
    "<ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></GetCallerIdentityResponse>"
)

Answer = tuple[int, dict[str, str], bytes]  # status, headers, body


class Cloud:
    """All services, with the number of the client's requests by operation."""

    def __init__(self) -> None:
        self._buckets = Buckets()
        self._queue = Queue()
        self._counts: Counter[str] = Counter()
        self._options: dict[str, Any] = {}

    async def answer(self, side: str, request: web.BaseRequest) -> web.StreamResponse:
        """Respond to a request that arrived at the port for "client" or "jobs"."""
        body = await request.content.read()
        if request.path.startswith(CONTROL):
            document = json.loads(body or b"{}")
            return web.json_response(await self._control(request.path[len(CONTROL) :], document))
        if request.path.startswith("/v1/"):
            operation, document = self._queue.answer(request.path, json.loads(body or b"{}"))
            name, response = f"batch {operation}", web.json_response(document)
        elif request.path == "/":
            name = "sts GetCallerIdentity"
            response = web.Response(text=_IDENTITY, content_type="text/xml")
        else:
            place = request.path.strip("/")
            operation, (status, headers, content) = self._buckets.answer(place, request, body)
            name = f"s3 {operation}"
            response = web.Response(status=status, headers=headers, body=content)
            if operation in ("PutObject", "CompleteMultipartUpload"):
                self._queue.on_stored(place)
        if side == "client":
            self._counts[name] += 1
        return response

    async def _control(self, name: str, document: dict[str, Any]) -> Any:
        """Execute a control; "job" waits for a job, and adds the options of "reset"."""
        if name == "job":
            return {**await self._queue.waiting.get(), **self._options}
        if name == "reset":
            self._counts.clear()
            self._buckets = Buckets()
            self._options = document
        elif name == "restart":  # keeps the objects
            self._counts.clear()
        elif name == "fill":
            for number in range(document["count"]):
                self._buckets.store(f"{document['name']}/{number}", bytes(document["size"]))
        return {"counts": self._counts, "stored": self._buckets.stored}.get(name)


class Buckets:
    """The parts of S3 that farcall, obstore and boto3 use; every bucket exists.

    Attributes:
        stored: Time (`time.monotonic`) and size in bytes of each object, including deleted ones,
            by bucket and key.
    """

    def __init__(self) -> None:
        self.stored: dict[str, tuple[float, int]] = {}
        self._objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self._uploads: dict[str, dict[int, bytes]] = {}

    def answer(self, name: str, request: web.BaseRequest, body: bytes) -> tuple[str, Answer]:
        """Respond to a request for BUCKET/KEY; also return the operation's name."""
        method, query, headers = request.method, request.query, request.headers
        bucket, _, key = name.partition("/")
        if method == "POST" and "delete" in query:
            return "DeleteObjects", self._delete(bucket, body.decode())
        if method == "GET" and not key:
            return "ListObjectsV2", self._list(bucket, query)
        if "uploads" in query or "uploadId" in query:
            return self._answer_upload(method, name, query, body)
        if method == "PUT":
            if headers.get("If-None-Match") == "*" and name in self._objects:
                return "PutObject", _refuse(412, "PreconditionFailed")
            return "PutObject", (200, self.store(name, body), b"")
        if method == "DELETE":
            return "DeleteObject", self._delete(bucket, f"<Key>{escape(key)}</Key>")
        return f"{method.title()}Object", self._get(name, headers)

    def store(self, name: str, data: bytes, tag: str = "") -> dict[str, str]:
        """Store an object, and return its headers."""
        tag = tag or hashlib.md5(data, usedforsecurity=False).hexdigest()
        headers = {"ETag": f'"{tag}"', "Last-Modified": formatdate(usegmt=True)}
        self._objects[name] = (data, headers)
        self.stored[name] = time.monotonic(), len(data)
        return headers

    def _answer_upload(
        self, method: str, name: str, query: Mapping[str, str], body: bytes
    ) -> tuple[str, Answer]:
        """Respond to a request of a multipart upload."""
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self._uploads[upload] = {}
            document = f"<UploadId>{upload}</UploadId>"
            return "CreateMultipartUpload", _reply("InitiateMultipartUploadResult", document)
        upload = query["uploadId"]
        if method == "PUT":
            self._uploads[upload][int(query["partNumber"])] = body
            return "UploadPart", (200, {"ETag": f'"{query["partNumber"]}"'}, b"")
        parts = self._uploads.pop(upload)
        whole = b"".join(parts[number] for number in sorted(parts))
        headers = self.store(name, whole, f"{upload}-{len(parts)}")
        document = f"<ETag>{escape(headers['ETag'])}</ETag>"
        return "CompleteMultipartUpload", _reply("CompleteMultipartUploadResult", document)

    def _get(self, name: str, headers: Mapping[str, str]) -> Answer:
        if name not in self._objects:
            return _refuse(404, "NoSuchKey")
        data, known = self._objects[name]
        wanted = _RANGE.fullmatch(headers.get("Range", ""))
        if wanted is None:
            return 200, {**known, "Accept-Ranges": "bytes"}, data
        if wanted[1]:
            start, end = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
        else:  # the last bytes
            start, end = max(0, len(data) - int(wanted[2])), len(data) - 1
        place = f"bytes {start}-{end}/{len(data)}"
        return 206, {**known, "Content-Range": place}, data[start : end + 1]

    def _delete(self, bucket: str, body: str) -> Answer:
        keys = _KEY.findall(body)
        for key in keys:
            self._objects.pop(f"{bucket}/{unescape(key)}", None)
        return _reply("DeleteResult", "".join(f"<Deleted><Key>{k}</Key></Deleted>" for k in keys))

    def _list(self, bucket: str, query: Mapping[str, str]) -> Answer:
        start = f"{bucket}/{query.get('prefix', '')}"
        after = query.get("continuation-token") or f"{bucket}/{query.get('start-after', '')}"
        limit = int(query.get("max-keys", 1000))
        names = sorted(n for n in self._objects if n.startswith(start) and n > after)
        page, is_cut = names[:limit], len(names) > limit
        rows = "".join(
            f"<Contents><Key>{escape(name.partition('/')[2])}</Key>"
            f"<Size>{len(self._objects[name][0])}</Size>"
            f"<ETag>{escape(self._objects[name][1]['ETag'])}</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for name in page
        )
        if is_cut:
            rows += f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        head = f"<Name>{bucket}</Name><KeyCount>{len(page)}</KeyCount><MaxKeys>{limit}</MaxKeys>"
        more = f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>"
        return _reply("ListBucketResult", head + more + rows)


def _reply(element: str, content: str) -> Answer:
    text = f'<{element} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{content}</{element}>'
    return 200, {"Content-Type": "application/xml"}, text.encode()


def _refuse(status: int, code: str) -> Answer:
    text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return status, {"Content-Type": "application/xml"}, text.encode()


class Queue:
    """Batch with one queue, its job definitions and its jobs.

    Attributes:
        waiting: Jobs that the fleet has not started yet.
    """

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._definitions: dict[str, dict[str, Any]] = {}
        self._jobs: dict[str, dict[str, Any]] = {}
        self._by_outcome: dict[str, dict[str, Any]] = {}
        self._operations = {
            "DescribeJobQueues": self._describe_queues,
            "DescribeJobDefinitions": self._describe_definitions,
            "RegisterJobDefinition": self._register,
            "SubmitJob": self._submit,
            "DescribeJobs": self._describe_jobs,
            "ListJobs": self._list_jobs,
        }

    def answer(self, path: str, document: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Execute an operation, and return its name and its response."""
        name = next(each for each in self._operations if path.endswith(f"/{each.lower()}"))
        return name, self._operations[name](document)

    def on_stored(self, name: str) -> None:
        """Count a task as finished if the stored object (BUCKET/KEY) is its last."""
        job = self._by_outcome.get(name) or self._by_outcome.get(name.rpartition("/")[0])
        if job is not None:
            job["ended"] = min(job["size"], job["ended"] + 1)

    def _list_jobs(self, _document: dict[str, Any]) -> dict[str, Any]:
        return {"jobSummaryList": []}

    def _describe_queues(self, document: dict[str, Any]) -> dict[str, Any]:
        state = {"state": "ENABLED", "status": "VALID"}
        return {"jobQueues": [{"jobQueueName": name, **state} for name in document["jobQueues"]]}

    def _describe_definitions(self, document: dict[str, Any]) -> dict[str, Any]:
        found = self._definitions.get(document.get("jobDefinitionName", ""))
        return {"jobDefinitions": [found] if found else []}

    def _register(self, document: dict[str, Any]) -> dict[str, Any]:
        name = document["jobDefinitionName"]
        arn = f"{_ARN}:job-definition/{name}:1"
        reply = {"jobDefinitionName": name, "jobDefinitionArn": arn, "revision": 1}
        self._definitions[name] = {**document, **reply}
        return reply

    def _submit(self, document: dict[str, Any]) -> dict[str, Any]:
        definition = document["jobDefinition"].rpartition("/")[2].partition(":")[0]
        containers = (
            self._definitions[definition]["containerProperties"],
            document.get("containerOverrides", {}),
        )
        environment = {
            item["name"]: item["value"]
            for each in containers
            for item in each.get("environment", ())
        }
        name, job_id = document["jobName"], str(uuid.uuid4())
        size = document.get("arrayProperties", {}).get("size")
        job = {"id": job_id, "name": name, "environment": environment, "ended": 0}
        job |= {"size": size or 1, "is_array": size is not None}
        self._jobs[job_id] = self._by_outcome[_outcome(environment)] = job
        self.waiting.put_nowait(job)
        return {"jobId": job_id, "jobName": name, "jobArn": f"{_ARN}:job/{job_id}"}

    def _describe_jobs(self, document: dict[str, Any]) -> dict[str, Any]:
        found = [self._jobs.get(job_id) for job_id in document["jobs"]]
        return {"jobs": [_describe(job) for job in found if job]}


def _describe(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job's description, which is RUNNING until the last outcome is stored."""
    running = job["size"] - job["ended"]
    document = {
        "jobId": job["id"],
        "jobName": job["name"],
        "jobQueue": f"{_ARN}:job-queue/benchmark",
        "jobDefinition": f"{_ARN}:job-definition/benchmark:1",
        "status": "RUNNING" if running else "SUCCEEDED",
        "startedAt": 0,
        "container": {} if running else {"exitCode": 0},
    }
    if job["is_array"]:
        counts = {"RUNNING": running, "SUCCEEDED": job["ended"], "FAILED": 0}
        document["arrayProperties"] = {"size": job["size"], "statusSummary": counts}
    return document


def _outcome(environment: dict[str, str]) -> str:
    """Return the name of a job's last object; for farcall, without the task's index.

    The peer's container stores ``io_output-...json`` after ``result-...pkl``.
    """
    if ENV_BUNDLE in environment:
        where = Location.parse(environment[ENV_BUNDLE])
        return f"{where.bucket}/{where.outcome_key(0).rpartition('/')[0]}"
    stem = environment["RESULT_FILENAME"].rpartition(".")[0].replace("result", "io_output")
    return f"{environment['S3_BUCKET_NAME']}/{stem}.json"


async def _serve() -> None:
    cloud = Cloud()
    ports = {}
    for side in ("client", "jobs"):
        server = web.Server(partial(cloud.answer, side), access_log=None)
        listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
        ports[side] = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    print(json.dumps(ports), flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)  # until the parent process exits


if __name__ == "__main__":
    asyncio.run(_serve())
