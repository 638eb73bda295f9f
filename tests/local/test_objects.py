"""Large objects of the local AWS emulator's S3: ranges, parts, memory and files.

Starts the emulator in a separate process, because the tests measure that process.
Slow, because it moves large objects.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import random
import resource
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

import farcall_local
from farcall.filesystem import identity
from tests.support import clients
from tests.support.signing import signed

pytestmark = pytest.mark.slow

BUCKET = "farcall-local"
MIB = 2**20
PART = 5 * MIB
#: Three parts, the last of them short.
DATA = random.Random(7).randbytes(2 * PART + 3_000_001)


@pytest.fixture(scope="module")
def aws():
    with farcall_local.start(cpus=1) as started:
        yield started


@pytest.fixture
def s3(aws):
    client = clients.client(
        "s3", aws.environment, config=Config(retries={"total_max_attempts": 1})
    )
    yield client
    for found in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        client.delete_object(Bucket=BUCKET, Key=found["Key"])
    client.close()


def upload(s3, key, data, part=PART, **more):
    """Upload in parts with boto3, two at a time."""
    config = TransferConfig(part, max_concurrency=2, multipart_chunksize=part)
    s3.upload_fileobj(io.BytesIO(data), BUCKET, key, Config=config, ExtraArgs=more or None)


def get(s3, key, **more):
    return s3.get_object(Bucket=BUCKET, Key=key, **more)["Body"].read()


def read_by(aws):
    """Return how many bytes the server's process has read from files and sockets."""
    lines = Path(f"/proc/{aws._process.pid}/io").read_text().splitlines()
    return int(lines[0].removeprefix("rchar: "))


def folders_of(pid):
    """Return a server's folders for large objects, at most one."""
    return list(Path(tempfile.gettempdir()).glob(f"farcall-s3-{identity(pid)}-*"))


def peak_of(aws):
    """Return the peak memory of the server's process in bytes."""
    for line in Path(f"/proc/{aws._process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not report the peak memory")


def test_range_request_reads_only_range(aws, s3):
    data = os.urandom(64 * MIB)
    upload(s3, "large", data, 8 * MIB)
    s3.put_object(Bucket=BUCKET, Key="in one piece", Body=data[: 16 * MIB])
    before = read_by(aws)
    for start in range(0, 16 * MIB, 2 * MIB):
        for key in ("large", "in one piece"):
            got = get(s3, key, Range=f"bytes={start}-{start + 999}")
            assert data[start : start + 1000] == got
    assert read_by(aws) - before < MIB


def test_large_objects_are_streamed(aws, s3):
    """Each copy of the object in the server's memory would take 192 MiB."""
    upload(s3, "small", DATA)
    before = peak_of(aws)
    data = os.urandom(192 * MIB)
    upload(s3, "parts", data, 16 * MIB)
    s3.put_object(Bucket=BUCKET, Key="one piece", Body=data)
    s3.copy_object(Bucket=BUCKET, Key="copy", CopySource=f"{BUCKET}/one piece")
    for key in ("parts", "one piece", "copy"):
        body = s3.get_object(Bucket=BUCKET, Key=key)["Body"]
        digest = hashlib.sha256()
        for piece in body.iter_chunks(MIB):
            digest.update(piece)
        assert hashlib.sha256(data).digest() == digest.digest()
    assert peak_of(aws) - before < 96 * MIB


def test_ranges_across_parts_are_correct(s3):
    upload(s3, "parts", DATA)
    size = len(DATA)
    edges = sorted({0, 1, PART - 1, PART, PART + 1, 2 * PART - 1, 2 * PART, size - 1})
    for first in edges:
        for last in edges:
            if first <= last:
                got = s3.get_object(Bucket=BUCKET, Key="parts", Range=f"bytes={first}-{last}")
                assert DATA[first : last + 1] == got["Body"].read()
                assert got["ContentRange"] == f"bytes {first}-{last}/{size}"
    assert DATA[-7:] == get(s3, "parts", Range="bytes=-7")
    assert DATA[2 * PART - 3 :] == get(s3, "parts", Range=f"bytes={2 * PART - 3}-")
    assert DATA[-1:] == get(s3, "parts", Range=f"bytes={size - 1}-{size + 100}")
    with pytest.raises(ClientError, match="InvalidRange"):
        get(s3, "parts", Range=f"bytes={size}-")


