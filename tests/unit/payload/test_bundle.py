"""What a bundle holds, and where the container finds it."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from concurrent.futures import Future
from dataclasses import replace

import cloudpickle
import pytest

from farcall import Settings
from farcall.model.errors import TaskTooLargeError
from farcall.model.workflows import Workflow
from farcall.payload import call_texts
from farcall.payload.bundle import Bundle
from farcall.payload.call_texts import CallTexts
from farcall.payload.pickling import Packed, pack_calls, pack_function
from farcall.payload.shared import Piece
from farcall_runtime import contract, envelope
from farcall_runtime.bundle import Assignment
from farcall_runtime.contract import SHARED_LEAST_BYTES
from tests.unit.fakes import joined

ROOT = "farcall/v1/run-1"


WORKFLOW = Workflow("sweep")


MOST = 10_000


def double(x):
    return 2 * x


def triple(x):
    return 3 * x


def tasks(*functions):
    arguments = pack_calls([[((number,), {})] for number in range(len(functions))])
    return [(pack_function(f), a) for f, a in zip(functions, arguments, strict=True)]


def bundle(*functions, **options):
    return Bundle(
        Settings(**options), ROOT, "double", iter(tasks(*functions)), WORKFLOW, most=MOST
    )


def written(*functions, **options):
    """Return a bundle that was written, and its bytes."""
    made = bundle(*functions, **options)
    return made, b"".join(made.pieces())


def index_of(made, data):
    digest = made.environment(url="https://bucket.s3.eu-west-1.amazonaws.com", region="eu-west-1")[
        contract.ENV_DIGEST
    ]
    return envelope.Index(data[-envelope.root_size(data) :], digest)


def part(data, where):
    found = data[where.offset : where.offset + where.length]
    where.check(found)
    return found


def entry_of(index, data, number):
    return index.entry(number, part(data, index.page(number)))


def test_the_runtime_finds_each_task_s_function_and_arguments():
    wanted = [double, triple, double, *[triple] * envelope.PAGE_ROWS]
    made, data = written(*wanted)
    index = index_of(made, data)
    assert (index.functions, index.entries, made.size) == (2, len(wanted), len(wanted))
    for number, (function, arguments) in enumerate(tasks(*wanted)):
        entry = entry_of(index, data, number)
        assert part(data, entry) == joined(arguments)
        assert part(data, index.function(entry.function)) == joined(function)


def test_the_functions_lie_near_the_end_where_the_first_request_finds_them():
    made, data = written(*[double] * 3000)
    index = index_of(made, data)
    where = index.function(0)
    assert where.offset > len(data) - 16 * 1024
    assert where.offset + where.length + envelope.root_size(data) == index.end == len(data)


def test_equal_functions_are_stored_once():
    one, many = (len(written(*[double] * n)[1]) for n in (1, 100))
    function, arguments = tasks(double)[0]
    row = 52
    assert many - one == 99 * (row + arguments.size)
    assert function.size > row


def test_tasks_are_taken_one_by_one_as_the_bundle_is_written():
    taken = []

    def coming():
        for number, task in enumerate(tasks(*[double] * 5)):
            taken.append(number)
            yield task

    pieces = Bundle(Settings(), ROOT, "double", coming(), WORKFLOW, most=MOST).pieces()
    assert taken == []
    next(pieces)  # the start, which says who pickled
    assert taken == [0]
    next(pieces)
    assert len(taken) < 5


def test_a_full_bundle_leaves_the_rest_for_the_next(monkeypatch):
    all_of_them = tasks(*[double] * 5)
    monkeypatch.setattr("farcall.payload.bundle._FULL_BYTES", 2 * all_of_them[0][1].size)
    left = iter(all_of_them)
    sizes = []
    for _ in range(3):
        made = Bundle(Settings(), ROOT, "double", left, WORKFLOW, most=MOST)
        assert index_of(made, b"".join(made.pieces())).entries == made.size
        sizes.append(made.size)
    assert (sizes, next(left, None)) == ([2, 2, 1], None)


def test_arguments_that_no_upload_takes_are_refused(monkeypatch):
    monkeypatch.setattr("farcall.payload.bundle._LARGEST_BYTES", 10)
    with pytest.raises(TaskTooLargeError, match="Store them where the task can read them"):
        written(double)


def test_large_arguments_are_neither_copied_nor_yielded_in_one_piece():
    data = bytearray(20 * 1024 * 1024)
    arguments = Packed([b"head", memoryview(data)], len(data) + 4)
    made = Bundle(
        Settings(), ROOT, "double", iter([(pack_function(double), arguments)]), WORKFLOW, most=MOST
    )
    steps = [piece for piece in made.pieces() if len(piece) > 1024 * 1024]
    assert all(isinstance(step, memoryview) and step.obj is data for step in steps)
    assert sum(map(len, steps)) == len(data)
    assert max(map(len, steps)) <= 8 * 1024 * 1024


def test_the_bundle_says_what_the_container_must_know():
    made, data = written(double, retry_attempts=4, retry_on="infrastructure", time_limit=99)
    assert index_of(made, data).meta == {
        "python": platform.python_version(),
        "cloudpickle": cloudpickle.__version__,
        "attempts": 4,
        "retry_on": "infrastructure",
        "time_limit_s": 99,
        "queue": Settings().queue,
    }


def test_the_job_s_environment_is_read_by_the_runtime():
    made, data = written(double, prefix="ignored")
    environment = made.environment(
        url="https://bucket.s3.eu-west-1.amazonaws.com", region="eu-west-1"
    )
    found = Assignment.read({**environment, "AWS_BATCH_JOB_ARRAY_INDEX": "7"})
    assert (found.where, found.key, found.array_index, found.attempt) == (
        made.where,
        made.key,
        7,
        1,
    )
    assert found.digest == hashlib.sha256(data[-envelope.root_size(data) :]).hexdigest()
    assert set(environment) == {
        "FARCALL_BUNDLE",
        "FARCALL_DIGEST",
        "FARCALL_OUTCOME_KEY",
        "FARCALL_REGION",
        "FARCALL_WORKFLOW",
    }


def test_a_bucket_s_url_is_told_only_where_it_does_not_follow_from_its_name():
    made = bundle(double).environment(url="http://localhost:5000/bucket", region="eu-west-1")
    assert made["FARCALL_BUCKET_URL"] == "http://localhost:5000/bucket"


def test_the_environment_stays_small():
    made, _ = written(double, s3_bucket_name="b" * 63)
    environment = made.environment(url="http://localhost:5000/bucket", region="eu-west-1")
    assert sum(len(k) + len(v) for k, v in environment.items()) < 2048


def test_no_two_bundles_share_a_name_or_a_key():
    made = [bundle(double) for _ in range(3)]
    assert len({item.where.bundle for item in made}) == 3
    assert len({item.key for item in made}) == 3
    assert {len(item.key) for item in made} == {32}


@pytest.mark.parametrize(
    ("function", "plain"),
    [
        ("simulate", "simulate"),
        ("<lambda>", "lambda"),
        ("größe", "gr-e"),
        ("__call__", "call"),
        ("größe" * 50, None),
        ("日本", "task"),
        ("", "task"),
    ],
)
def test_a_bundle_has_a_name_that_batch_accepts_for_its_job(function, plain):
    made = Bundle(Settings(), ROOT, function, iter(tasks(double)), WORKFLOW, most=MOST)
    assert re.fullmatch("[A-Za-z0-9][A-Za-z0-9_-]{0,127}", made.where.bundle)
    named, _, digits = made.where.bundle.rpartition("-")
    assert re.fullmatch("[0-9a-f]{16}", digits)
    assert plain in (None, named)


def test_the_index_tells_the_queue_so_that_the_job_can_be_found():
    made, data = written(double, queue="nightly")
    assert index_of(made, data).meta["queue"] == "nightly"


def test_secrets_are_in_no_repr():
    made = bundle(double)
    assert made.key.hex() not in repr(made)
    assert repr(made.key) not in repr(made)


def test_texts_of_the_calls_lie_between_the_arguments_and_the_pages():
    function = pack_function(double)
    calls = [[((number,), {})] for number in range(3)]
    packed = pack_calls(calls, None, CallTexts(double).of)
    made = Bundle(
        Settings(), ROOT, "double", ((function, each) for each in packed), WORKFLOW, most=MOST
    )
    data = b"".join(made.pieces())
    index = index_of(made, data)
    texts = index.texts()
    assert ["double(x=0)", "double(x=1)", "double(x=2)"] == call_texts.read(part(data, texts), 3)
    last = entry_of(index, data, 2)
    assert last.offset + last.length == texts.offset
    assert texts.offset + texts.length == index.page(0).offset
    # The container's own way is what it was.
    for number in range(3):
        part(data, entry_of(index, data, number))
    part(data, index.function(0))


def test_without_texts_there_is_nothing_of_them():
    made, data = written(double)
    index = index_of(made, data)
    assert index.texts() is None
    assert "texts" not in index.meta


@pytest.mark.parametrize(
    "said", [[], {}, {"size": 1}, {"size": "x", "sha256": ""}, {"size": 10**9, "sha256": "00"}]
)
def test_an_index_that_does_not_say_where_its_texts_lie_is_refused(said):
    sealed = envelope.seal_index({"texts": said}, [(0, bytes(32))], [])
    index = envelope.Index(sealed.root, hashlib.sha256(sealed.root).hexdigest())
    with pytest.raises(envelope.IntegrityError, match="call descriptions"):
        index.texts()


# --- shared values ----------------------------------------------------------------------------


class Sharing:
    """Stores nothing, and records the requested values."""

    def __init__(self, error=None):
        self.asked = []
        self._error = error

    def __call__(self, value):
        self.asked.append(value)
        generation = Future()
        if self._error is None:
            generation.set_result(f"generation-{len(self.asked)}")
        else:
            generation.set_exception(self._error)
        return generation


def sharing(share, *values, function=double, most=MOST):
    function = pack_function(function)
    coming = ((function, packed) for packed in pack_calls([((value,), {})] for value in values))
    return Bundle(Settings(), ROOT, "double", coming, WORKFLOW, most=most, share=share)


def test_a_value_is_shared_once_and_the_index_names_its_generation():
    held = os.urandom(SHARED_LEAST_BYTES)
    one, other = os.urandom(SHARED_LEAST_BYTES), os.urandom(SHARED_LEAST_BYTES + 1)
    share = Sharing()
    made = sharing(share, one, other, one, 3, function=lambda x: held)
    data = b"".join(made.pieces())
    assert [bytes(value.data) for value in share.asked] == [held, one, other]
    assert index_of(made, data).meta["shared"] == {
        hashlib.sha256(value).hexdigest(): [f"generation-{number}", len(value)]
        for number, value in enumerate((held, one, other), start=1)
    }
    assert (made.size, len(data) < 8192) == (4, True)


def test_a_bundle_without_shared_values_says_nothing_of_them():
    made, data = written(double)
    assert "shared" not in index_of(made, data).meta


def test_no_index_is_sealed_before_the_values_are_in_the_bucket():
    made = sharing(Sharing(ValueError("no room")), os.urandom(SHARED_LEAST_BYTES))
    with pytest.raises(ValueError, match="no room"):
        b"".join(made.pieces())
    assert made.digest == "0" * 64


def test_a_shared_value_larger_than_an_upload_can_be_is_refused():
    share = Sharing()
    large = Piece(bytes(32), 2**36 + 1, b"")
    task = replace(pack_function(double), shared=(large,))
    made = Bundle(Settings(), ROOT, "double", iter([(task, task)]), WORKFLOW, most=1, share=share)
    with pytest.raises(TaskTooLargeError, match="68.7 GB, but the limit is 69 GB"):
        b"".join(made.pieces())
    assert share.asked == []


@pytest.mark.parametrize(("together", "expected"), [(True, 4), (False, 3)])
def test_a_bundle_is_full_of_its_own_values_and_not_of_those_all_its_tasks_have(
    together, expected
):
    """Two of 2 GiB are not the first task's, and the next bundle begins."""
    function, (arguments, *_) = pack_function(double), list(pack_calls([[((3,), {})]]))
    tasks = [
        (
            function,
            replace(arguments, shared=(Piece(bytes([0 if together else n]) * 32, 2**31, b""),)),
        )
        for n in range(4)
    ]
    made = Bundle(Settings(), ROOT, "double", iter(tasks), WORKFLOW, most=MOST, share=Sharing())
    b"".join(made.pieces())
    assert made.size == expected


def test_the_job_is_told_how_its_objects_are_encrypted():
    url = contract.bucket_url("bucket", "eu-west-1")
    made = bundle(double, s3_encryption="aws:kms", s3_kms_key_id="alias/mine")
    environment = made.environment(url=url, region="eu-west-1")
    assert environment["FARCALL_S3_ENCRYPTION"] == "aws:kms"
    assert environment["FARCALL_S3_KMS_KEY_ID"] == "alias/mine"
    assert "FARCALL_BUCKET_URL" not in environment
