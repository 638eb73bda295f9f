"""Objects, versions, finalizers and watches of the local Kubernetes emulator."""

from __future__ import annotations

import asyncio

import pytest

from farcall_local.kubernetes import store as store_module
from farcall_local.kubernetes.errors import (
    AlreadyExistsError,
    ConflictError,
    ExpiredError,
    NotFoundError,
)
from farcall_local.kubernetes.kinds import JOB, POD
from farcall_local.kubernetes.store import Store


@pytest.fixture
def store():
    return Store()


def named(name, namespace="default", **metadata):
    return {"metadata": {"name": name, "namespace": namespace, **metadata}}


def running(store, name="a", **metadata):
    pod = named(name, **metadata)
    return store.create(POD, {**pod, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}})


def test_created_object_has_server_fields(store):
    job = store.create(JOB, {**named("a"), "spec": {"completions": 2}})
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    metadata = job["metadata"]
    assert metadata["resourceVersion"] == str(store.version)
    assert len(metadata["uid"]) == 36
    assert metadata["creationTimestamp"].endswith("Z")
    assert store.get(JOB, "default", "a") is job


def test_name_is_unique_within_namespace(store):
    store.create(JOB, named("a"))
    store.create(JOB, named("a", "other"))
    store.create(POD, named("a"))
    with pytest.raises(AlreadyExistsError, match='^jobs.batch "a" already exists$'):
        store.create(JOB, named("a"))


def test_generated_name_is_unique(store):
    made = [store.create(POD, {"metadata": {"generateName": "a-"}}) for _ in range(3)]
    names = {pod["metadata"]["name"] for pod in made}
    assert len(names) == 3
    assert all(name.startswith("a-") and len(name) == 7 for name in names)


def test_list_is_sorted_by_namespace(store):
    for name, namespace in (("b", "default"), ("a", "other"), ("a", "default")):
        store.create(POD, named(name, namespace))

    def listed(*args, **options):
        return [
            (pod["metadata"]["namespace"], pod["metadata"]["name"])
            for pod in store.list(POD, *args, **options)
        ]

    assert listed() == [("default", "a"), ("default", "b"), ("other", "a")]
    assert listed("default") == [("default", "a"), ("default", "b")]


def test_outdated_update_is_a_conflict(store):
    old = store.create(JOB, named("a"))
    new = store.update(JOB, {**old, "spec": {}})
    with pytest.raises(ConflictError, match="the object has been modified; please apply"):
        store.update(JOB, {**old, "spec": {"parallelism": 1}})
    assert store.get(JOB, "default", "a") is new
    # without a version, there is no conflict
    store.update(JOB, {**named("a"), "spec": {"parallelism": 1}})


def test_missing_object_is_not_found(store):
    with pytest.raises(NotFoundError, match='^pods "a" not found$'):
        store.update(POD, named("a"))
    with pytest.raises(NotFoundError, match='^jobs.batch "a" not found$'):
        store.delete(JOB, "default", "a")


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


@pytest.mark.parametrize(
    "pod",
    [
        {"spec": {}},
        {"spec": {"nodeName": "n"}, "status": {"phase": "Failed"}},
        {"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 0}},
    ],
)
def test_unstarted_pod_is_deleted_at_once(store, pod):
    store.create(POD, {**named("a"), **pod})
    store.delete(POD, "default", "a")
    assert store.get(POD, "default", "a") is None


def test_subscribers_receive_each_change(store):
    changes = []
    unsubscribe = store.subscribe(lambda *change: changes.append(change))
    first = store.create(JOB, named("a"))
    second = store.update(JOB, {**first, "spec": {"parallelism": 1}})
    last = store.delete(JOB, "default", "a")
    unsubscribe()
    store.create(JOB, named("a"))
    assert changes == [
        ("ADDED", JOB, first, None),
        ("MODIFIED", JOB, second, first),
        ("DELETED", JOB, last, second),
    ]
    assert int(last["metadata"]["resourceVersion"]) > int(second["metadata"]["resourceVersion"])


async def test_watch_starts_after_version(store):
    store.create(JOB, named("a"))
    since = store.version
    store.create(JOB, named("b"))
    store.create(POD, named("d"))
    with store.watch(JOB, since) as watch:
        [(_, _, kind, found, before)] = await watch.changes()
        assert (kind, found["metadata"]["name"], before) == ("ADDED", "b", None)
        later = asyncio.ensure_future(watch.changes())
        await asyncio.sleep(0)
        store.delete(JOB, "default", "a")
        store.create(JOB, named("e"))
        assert [(each.type, each.document["metadata"]["name"]) for each in await later] == [
            ("DELETED", "a"),
            ("ADDED", "e"),
        ]


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
