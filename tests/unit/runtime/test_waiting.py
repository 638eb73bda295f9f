"""Containers without threads: requests fail as they do without a network."""

from __future__ import annotations

import math
import threading
import time

import pytest
from obstore.store import S3Store

from farcall_runtime.storage import Storage, StorageError
from farcall_runtime.waiting import NoResponseError, call_in_thread


class Panic(BaseException):
    """Rust panics raise an error that is not an `Exception`."""


def fail(error):
    raise error


@pytest.fixture
def no_threads(monkeypatch):
    refused = RuntimeError("can't start new thread")
    monkeypatch.setattr(threading.Thread, "start", lambda _self: fail(refused))


def ask_now(call):
    return call_in_thread(call, 60, lambda: math.inf)


def test_call_without_thread_has_no_answer(no_threads):
    with pytest.raises(NoResponseError, match="cannot start a thread: can't start new thread"):
        ask_now(lambda: 7)


def test_panic_is_no_answer():
    panic = Panic("OS can't spawn worker thread")
    with pytest.raises(NoResponseError, match="Panic: OS can't spawn worker thread"):
        ask_now(lambda: fail(panic))


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, SystemExit])
def test_other_errors_reach_the_caller(kind):
    with pytest.raises(kind):
        ask_now(lambda: fail(kind(1)))


def test_request_without_thread_is_retried(no_threads):
    over = time.monotonic() + 1
    storage = Storage("bucket", {}, deadline=lambda: over)

    with pytest.raises(StorageError, match="^s3://bucket/key: cannot start a thread: "):
        storage.read("key", 0, 1)


def test_panicking_bucket_is_opened_again(monkeypatch):
    tries = []

    class Store:
        def __new__(cls, *args, **options):
            tries.append(args)
            if len(tries) == 1:
                raise Panic("no worker")
            return S3Store(*args, **options)

    monkeypatch.setattr("obstore.store.S3Store", Store)
    monkeypatch.setattr("obstore.get_range", lambda *_, **__: b"data")

    assert Storage("bucket", {}).read("key", 0, 4) == b"data"
    assert len(tries) == 2


def test_last_panic_names_the_first(monkeypatch):
    """obstore's runtime starts once; if that failed, later requests do not know the reason."""
    panics = [Panic("OS can't spawn worker thread")]
    monkeypatch.setattr(
        "obstore.get_range", lambda *_, **__: fail(panics.pop() if panics else Panic("poisoned"))
    )

    with pytest.raises(StorageError, match="Panic: poisoned; before that: Panic: OS can't spawn"):
        Storage("bucket", {}, retry_s=1).read("key", 0, 1)
