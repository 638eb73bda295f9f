"""How long the container waits for S3: a server that is slow, hangs, or fails."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import re
import socket
import threading
import time
from pathlib import Path

import obstore
import pytest

from farcall_runtime import storage as storage_module
from farcall_runtime.contract import VALUE_PART_BYTES
from farcall_runtime.storage import (
    Created,
    NotFoundError,
    Storage,
    StorageError,
    TooShortError,
    UnfitError,
)


class Server:
    """Handles each request with the next of some scripts, and repeats the last one.

    Attributes:
        requests: Start lines of the requests.
        heads: The requests without their bodies.
    """

    def __init__(self, *scripts):
        self.requests = []
        self.heads = []
        self._scripts = list(scripts)
        self._open = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
                threading.Thread(target=self._run, args=(script, connection), daemon=True).start()

    def _run(self, script, connection):
        with contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(1)
            self.heads.append(head.decode())
            self.requests.append(head.partition(b"\r\n")[0].decode())
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            script(connection, length)


def receive(connection, length):
    while length > 0:
        length -= len(connection.recv(min(length, 1 << 20)))


def reply(connection, status, text=""):
    head = f'HTTP/1.1 {status} X\r\nConnection: close\r\nETag: "x"\r\nContent-Length: {len(text)}'
    connection.sendall(f"{head}\r\n\r\n{text}".encode())
    connection.shutdown(socket.SHUT_RDWR)


def works(connection, length):
    receive(connection, length)
    reply(connection, 200)


def hangs(connection, length):
    receive(connection, length)


def moves_slowly(connection, length):
    """Read 100 kB per tenth of a second, half of the patience for a slow line."""
    while length > 0:
        received = min(length, 100_000)
        receive(connection, received)
        length -= received
        time.sleep(0.1)
    reply(connection, 200)


def fails(status, code):
    def script(connection, length):
        receive(connection, length)
        reply(connection, status, f"<Error><Code>{code}</Code></Error>")

    return script


@pytest.fixture
def open_bucket(monkeypatch):
    """Return a function that opens a bucket on a scripted server; it returns both."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with contextlib.ExitStack() as stack:

        def make(*scripts, **bounds):
            server = stack.enter_context(contextlib.closing(Server(*scripts)))
            return server, Storage("bucket", {"AWS_ENDPOINT_URL": server.url}, **bounds)

        yield make


OF_CREDENTIALS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_CONTAINER_", "AWS_ROLE_", "AWS_WEB_IDENTITY_"),
)


@pytest.mark.parametrize("value", ["true", "aws:kms"])
def test_obstore_settings_change_no_request(open_bucket, monkeypatch, value):
    folder = Path(obstore.__file__).parent / "_store"
    stubs = "".join((folder / name).read_text() for name in ("_aws.pyi", "_client.pyi"))
    names = {f"AWS_{name.upper()}" for name in re.findall(r"^    (\w+): ", stubs, re.M)}
    names |= {"AWS_Skip_Signature", *re.findall(r"`(AWS_\w+)`", stubs)}
    assert {"AWS_SKIP_SIGNATURE", "AWS_TOKEN", "AWS_ALLOW_INVALID_CERTIFICATES"} <= names
    server, _ = open_bucket(works)

    def request():
        storage = Storage("bucket", {"AWS_ENDPOINT_URL": server.url}, retry_s=0)
        storage.create("key", [b"data"])
        head = re.sub(r"x-amz-date: .*|Credential=\S*|Signature=\w+", "", server.heads[-1])
        return sorted(head.splitlines())

    plain = request()
    for name in names:
        if not name.startswith(OF_CREDENTIALS):
            with monkeypatch.context() as changed:
                changed.setenv(name, value)
                assert request() == plain, name
                assert os.environ[name] == value


def test_sdk_variables_stay_set(open_bucket, monkeypatch):
    """Another thread may be opening an AWS client at that moment."""
    _, storage = open_bucket(works)
    for name in ("AWS_DEFAULT_PROFILE", "AWS_EC2_METADATA_DISABLED", "AWS_USE_FIPS_ENDPOINT"):
        monkeypatch.setenv(name, "true")
    removed = []
    monkeypatch.setattr(type(os.environ), "__delitem__", lambda _, name: removed.append(name))
    storage.create("key", [b"data"])
    assert removed == []


def test_hanging_request_is_repeated(open_bucket):
    server, storage = open_bucket(hangs, works, patience_s=1)

    assert storage.create("key", [b"data"]) is Created.PERHAPS_AGAIN
    assert ["PUT /bucket/key HTTP/1.1"] * 2 == server.requests


def test_slow_upload_in_progress_is_kept(open_bucket):
    server, storage = open_bucket(moves_slowly, patience_s=0.5)

    assert storage.create("key", [bytes(700_000)])
    assert 1 == len(server.requests)


def test_deadline_ends_hanging_request(open_bucket):
    over = time.monotonic() + 1
    _, storage = open_bucket(hangs, deadline=lambda: over)

    with pytest.raises(StorageError, match="s3://bucket/key: no response for 1 s"):
        storage.create("key", [b"data"])


