"""Protobuf bodies that kubectl sends."""

from __future__ import annotations

import pytest

from farcall.local.kubernetes import protobuf
from farcall.local.kubernetes.errors import UnsupportedMediaTypeError

#: What ``kubectl create job a --image=x:1 -- echo hello`` of 1.37 has sent.
JOB = bytes.fromhex(
    "6b3873000a0f0a0862617463682f763112034a6f621281010a110a016112001a"
    "0022002a00320038004200126232600a100a0012001a0022002a003200380042"
    "00124c12290a01611203783a311a046563686f1a0568656c6c6f2a0042006a00"
    "720080010088010090010"
    "0a201001a054e65766572320042004a0052005800600068008201008a01009a0100c201001a08200028003000"
    "3a001a002200"
)


def test_a_job_by_words_alone():
    found = protobuf.parsed(JOB)
    assert (found["apiVersion"], found["kind"]) == ("batch/v1", "Job")
    assert found["metadata"] == {"name": "a"}
    spec = found["spec"]["template"]["spec"]
    assert spec["containers"] == [{"name": "a", "image": "x:1", "command": ["echo", "hello"]}]
    assert spec["restartPolicy"] == "Never"


def field(number, data):
    return bytes([number << 3 | 2, len(data)]) + data


def wrapped(kind, raw):
    type_ = field(1, b"v1") + field(2, kind)
    return b"k8s\x00" + field(1, type_) + field(2, raw)


def test_a_secret():
    metadata = field(1, b"a") + field(11, field(1, b"k") + field(2, b"v"))
    raw = field(1, metadata) + field(2, field(1, b"key") + field(2, b"\x00\x01")) + b"\x28\x01"
    assert protobuf.parsed(wrapped(b"Secret", raw)) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "a", "labels": {"k": "v"}},
        "data": {"key": "AAE="},
        "immutable": True,
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"k8s\x00",
        JOB[:-20],
        wrapped(b"Pod", b""),
        wrapped(b"Secret", field(9, b"what is not read")),
        wrapped(b"Secret", b"\x07\x00"),
        wrapped(b"Secret", b"\x80" * 12),
    ],
)
def test_what_is_not_read_is_refused(body):
    with pytest.raises(UnsupportedMediaTypeError):
        protobuf.parsed(body)
