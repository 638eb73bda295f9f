"""Plugins of Volcano jobs: names, numbers, and what they leave in pods."""

from __future__ import annotations

import pytest

from farcall.local.kubernetes import volcano_plugins as plugins
from farcall.local.kubernetes.kinds import CONFIG_MAP, SERVICE, VOLCANO_JOB
from farcall.local.kubernetes.store import Store


@pytest.fixture
def store():
    return Store()


def made(store, **given):
    tasks = [
        {"name": "ps", "replicas": 1, "template": {"spec": {}}},
        {"name": "my-work", "replicas": 2, "template": {"spec": {}}},
    ]
    meta = {"name": "one", "namespace": "default"}
    return store.create(
        VOLCANO_JOB, {"metadata": meta, "spec": {"tasks": tasks, "plugins": given}}
    )


def pod(name="one-ps-0"):
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "a"}]}}


def test_svc_makes_a_service_without_an_address_and_the_hosts_of_each_task(store):
    job = made(store, svc=["--publish-not-ready-addresses"])
    assert plugins.make(store, job) == {"plugin-svc": "svc"}
    service = store.get(SERVICE, "default", "one")
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == (
        "None",
        True,
    )
    data = store.get(CONFIG_MAP, "default", "one-svc")["data"]
    assert data["VC_MY_WORK_HOSTS"] == "one-my-work-0.one,one-my-work-1.one"
    assert (data["VC_PS_NUM"], data["VC_MY_WORK_NUM"]) == ("1", "2")
    assert data["my_work.host"] == "one-my-work-0.one\none-my-work-1.one"
    plugins.remove(store, job)
    assert store.list(SERVICE) == store.list(CONFIG_MAP) == []


def test_another_job_s_service_is_not_removed(store):
    store.create(SERVICE, {"metadata": {"name": "one", "namespace": "default"}})
    plugins.remove(store, made(store, svc=[]))
    assert len(store.list(SERVICE)) == 1


def test_a_pod_has_its_name_its_number_and_where_the_others_are(store):
    changed = plugins.changed(made(store, svc=[], env=[]), pod(), 0)
    spec, (container,) = changed["spec"], changed["spec"]["containers"]
    assert (spec["hostname"], spec["subdomain"]) == ("one-ps-0", "one")
    names = [each["name"] for each in container["env"]]
    assert {"VC_PS_HOSTS", "VC_MY_WORK_NUM", "VK_TASK_INDEX", "VC_TASK_INDEX"} <= set(names)
    assert container["volumeMounts"] == [{"name": "one-svc", "mountPath": "/etc/volcano"}]


def test_a_pod_without_plugins_stays_as_it_is(store):
    changed = plugins.changed(made(store), pod(), 0)
    assert changed["spec"]["containers"] == [{"name": "a", "env": []}]
    assert "subdomain" not in changed["spec"]