def test_earlier_deadline_ends_request_too(open_bucket):
    began = time.monotonic()
    _, storage = open_bucket(
        hangs, deadline=lambda: began + (600 if time.monotonic() < began + 1 else 0)
    )

    with pytest.raises(StorageError, match="no response"):
        storage.create("key", [b"data"])


def test_lasting_error_has_one_line(open_bucket):
    server, storage = open_bucket(fails(400, "ExpiredToken"), retry_s=1)

    with pytest.raises(StorageError, match="^s3://bucket/key: .*ExpiredToken") as caught:
        storage.create("key", [b"data"])
    assert "\n" not in str(caught.value)
    assert 1 < len(server.requests)


def test_hanging_request_error_names_previous_error(open_bucket):
    _, storage = open_bucket(fails(400, "ExpiredToken"), hangs, patience_s=0.5, retry_s=1)

    with pytest.raises(StorageError, match="no response.*before that: .*ExpiredToken"):
        storage.create("key", [b"data"])


def test_missing_object_is_not_retried(open_bucket):
    server, storage = open_bucket(fails(404, "NoSuchKey"))

    with pytest.raises(NotFoundError):
        storage.read("key", 0, 10)
    assert 1 == len(server.requests)


@pytest.mark.parametrize("status", [501, 400])
def test_unsupported_request_is_not_retried(open_bucket, monkeypatch, status):
    monkeypatch.setattr(storage_module, "_QUICK_RETRY_S", 0)
    server, storage = open_bucket(fails(status, "NotImplemented"))

    with pytest.raises(UnfitError, match="NotImplemented.*needs a store that supports"):
        storage.create("key", [b"data"])
    assert 1 == len(server.requests)
    with pytest.raises(UnfitError if status == 501 else StorageError):  # the response has no body
        storage.version("key")


def test_existing_object_is_no_error(open_bucket):
    _, storage = open_bucket(fails(412, "PreconditionFailed"))

    assert storage.create("key", [b"data"]) is Created.BEFORE


def test_first_answer_means_created_once(open_bucket):
    _, storage = open_bucket(works)

    assert storage.create("key", [b"data"]) is Created.NOW


@pytest.mark.parametrize("status", [500, 503])
def test_repeated_request_may_have_created_twice(open_bucket, status):
    server, storage = open_bucket(fails(status, "InternalError"), works)

    assert storage.create("key", [b"data"]) is Created.PERHAPS_AGAIN
    assert 2 == len(server.requests)


def test_large_value_is_stored_in_parts(open_bucket):
    """Each part is retried separately."""
    server, storage = open_bucket(fails(400, "ExpiredToken"), works)
    data = random.Random(1).randbytes(5 * VALUE_PART_BYTES + 17)

    view = memoryview(data)
    cuts = [0, 1, 5, VALUE_PART_BYTES, 2 * VALUE_PART_BYTES + 3, len(data)]
    pieces = [view[start:end] for start, end in itertools.pairwise(cuts)]
    found = storage.put_large("value/{}".format, pieces)
    assert hashlib.sha256(data).hexdigest() == found
    tried = sorted(line.split()[1] for line in server.requests)
    assert {f"/bucket/value/{n}" for n in range(6)} == set(tried)
    assert 7 == len(tried)


def test_refused_part_ends_large_value(open_bucket):
    _, storage = open_bucket(works, fails(403, "AccessDenied"))

    with pytest.raises(StorageError, match="AccessDenied"):
        storage.put_large("value/{}".format, [bytes(8 * VALUE_PART_BYTES)])


# --- a folder as a bucket ---------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Bucket in a folder whose name needs quoting in a URL."""
    place = tmp_path / "a % b"
    (place / "bucket").mkdir(parents=True)
    return Storage("bucket", {"FARCALL_BUCKET_URL": f"{place.as_uri()}/bucket"})


def test_folder_stores_objects(folder, tmp_path):
    folder.put("a/b", [b"some", b"thing"])
    assert (tmp_path / "a % b" / "bucket" / "a" / "b").read_bytes() == b"something"
    assert folder.read("a/b", 2, 6) == b"meth"
    assert folder.read_end("a/b", 5) == b"thing"
    assert folder.read_end("a/b", 50) == b"something"
    assert b"".join(folder.stream("a/b", 0, 9)) == b"something"


def test_folder_object_is_created_once(folder):
    assert folder.create("a", [b"first"]) is Created.NOW
    before = folder.version("a")
    assert folder.create("a", [b"second"]) is Created.BEFORE
    assert folder.read("a", 0, 9) == b"first"
    assert folder.version("a") == before
    folder.delete("a")
    folder.delete("a")
    with pytest.raises(NotFoundError):
        folder.read("a", 0, 1)


def test_folder_read_past_end_raises(folder):
    folder.put("a", [b"short"])
    with pytest.raises(TooShortError):
        folder.read("a", 5, 9)
