"""Objects, versions, finalizers and watches of the local Kubernetes emulator."""

from __future__ import annotations

import pytest

from tests.emulators.kubernetes import store as store_module
from tests.emulators.kubernetes.errors import (
    ConflictError,
    ExpiredError,
)
from tests.emulators.kubernetes.kinds import JOB, POD
from tests.emulators.kubernetes.store import Store


@pytest.fixture
def store():
    return Store()


def named(name, namespace="default", **metadata):
    return {"metadata": {"name": name, "namespace": namespace, **metadata}}


def running(store, name="a", **metadata):
    pod = named(name, **metadata)
    return store.create(POD, {**pod, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}})


def test_outdated_update_is_a_conflict(store):
    old = store.create(JOB, named("a"))
    new = store.update(JOB, {**old, "spec": {}})
    with pytest.raises(ConflictError, match="the object has been modified; please apply"):
        store.update(JOB, {**old, "spec": {"parallelism": 1}})
    assert store.get(JOB, "default", "a") is new
    # without a version, there is no conflict
    store.update(JOB, {**named("a"), "spec": {"parallelism": 1}})


def test_last_finalizer_deletes_object(store):
    store.create(POD, named("a", finalizers=["one", "two"]))
    pod = store.delete(POD, "default", "a")
    assert pod["metadata"]["deletionTimestamp"]
    assert store.delete(POD, "default", "a") is pod
    left = {**pod["metadata"], "finalizers": ["two"]}
    pod = store.update(POD, {**pod, "metadata": left})
    store.update(POD, {**pod, "metadata": {**left, "resourceVersion": "", "finalizers": []}})
    assert store.get(POD, "default", "a") is None
    assert [change.type for change in store.since(POD, 0)] == [
        "ADDED",
        "MODIFIED",
        "MODIFIED",
        "DELETED",
    ]


def test_running_pod_gets_grace_period(store):
    running(store)
    pod = store.delete(POD, "default", "a")
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 30
    assert store.delete(POD, "default", "a", grace_s=60) is pod
    shorter = store.delete(POD, "default", "a", grace_s=3)
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 3
    assert shorter["metadata"]["deletionTimestamp"] < pod["metadata"]["deletionTimestamp"]
    store.delete(POD, "default", "a", grace_s=0)
    assert store.get(POD, "default", "a") is None


async def test_watch_before_history_expires(store):
    store.create(JOB, named("a"))
    with store.watch(JOB, 1) as behind, store.watch(JOB, store.version) as open_:
        version = store.version
        store.compact()
        with pytest.raises(ExpiredError, match=f"^too old resource version: {version} "):
            store.since(JOB, version)
        assert store.since(JOB, store.version) == []
        with pytest.raises(ExpiredError):
            await behind.changes()
        store.create(JOB, named("b"))
        [change] = await open_.changes()
        assert change.document["metadata"]["name"] == "b"


async def test_slow_watch_expires(store, monkeypatch):
    monkeypatch.setattr(store_module, "HISTORY", 10)
    since = store.version
    job = store.create(JOB, {**named("a"), "status": {}})
    for active in range(1, 21):
        store.update(JOB, {**named("a"), "status": {"active": active}})
    with pytest.raises(ExpiredError):
        store.since(JOB, since)
    kept = store.since(JOB, store.version - 10)
    assert [change.document["status"]["active"] for change in kept] == list(range(11, 21))
    assert job["status"] == {}, "a returned object was modified"
