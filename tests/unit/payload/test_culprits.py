"""The part of an argument that cannot be pickled, and what to pass instead."""

import io
import queue
import socket
import sqlite3
import threading

import boto3
import pytest

from farcall import BatchExecutor
from farcall.model.errors import TaskNotPicklableError
from farcall.payload.pickling import explain, pack_calls


class Model:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Stubborn:
    def __reduce__(self):
        raise ValueError("not me")


def error_of(*args, **kwargs):
    with pytest.raises(TaskNotPicklableError) as at:
        next(pack_calls([[((), {}), (args, kwargs)]]))
    assert at.value.__cause__ is not None
    return str(at.value)


@pytest.mark.parametrize(
    ("make", "kind", "advice"),
    [
        (lambda: io.BufferedReader(io.BytesIO()), "BufferedReader", "pass its content"),
        (socket.socket, "socket", "connect inside the function"),
        (threading.Lock, "lock", "create it inside the function"),
        (threading.Event, "Event", "create it inside the function"),
        (queue.Queue, "Queue", "create it inside the function"),
        (lambda: (x for x in [1]), "generator", "pass a list of its items"),
        (lambda: sqlite3.connect(":memory:"), "Connection", "pass its rows"),
        (lambda: boto3.client("s3", "us-east-1"), "S3", "create the client inside the function"),
        (Stubborn, "Stubborn", "pass the data that it is created from"),
    ],
)
def test_error_suggests_replacement(make, kind, advice):
    value = make()
    try:
        assert f"argument x ({kind}) cannot be pickled (" in error_of(3, x=value)
        assert f"): {advice}" in error_of(3, x=value)
    finally:
        getattr(value, "close", lambda: None)()


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, {2: threading.Lock()}]}, "argument 1['a'][1][2] (lock)"),
        (Model(size=3, guard=(threading.Lock(),)), "argument 1.guard[0] (lock)"),
        ({Model: threading.Lock()}, "argument 1[type] (lock)"),
    ],
)
def test_error_names_unpicklable_part(value, place):
    assert error_of(value).startswith(f"{place} cannot be pickled")


def test_farcall_objects_explain_themselves():
    executor = BatchExecutor()
    assert error_of([executor]).startswith("argument 1[0]: a BatchExecutor cannot be pickled")
    call = executor.task(print)(3)
    assert error_of(call).startswith("argument 1: call of print has no result, because it is not")
    assert error_of(executor.attach("id")).startswith("argument 1: a Job cannot be pickled. Pass")


def test_recursive_value_is_searched_once():
    knot = Model(lock=Stubborn())
    knot.own = [knot]
    assert error_of(knot).startswith("argument 1.lock (Stubborn)")


def test_picklable_value_is_not_explained():
    assert explain([((1,), {})]) == ""
