"""Volumes of groups and options."""

from farcall.model.commands import BindMount, ClaimMount, Device
from tests.support.kubernetes_schemas import RELEASES, check
from tests.unit.backends.kubernetes.objects import command_pod
from tests.unit.backends.kubernetes.test_documents import pod


def test_mounts_and_devices_are_volumes():
    container, volumes = command_pod(
        mounts=[BindMount("/data", "/in", read_only=True), ClaimMount("models", "/models")],
        devices=[Device("/dev/fuse"), Device("/dev/a", "/dev/b")],
    )
    assert volumes == [
        {"name": "mount-0", "hostPath": {"path": "/data"}},
        {"name": "mount-1", "persistentVolumeClaim": {"claimName": "models"}},
        {"name": "device-0", "hostPath": {"path": "/dev/fuse"}},
        {"name": "device-1", "hostPath": {"path": "/dev/a"}},
    ]
    assert container["volumeMounts"] == [
        {"name": "mount-0", "mountPath": "/in", "readOnly": True},
        {"name": "mount-1", "mountPath": "/models"},
        {"name": "device-0", "mountPath": "/dev/fuse"},
        {"name": "device-1", "mountPath": "/dev/b"},
    ]
    assert container["securityContext"] == {"privileged": True}


def test_mounts_and_shared_memory_are_volumes():
    found = pod(
        mounts=[
            {"type": "volume", "src": "data", "dst": "/data", "readonly": True},
            {"type": "bind", "src": "/scratch", "dst": "/tmp/scratch"},
            {"type": "device", "src": "/dev/fuse"},
            {"type": "device", "src": "/dev/null", "dst": "/dev/nothing", "perm": "r"},
        ],
        shm_size="1.5GiB",
    )
    check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": found}, RELEASES)
    volumes = {each.pop("name"): each for each in found["volumes"]}
    assert volumes == {
        "volume-0": {"persistentVolumeClaim": {"claimName": "data"}},
        "volume-1": {"hostPath": {"path": "/scratch"}},
        "volume-2": {"hostPath": {"path": "/dev/fuse"}},
        "volume-3": {"hostPath": {"path": "/dev/null"}},
        "shared-memory": {"emptyDir": {"medium": "Memory", "sizeLimit": "1536Mi"}},
    }
    assert found["containers"][0]["volumeMounts"] == [
        {"name": "volume-0", "mountPath": "/data", "readOnly": True},
        {"name": "volume-1", "mountPath": "/tmp/scratch"},
        {"name": "volume-2", "mountPath": "/dev/fuse"},
        {"name": "volume-3", "mountPath": "/dev/nothing", "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    assert found["containers"][0]["securityContext"] == {"privileged": True}
