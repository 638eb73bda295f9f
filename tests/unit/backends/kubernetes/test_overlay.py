import pytest

from farcall.model.errors import SettingsError
from tests.unit.backends.kubernetes.test_documents import (
    RUNTIME,
    TASK,
    container,
    job,
    made,
    pod,
    spec,
)


def test_any_kubernetes_field_is_merged():
    overlay = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {
            "runtimeClassName": "nvidia",
            "nodeSelector": {"zone": "a"},
            "containers": [
                {
                    "name": "task",
                    "resources": {"limits": {"vpc.amazonaws.com/efa": "1"}},
                    "env": [{"name": "TMPDIR", "value": "/scratch"}],
                    "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                },
                {"name": "sidecar", "image": "proxy"},
            ],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    }
    document = made(pod_overlay=overlay, mounts=[{"type": "bind", "src": "/a", "dst": "/b"}])
    template = document["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["labels"]["farcall/kind"] == "task"
    found = template["spec"]
    assert found["runtimeClassName"] == "nvidia"
    assert found["nodeSelector"] == {"kubernetes.io/arch": "amd64", "zone": "a"}
    task, sidecar = found["containers"]
    assert sidecar == {"name": "sidecar", "image": "proxy"}
    assert task["resources"]["limits"] == {
        "cpu": "2",
        "memory": "3840Mi",
        "vpc.amazonaws.com/efa": "1",
    }
    assert [each["mountPath"] for each in task["volumeMounts"]] == ["/b", "/scratch"]
    assert [each["name"] for each in found["volumes"]] == ["volume-0", "scratch"]
    assert {"name": "TMPDIR", "value": "/scratch"} in task["env"]


def test_one_volume_may_be_mounted_twice():
    mounts = [{"name": "a", "mountPath": "/a"}, {"name": "a", "mountPath": "/b"}]
    overlay = {
        "spec": {
            "containers": [{"name": "task", "volumeMounts": mounts}],
            "volumes": [{"name": "a", "emptyDir": {}}],
        }
    }
    assert container(pod_overlay=overlay)["volumeMounts"] == mounts


def test_unnamed_lists_are_replaced():
    overlay = {"spec": {"tolerations": [{"key": "b", "operator": "Exists"}]}}
    found = pod(pod_overlay=overlay, tolerations=[{"key": "a", "operator": "Exists"}])
    assert found["tolerations"] == overlay["spec"]["tolerations"]


def task(**fields):
    return {"spec": {"containers": [{"name": "task", **fields}]}}


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        ({"kind": "Pod"}, ["has kind", "metadata and spec"]),
        ({"spec": []}, ["has spec", "table"]),
        ({"metadata": {"name": "mine"}}, ["metadata.name", "labels and annotations"]),
        (
            {"metadata": {"labels": {"farcall/job": "x"}}},
            ["'farcall/job'", "reserved for farcall"],
        ),
        ({"metadata": {"labels": {"a": 1}}}, ["'a'", "use a string"]),
        (
            {"metadata": {"annotations": {"batch.kubernetes.io/job-completion-index": "0"}}},
            ["job-completion-index"],
        ),
        ({"spec": {"restartPolicy": "OnFailure"}}, ["spec.restartPolicy", "Never"]),
        ({"spec": {"activeDeadlineSeconds": 5}}, ["activeDeadlineSeconds", "time_limit"]),
        ({"spec": {"subdomain": "x"}}, ["spec.subdomain", "nodes"]),
        ({"spec": {"schedulerName": "volcano"}}, ["schedulerName", "set scheduler"]),
        ({"spec": {"containers": {"name": "task"}}}, ["spec.containers", "list"]),
        ({"spec": {"containers": [{"image": "x"}]}}, ["spec.containers", "name", "'task'"]),
        ({"spec": {"volumes": ["x"]}}, ["spec.volumes", "name"]),
        (task(image="x"), ["image", "set the option image"]),
        (task(command=["x"]), ["command", "runtime"]),
        (task(env=[{"name": "FARCALL_BUNDLE", "value": "x"}]), ["'FARCALL_BUNDLE'"]),
        (task(env=[{"name": "FARCALL_INDEX", "value": "1"}]), ["'FARCALL_INDEX'"]),
    ],
)
def test_protected_fields_are_rejected(overlay, words):
    with pytest.raises(SettingsError) as caught:
        job(spec(pod_overlay=overlay, runtime=RUNTIME), TASK)
    assert caught.value.option == "pod_overlay"
    for word in ("pod_overlay", *words):
        assert word in str(caught.value)


def test_custom_image_entry_point_is_replaceable():
    assert container(pod_overlay=task(command=["tini", "--"]))["command"] == ["tini", "--"]
