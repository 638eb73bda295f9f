"""Objects that the container reads again if they arrive incomplete."""

import hashlib
import itertools
import sys
import tempfile

import pytest

from farcall_runtime import bundle, environment
from farcall_runtime import storage as storage_module
from farcall_runtime.bundle import Assignment, RefusedError
from farcall_runtime.contract import ExitCode
from farcall_runtime.envelope import Reference
from farcall_runtime.storage import Storage
from tests.contract import make_golden as golden
from tests.support.distributions import distribution, manifest

ALWAYS = itertools.repeat(True)
WHERE = golden.WHERE


class CutStorage(Storage):
    """A bucket whose responses end early, with the status of complete ones."""

    cuts = iter(())

    def _call_for_part(self, *arguments):
        data = super()._call_for_part(*arguments)
        return bytes(data)[: len(data) // 2] if next(self.cuts, False) else data


@pytest.fixture
def storage(tmp_path, monkeypatch):
    monkeypatch.setattr(storage_module, "_REREAD_PAUSES_S", (0, 0))
    (tmp_path / "bucket").mkdir()
    return CutStorage("bucket", {"FARCALL_BUCKET_URL": f"{tmp_path.as_uri()}/bucket"})


@pytest.fixture
def job(storage, monkeypatch):
    """A task whose bundle and shared values are in the bucket."""
    monkeypatch.setattr(golden, "PYTHON", sys.version_info[:2])
    content = golden.files()
    storage.put(WHERE.bundle_key, [content["bundle-shared"]])
    for value, generation in zip(golden.SHARED_VALUES, golden.GENERATIONS, strict=True):
        key = WHERE.shared_key(hashlib.sha256(value).hexdigest(), generation)
        storage.put(key, [value])
    digest = content["bundle-shared.digest"].decode().strip()
    return Assignment(WHERE, digest, golden.KEY, array_index=None, attempt=1, job_id="job")


@pytest.mark.parametrize("cuts", [[True], [False, True]], ids=["bundle", "shared"])
def test_cut_bundle_is_read_again(storage, job, cuts):
    storage.cuts = iter(cuts)
    with tempfile.TemporaryFile() as payload:
        at = bundle.fetch(job, storage, payload).shared_at
        payload.seek(at)
        assert golden.SHARED_VALUES[0] in payload.read()
        assert next(storage.cuts, None) is None


def test_changed_bundle_is_rejected(storage, job):
    storage.cuts = ALWAYS
    with tempfile.TemporaryFile() as payload, pytest.raises(RefusedError) as caught:
        bundle.fetch(job, storage, payload)
    assert caught.value.code == ExitCode.INTEGRITY


def test_cut_outcome_is_read_again(storage, job):
    meta, _, parts = golden.OUTCOMES["outcome-returned"]
    storage.put(WHERE.outcome_key(0), [golden.outcome(meta, 0, parts)])
    storage.cuts = iter([True])
    assert bundle.stored_code(job, storage) == meta["code"]


@pytest.mark.parametrize("cuts", [[True], [False, True]], ids=["manifest", "archive"])
def test_cut_packages_are_read_again(storage, cuts):
    package = distribution("thing", {"thing.py": "value = 3\n"})
    data = manifest(package)
    wanted = Reference(hashlib.sha256(data).digest(), len(data))
    storage.put(WHERE.package_key(wanted.sha256.hex()), [data])
    storage.put(WHERE.package_key(package.sha256), [package.data])
    storage.cuts = iter(cuts)
    prefix = environment.prepare(WHERE, storage, wanted, is_stopped=lambda: False)
    try:
        assert list(prefix.rglob("thing.py"))
    finally:
        environment.remove(prefix)
