"""Quantities, indexes, variable references and volumes of the local Kubernetes emulator.

Starts nothing.
"""

import pytest

from farcall_local.kubernetes import job_pods, nodes
from farcall_local.kubernetes.kinds import SECRET
from farcall_local.kubernetes.pod_environment import expanded
from farcall_local.kubernetes.pod_volumes import MountError, Volumes
from farcall_local.kubernetes.store import Store

GIB = 2**30


@pytest.mark.parametrize(
    ("resource", "quantity", "amount"),
    [
        ("cpu", "500m", 500),
        ("cpu", "2", 2000),
        ("cpu", 0.5, 500),
        ("cpu", "1u", 1),  # rounded up, as the scheduler does
        ("memory", "2Gi", 2 * GIB),
        ("memory", "1e3", 1000),
        ("memory", "1500M", 1_500_000_000),
        ("nvidia.com/gpu", "2", 2),
    ],
)
def test_quantities_are_whole_numbers(resource, quantity, amount):
    assert nodes.amount(resource, quantity) == amount


@pytest.mark.parametrize("quantity", ["", "two", "2 Gi", "2GB"])
def test_what_is_no_quantity_is_refused(quantity):
    with pytest.raises(ValueError, match="is no quantity"):
        nodes.parse(quantity)


@pytest.mark.parametrize(
    ("found", "text"),
    [((), ""), ((3,), "3"), ((2, 1), "1,2"), ((1, 3, 4, 5, 7), "1,3-5,7")],
)
def test_three_indexes_in_succession_are_a_range(found, text):
    assert job_pods.written(found) == text
    assert job_pods.read(text) == set(found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("$(A)", "a"),
        ("$(A)$(B)", "a$(B)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$a"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
    ],
)
def test_references_are_replaced_where_there_is_such_a_variable(text, found):
    assert expanded(text, {"A": "a"}) == found


def pod(points, volumes, **container):
    container = {"name": "task", "volumeMounts": points, **container}
    return {
        "metadata": {"namespace": "default"},
        "spec": {"containers": [container], "volumes": volumes},
    }


def test_what_docker_is_told_of_a_pod(tmp_path):
    points = [
        {"name": "host", "mountPath": "/host", "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "memory", "mountPath": "/memory"},
        {"name": "claim", "mountPath": "/claim", "subPath": "part"},
    ]
    volumes = [
        {"name": "host", "hostPath": {"path": str(tmp_path)}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
    ]
    limits = {"cpu": "8", "memory": "2Gi", "nvidia.com/gpu": "1"}
    document = pod(
        points, volumes, resources={"limits": limits}, securityContext={"privileged": True}
    )
    made = Volumes(Store(), document, tmp_path)
    host = made.host(cpus=4)
    assert host["NanoCpus"] == 4_000_000_000  # no more than there are
    assert host["Memory"] == host["MemorySwap"] == 2 * GIB
    assert host["ShmSize"] == GIB
    assert host["Tmpfs"] == {"/memory": ""}
    assert host["Privileged"]
    assert host["DeviceRequests"] == [{"Count": 1, "Capabilities": [["gpu"]]}]
    assert [(each["Source"], each["Target"], each["ReadOnly"]) for each in host["Mounts"]] == [
        (str(tmp_path), "/host", True),
        (str(tmp_path / "default" / "c" / "part"), "/claim", False),
    ]
    made.remove()


def test_a_secret_is_a_folder_of_files(tmp_path):
    store = Store()
    document = pod(
        [{"name": "s", "mountPath": "/s"}], [{"name": "s", "secret": {"secretName": "keys"}}]
    )
    with pytest.raises(MountError, match='for volume "s" : secret "keys" not found'):
        Volumes(store, document, tmp_path)
    meta = {"name": "keys", "namespace": "default"}
    store.create(SECRET, {"metadata": meta, "data": {"k": "dmFsdWU="}})
    made = Volumes(store, document, tmp_path)
    with open(f"{made.mounts['/s']}/k") as file:  # noqa: PTH123
        assert file.read() == "value"
    made.remove()


def test_a_folder_of_the_host_that_is_not_there(tmp_path):
    path = {"path": str(tmp_path / "none"), "type": "Directory"}
    document = pod([{"name": "h", "mountPath": "/h"}], [{"name": "h", "hostPath": path}])
    with pytest.raises(MountError, match="hostPath type check failed: .*none is not a directory"):
        Volumes(Store(), document, tmp_path)
    document["spec"]["volumes"][0]["hostPath"]["type"] = "DirectoryOrCreate"
    Volumes(Store(), document, tmp_path)
    assert (tmp_path / "none").is_dir()
