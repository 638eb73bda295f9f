"""Content of bundles, as the container reads them."""

import hashlib
import os
import platform
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


def test_runtime_finds_functions_and_arguments():
    wanted = [double, triple, double, *[triple] * envelope.PAGE_ROWS]
    made, data = written(*wanted)
    index = index_of(made, data)
    assert (index.functions, index.entries, made.size) == (2, len(wanted), len(wanted))
    for number, (function, arguments) in enumerate(tasks(*wanted)):
        entry = entry_of(index, data, number)
        assert part(data, entry) == joined(arguments)
        assert part(data, index.function(entry.function)) == joined(function)


def test_functions_are_near_the_end():
    """The container's first request reads the end of the bundle."""
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


def test_tasks_are_consumed_during_writing():
    taken = []

    def coming():
        for number, task in enumerate(tasks(*[double] * 5)):
            taken.append(number)
            yield task

    pieces = Bundle(Settings(), ROOT, "double", coming(), WORKFLOW, most=MOST).pieces()
    assert taken == []
    next(pieces)  # the start, which names the pickling version
    assert taken == [0]
    next(pieces)
    assert len(taken) < 5


def test_full_bundle_leaves_rest_for_next(monkeypatch):
    all_of_them = tasks(*[double] * 5)
    monkeypatch.setattr("farcall.payload.bundle._FULL_BYTES", 2 * all_of_them[0][1].size)
    left = iter(all_of_them)
    sizes = []
    for _ in range(3):
        made = Bundle(Settings(), ROOT, "double", left, WORKFLOW, most=MOST)
        assert index_of(made, b"".join(made.pieces())).entries == made.size
        sizes.append(made.size)
    assert (sizes, next(left, None)) == ([2, 2, 1], None)


def test_oversized_arguments_are_rejected(monkeypatch):
    monkeypatch.setattr("farcall.payload.bundle._LARGEST_BYTES", 10)
    with pytest.raises(TaskTooLargeError, match="Store them where the task can read them"):
        written(double)


def test_large_arguments_are_not_copied():
    data = bytearray(20 * 1024 * 1024)
    arguments = Packed([b"head", memoryview(data)], len(data) + 4)
    made = Bundle(
        Settings(), ROOT, "double", iter([(pack_function(double), arguments)]), WORKFLOW, most=MOST
    )
    steps = [piece for piece in made.pieces() if len(piece) > 1024 * 1024]
    assert all(isinstance(step, memoryview) and step.obj is data for step in steps)
    assert sum(map(len, steps)) == len(data)
    assert max(map(len, steps)) <= 8 * 1024 * 1024


def test_index_has_metadata_for_container():
    made, data = written(double, retry_attempts=4, retry_on="infrastructure", time_limit=99)
    assert index_of(made, data).meta == {
        "python": platform.python_version(),
        "cloudpickle": cloudpickle.__version__,
        "attempts": 4,
        "retry_on": "infrastructure",
        "time_limit_s": 99,
        "queue": Settings().queue,
    }


def test_job_environment_is_read_by_runtime():
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


def test_derivable_bucket_url_is_omitted():
    made = bundle(double).environment(url="http://localhost:5000/bucket", region="eu-west-1")
    assert made["FARCALL_BUCKET_URL"] == "http://localhost:5000/bucket"


def test_environment_stays_small():
    made, _ = written(double, s3_bucket_name="b" * 63)
    environment = made.environment(url="http://localhost:5000/bucket", region="eu-west-1")
    assert sum(len(k) + len(v) for k, v in environment.items()) < 2048


def test_bundles_have_unique_names_and_keys():
    made = [bundle(double) for _ in range(3)]
    assert len({item.where.bundle for item in made}) == 3
    assert all(item.where.bundle.startswith("double-") for item in made)
    assert len({item.key for item in made}) == 3
    assert {len(item.key) for item in made} == {32}


def test_call_texts_follow_the_arguments():
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
    # The parts that the container reads are unchanged.
    for number in range(3):
        part(data, entry_of(index, data, number))
    part(data, index.function(0))


def test_index_without_texts_is_accepted():
    made, data = written(double)
    index = index_of(made, data)
    assert index.texts() is None
    assert "texts" not in index.meta


@pytest.mark.parametrize(
    "texts_entry",
    [[], {}, {"size": 1}, {"size": "x", "sha256": ""}, {"size": 10**9, "sha256": "00"}],
)
def test_invalid_location_of_texts_is_rejected(texts_entry):
    sealed = envelope.seal_index({"texts": texts_entry}, [(0, bytes(32))], [])
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


def test_shared_value_is_stored_once():
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


def test_failed_shared_value_prevents_index():
    made = sharing(Sharing(ValueError("no room")), os.urandom(SHARED_LEAST_BYTES))
    with pytest.raises(ValueError, match="no room"):
        b"".join(made.pieces())
    assert made.digest == "0" * 64


def test_oversized_shared_value_is_rejected():
    share = Sharing()
    large = Piece(bytes(32), 2**36 + 1, b"")
    task = replace(pack_function(double), shared=(large,))
    made = Bundle(Settings(), ROOT, "double", iter([(task, task)]), WORKFLOW, most=1, share=share)
    with pytest.raises(TaskTooLargeError, match="68.7 GB, but the limit is 69 GB"):
        b"".join(made.pieces())
    assert share.asked == []


@pytest.mark.parametrize(("together", "expected"), [(True, 4), (False, 3)])
def test_distinct_shared_values_fill_bundle(together, expected):
    """Values that all tasks share count once; here, two values of 2 GiB exceed the limit."""
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


def test_environment_has_encryption_options():
    url = contract.bucket_url("bucket", "eu-west-1")
    made = bundle(double, s3_encryption="aws:kms", s3_kms_key_id="alias/mine")
    environment = made.environment(url=url, region="eu-west-1")
    assert environment["FARCALL_S3_ENCRYPTION"] == "aws:kms"
    assert environment["FARCALL_S3_KMS_KEY_ID"] == "alias/mine"
    assert "FARCALL_BUCKET_URL" not in environment
