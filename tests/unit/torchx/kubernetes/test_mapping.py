import re

import pytest
from torchx.specs import BindMount, DeviceMount, RetryPolicy, VolumeMount

from farcall import ClaimMount, Device, SettingsError
from farcall.torchx.kubernetes.mapping import name_of
from tests.unit.torchx.apps import app, role, sized
from tests.unit.torchx.kubernetes.apps import container, env, planned, request, templates

EFA = "vpc.amazonaws.com/efa"
VOLCANO = {"scheduler": "volcano", "queue": "q"}


def refused(of, **options):
    with pytest.raises(SettingsError) as caught:
        request(of, **options)
    return str(caught.value)


def made(of, **options):
    """Return the pod templates of an app, in the order of its nodes."""
    found = templates(request(of, **options))
    return sorted(found, key=lambda each: int(env(each)["TORCHX_ROLE_IDX"]))


def resources(**more):
    options = {name: more.pop(name) for name in list(more) if name.startswith(("reserved", "efa"))}
    [template] = made(app(role(resource=sized(**more))), **options)
    return container(template)["resources"]


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hello", "My_App.v2", "9lives", "---", "Ü", "a" * 99, ""])
def test_names_are_short_dns_labels(name):
    found = {name_of(app(name=name)) for _ in range(2)}
    assert len(found) == 2
    for each in found:
        assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", each)
        assert len(each) <= 52


# --- roles ------------------------------------------------------------------------------------


def test_one_replica_needs_no_service():
    [document] = request(app()).objects
    assert (document["kind"], document["metadata"]["name"]) == ("Job", "hello-1")
    assert env(document["spec"]["template"])["TORCHX_RANK0_HOST"] == "localhost"


def test_each_role_has_its_own_pods():
    first, *others = made(app(role(num_replicas=2), role("ps", num_replicas=2, image="other")))
    assert [container(each)["image"] for each in (first, *others)] == [
        "alpine:3",
        "other",
        "other",
    ]
    assert [env(each)["TORCHX_ROLE_NAME"] for each in others] == ["ps", "ps"]
    assert {env(each)["TORCHX_RANK0_HOST"] for each in (first, *others)} == {
        "hello-1-0.farcall-nodes"
    }


def test_volcano_roles_share_one_job():
    [document] = request(app(role(num_replicas=2), role("ps")), **VOLCANO).objects
    assert document["apiVersion"] == "batch.volcano.sh/v1alpha1"
    assert (document["spec"]["queue"], document["spec"]["minAvailable"]) == ("q", 3)


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (role(num_replicas=0), "role trainer: num_replicas is 0"),
        (role(image=""), "role trainer: image is ''"),
        (role(max_retries=-1), "role trainer: max_retries is -1"),
    ],
)
def test_illegal_role_is_rejected_by_field(of, text):
    assert text in refused(app(of))


# --- resources --------------------------------------------------------------------------------


def test_reserved_resources_reduce_the_requests():
    found = resources(cpu=4, mib=16000)
    assert found["limits"] == {"cpu": "4", "memory": "16000Mi"}
    assert found["requests"] == {"cpu": "3900m", "memory": "14976Mi"}


@pytest.mark.parametrize("mib", [4, 512, 1024, 1025, 2048, 2049, 65536])
@pytest.mark.parametrize("reserved", [0, 1, 1024, 100_000])
def test_requests_are_never_zero(mib, reserved):
    found = resources(mib=mib, reserved_memmb=reserved, reserved_millicpu=reserved)
    memory = int(found["requests"]["memory"].removesuffix("Mi"))
    assert mib / 2 < memory <= mib
    assert found["requests"]["cpu"] not in ("0", "0m")


def test_gpus_and_devices_limit_equals_request():
    found = resources(gpu=8, devices={EFA: 4})
    for each in found.values():
        assert (each["nvidia.com/gpu"], each[EFA]) == ("8", "4")


def test_efa_device_count_is_an_option():
    assert EFA not in resources(devices={EFA: 4}, efa_device_count=0)["limits"]
    assert resources(devices={EFA: 4}, efa_device_count=2)["limits"][EFA] == "2"
    assert resources(efa_device_count=1)["limits"][EFA] == "1"


# --- mounts -----------------------------------------------------------------------------------


def test_mounts_become_folders_claims_devices():
    of = role(
        mounts=[
            BindMount("/a", "/b", read_only=True),
            VolumeMount("data", "/c", read_only=False),
            DeviceMount("/dev/x", "/dev/y", "rw"),
        ]
    )
    [group] = planned(app(of)).groups
    assert group.mounts[1] == ClaimMount("data", "/c")
    assert group.devices == [Device("/dev/x", "/dev/y", "rw")]
    [template] = made(app(of))
    sources = [{**each, "name": ""} for each in template["spec"]["volumes"]]
    assert {"name": "", "hostPath": {"path": "/a"}} in sources
    assert {"name": "", "persistentVolumeClaim": {"claimName": "data"}} in sources
    assert container(template)["securityContext"]["privileged"] is True


# --- retries ----------------------------------------------------------------------------------


def test_retries_become_attempts():
    [document] = request(app(role(max_retries=2))).objects
    assert document["spec"]["backoffLimitPerIndex"] == 2
    assert request(app(role(num_replicas=2, max_retries=2)), **VOLCANO).objects[0]["spec"][
        "maxRetry"
    ] in (2, 3)


def test_ignored_fields_are_warned_of():
    many = app(
        role(num_replicas=2, max_retries=1, min_replicas=1, retry_policy=RetryPolicy.REPLICA),
        role("ps", max_retries=11),
    )
    warning = "\n".join(planned(many).warnings)
    assert "role trainer: max_retries is 1, but only scheduler=volcano restarts" in warning
    assert "role trainer: max_retries is 1, but 11 applies to all roles" in warning
    assert "role trainer: min_replicas is 1, but all 2 replicas are required" in warning
    assert "role trainer: retry_policy is REPLICA" in warning
    assert "role ps: max_retries is 11, but farcall makes at most 10 attempts" in warning
    assert planned(app(role(max_retries=1))).warnings == ()
    assert planned(app(role(num_replicas=2, max_retries=1)), **VOLCANO).warnings == ()


def test_queue_without_scheduler_is_warned_of():
    [warning] = planned(app(), queue="q").warnings
    assert "the cluster's own scheduler has no queues" in warning
