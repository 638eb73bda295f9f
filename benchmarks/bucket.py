"""An S3 in memory, as much of it as farcall, obstore and boto3 use."""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Mapping
from email.utils import formatdate
from xml.sax.saxutils import escape, unescape

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers, body."""

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_KEY = re.compile(r"<Key>(.*?)</Key>", re.DOTALL)
_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class Buckets:
    """Every bucket exists; an object's name is ``bucket/key``.

    Attributes:
        stored: When each object was stored, `time.monotonic`, which all processes share.
        taken_bytes: How many bytes came in bodies that were stored.
    """

    def __init__(self) -> None:
        self.stored: dict[str, float] = {}
        self.taken_bytes = 0
        self._at: dict[str, str] = {}
        self._objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self._uploads: dict[str, dict[int, bytes]] = {}

    def clear(self) -> None:
        """Delete everything."""
        self.stored.clear()
        self.taken_bytes = 0
        self._objects.clear()
        self._at.clear()
        self._uploads.clear()

    def fill(self, name: str, count: int, data: bytes) -> None:
        """Store equal objects, ``<name>/0`` and so on."""
        for number in range(count):
            self._store(f"{name}/{number}", data)

    def answer(
        self,
        method: str,
        name: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
    ) -> tuple[str, Answer]:
        """Answer a request; return the operation's name, too."""
        bucket, _, key = name.partition("/")
        if method == "POST" and "delete" in query:
            return "DeleteObjects", self._delete(bucket, body.decode())
        if method == "GET" and not key:
            return "ListObjectsV2", self._list(bucket, query)
        if "uploads" in query or "uploadId" in query:
            return self._answer_parts(method, name, query, body)
        if method == "PUT":
            return "PutObject", self._put(name, headers, body)
        if method in ("GET", "HEAD"):
            return f"{method.title()}Object", self._get(name, headers)
        return "DeleteObject", self._delete(bucket, f"<Key>{escape(key)}</Key>")

    def _store(self, name: str, data: bytes, tag: str = "") -> dict[str, str]:
        tag = tag or hashlib.md5(data, usedforsecurity=False).hexdigest()
        headers = {"ETag": f'"{tag}"', "Last-Modified": formatdate(usegmt=True)}
        self._objects[name] = (data, headers)
        self.stored[name] = time.monotonic()
        self._at[name] = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        return headers

    def _put(self, name: str, headers: Mapping[str, str], body: bytes) -> Answer:
        if headers.get("If-None-Match") == "*" and name in self._objects:
            return _refuse(412, "PreconditionFailed")
        self.taken_bytes += len(body)
        return 200, self._store(name, body), b""

    def _answer_parts(
        self, method: str, name: str, query: Mapping[str, str], body: bytes
    ) -> tuple[str, Answer]:
        """Answer a request of an upload in parts."""
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self._uploads[upload] = {}
            document = f"<UploadId>{upload}</UploadId>"
            return "CreateMultipartUpload", _reply("InitiateMultipartUploadResult", document)
        upload = query["uploadId"]
        if method == "PUT":
            self._uploads[upload][int(query["partNumber"])] = body
            self.taken_bytes += len(body)
            return "UploadPart", (200, {"ETag": f'"{query["partNumber"]}"'}, b"")
        parts = self._uploads.pop(upload)
        if method == "DELETE":
            return "AbortMultipartUpload", (204, {}, b"")
        whole = b"".join(parts[number] for number in sorted(parts))
        headers = self._store(name, whole, f"{upload}-{len(parts)}")  # no digest of the whole
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
        most = int(query.get("max-keys", 1000))
        names = sorted(n for n in self._objects if n.startswith(start) and n > after)
        page = names[:most]
        rows = "".join(self._row(name) for name in page)
        more = "false"
        if len(names) > most:
            more = "true"
            rows += f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        head = f"<Name>{bucket}</Name><KeyCount>{len(page)}</KeyCount><MaxKeys>{most}</MaxKeys>"
        return _reply("ListBucketResult", f"{head}<IsTruncated>{more}</IsTruncated>{rows}")

    def _row(self, name: str) -> str:
        data, headers = self._objects[name]
        return (
            f"<Contents><Key>{escape(name.partition('/')[2])}</Key><Size>{len(data)}</Size>"
            f"<ETag>{escape(headers['ETag'])}</ETag><StorageClass>STANDARD</StorageClass>"
            f"<LastModified>{self._at[name]}</LastModified></Contents>"
        )


def _reply(element: str, content: str) -> Answer:
    text = f'{_XML}<{element} xmlns="{_NAMESPACE}">{content}</{element}>'
    return 200, {"Content-Type": "application/xml"}, text.encode()


def _refuse(status: int, code: str) -> Answer:
    text = f"{_XML}<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return status, {"Content-Type": "application/xml"}, text.encode()