def test_manual_multipart_upload_is_assembled(s3):
    """A part is sent twice, parts are out of order, and the upload is completed twice."""
    target = {"Bucket": BUCKET, "Key": "by hand"}
    begun = s3.create_multipart_upload(**target, ContentType="a/b")["UploadId"]
    parts = [os.urandom(PART) for _ in range(3)]

    def send(number, data):
        told = s3.upload_part(**target, UploadId=begun, PartNumber=number, Body=data)
        assert f'"{hashlib.md5(data).hexdigest()}"' == told["ETag"]
        return {"PartNumber": number, "ETag": told["ETag"]}

    third = send(9, parts[2])
    send(2, os.urandom(PART))
    send(5, b"left out")
    second, first = send(2, parts[1]), send(1, parts[0])
    assert [1, 2, 5, 9] == [
        part["PartNumber"] for part in s3.list_parts(**target, UploadId=begun)["Parts"]
    ]
    for wrong in ([first, {**second, "ETag": '"x"'}], [{**first, "PartNumber": 7}]):
        with pytest.raises(ClientError, match="InvalidPart"):
            s3.complete_multipart_upload(
                **target, UploadId=begun, MultipartUpload={"Parts": wrong}
            )
    listed = {"Parts": [first, second, third]}
    told = s3.complete_multipart_upload(**target, UploadId=begun, MultipartUpload=listed)
    digests = b"".join(hashlib.md5(part).digest() for part in parts)
    assert f'"{hashlib.md5(digests).hexdigest()}-3"' == told["ETag"]
    again = s3.complete_multipart_upload(**target, UploadId=begun, MultipartUpload=listed)
    assert told["ETag"] == again["ETag"]
    found = s3.get_object(**target)
    assert (b"".join(parts), "a/b") == (found["Body"].read(), found["ContentType"])


def test_files_are_private_and_temporary():
    """The next server deletes the files of a killed server."""

    def stored():
        started = farcall_local.start(cpus=1)
        path = f"/{BUCKET}/large"
        headers = signed("s3", "PUT", f"{started.endpoint_url}{path}", started.environment, DATA)
        connection = http.client.HTTPConnection(urlsplit(started.endpoint_url).netloc)
        connection.request("PUT", path, DATA, headers)
        assert connection.getresponse().status == 200
        connection.close()
        (folder,) = folders_of(started._process.pid)
        return started, folder

    killed, left = stored()
    assert left.stat().st_mode & 0o777 == 0o700
    killed._process.kill()
    killed.stop()
    assert left.exists()
    with stored()[0] as other:
        (folder,) = folders_of(other._process.pid)
        assert not left.exists()
    assert not folder.exists()


@pytest.mark.parametrize("payload", ["signed", "UNSIGNED-PAYLOAD"])
def test_incomplete_upload_is_not_stored(aws, s3, payload):
    path = f"/{BUCKET}/cut off"
    data = DATA[: 6 * MIB]
    said = {} if payload == "signed" else {"X-Amz-Content-Sha256": payload}
    url = f"{aws.endpoint_url}{path.replace(' ', '%20')}"
    headers = signed("s3", "PUT", url, aws.environment, data, said)
    connection = http.client.HTTPConnection(urlsplit(aws.endpoint_url).netloc)
    connection.putrequest("PUT", path.replace(" ", "%20"))
    for name, value in {**headers, "Content-Length": str(len(data))}.items():
        connection.putheader(name, value)
    connection.endheaders()
    connection.send(data[: 5 * MIB])
    connection.sock.shutdown(1)  # no more data is sent
    answer = connection.getresponse()
    assert (400, True) == (answer.status, b"IncompleteBody" in answer.read())
    connection.close()
    assert "Contents" not in s3.list_objects_v2(Bucket=BUCKET)


def test_full_disk_is_reported_once():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))  # the emulator inherits it
    try:
        started = farcall_local.start(cpus=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with started as aws:
        client = clients.client("s3", aws.environment)
        with pytest.raises(ClientError, match="NoSpace"):
            client.put_object(Bucket=BUCKET, Key="large", Body=DATA)
        client.put_object(Bucket=BUCKET, Key="small", Body=b"1")
        client.close()
