"""Quantities, indexes, variable references and volumes of the local Kubernetes emulator.

Starts nothing.
"""

from pathlib import Path

import pytest

from tests.emulators.kubernetes import job_pods, nodes
from tests.emulators.kubernetes.containers import CannotStartError, Volumes, expanded

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
def test_quantities_are_parsed_to_integers(resource, quantity, amount):
    assert nodes.amount(resource, quantity) == amount


@pytest.mark.parametrize("quantity", ["", "two", "2 Gi", "2GB"])
def test_invalid_quantity_is_rejected(quantity):
    assert not nodes.is_quantity(quantity)


@pytest.mark.parametrize(
    ("found", "text"),
    [((), ""), ((3,), "3"), ((2, 1), "1,2"), ((1, 3, 4, 5, 7), "1,3-5,7")],
)
def test_three_consecutive_indexes_form_range(found, text):
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
def test_known_variable_references_are_expanded(text, found):
    assert expanded(text, {"A": "a"}) == found


def pod(*volumes):
    points = [{"name": each["name"], "mountPath": f"/{each['name']}"} for each in volumes]
    container = {"name": "task", "volumeMounts": points}
    return {
        "metadata": {"namespace": "default"},
        "spec": {"containers": [container], "volumes": volumes},
    }


def test_volumes_are_local_folders(tmp_path):
    made = Volumes(
        pod(
            {"name": "host", "hostPath": {"path": str(tmp_path)}},
            {"name": "own", "emptyDir": {"medium": "Memory"}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
        ),
        tmp_path,
    )
    own = made.mounts.pop("/own")
    assert made.mounts == {"/host": str(tmp_path), "/claim": str(tmp_path / "default" / "c")}
    assert Path(own).is_dir()
    made.remove()
    assert not Path(own).exists()


def test_unsupported_volume_is_rejected(tmp_path):
    document = pod({"name": "s", "secret": {"secretName": "keys"}})
    with pytest.raises(CannotStartError, match='for volume "s" : .*only'):
        Volumes(document, tmp_path)
