import re

import pytest
from torchx.specs import BindMount, DeviceMount, RetryPolicy, VolumeMount, macros
from torchx.specs.overlays import PUT, set_overlay

from farcall import ClaimMount, Device, SettingsError
from farcall.torchx.kubernetes.mapping import marked, name_of, plain
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


# --- mounts, ports, variables -----------------------------------------------------------------


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


def test_variable_may_be_pod_field():
    [template] = made(app(role(env={"POD": "[FIELD_PATH]metadata.name", "A": "b"})))
    assert env(template)["POD"] == {
        "name": "POD",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
    }
    assert env(template)["A"] == "b"


def test_pods_have_torchx_labels():
    first, second = made(app(role(), role("p s"), name="My app", metadata={"team": "x"}))
    labels = second["metadata"]["labels"]
    assert labels["torchx.pytorch.org/app-name"] == "My.app"
    assert labels["torchx.pytorch.org/role-name"] == "p.s"
    assert labels["torchx.pytorch.org/replica-id"] == "0"
    assert labels["app.kubernetes.io/instance"] == "hello-1"
    assert first["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
    tags = planned(app(metadata={"team": "x"}), user="ann").settings.tags
    assert (tags["team"], tags["torchx.pytorch.org/user"]) == ("x", "ann")


# --- macros -----------------------------------------------------------------------------------


def test_single_replica_number_is_text():
    [template] = made(app(role(args=[macros.replica_id], env={"ME": macros.replica_id})))
    assert (container(template)["command"], env(template)["ME"]) == (["sh", "0"], "0")


def test_replica_number_comes_from_kubernetes():
    [template] = made(
        app(role(num_replicas=2, args=[macros.replica_id], env={"ME": macros.replica_id}))
    )
    assert container(template)["command"] == ["sh", "$(FARCALL_NODE_INDEX)"]
    names = [each["name"] for each in container(template)["env"]]
    assert env(template)["ME"] == "$(FARCALL_NODE_INDEX)"
    # Kubernetes replaces only variables that are defined before.
    assert names.index("FARCALL_NODE_INDEX") < names.index("ME")


def test_dollar_signs_are_escaped():
    [template] = made(
        app(role(num_replicas=2, args=["-c", "echo $$(date) $$$$ $$A ${replica_id}"]))
    )
    # TorchX and Kubernetes each replace two dollar signs with one.
    assert container(template)["command"][-1] == "echo $$(date) $$$$ $$A $(FARCALL_NODE_INDEX)"


@pytest.mark.parametrize("text", ["", "a", "$", "$$", "$(date)", "$(FARCALL_NODE_INDEX)", "$$(A"])
def test_escaped_text_is_restored(text):
    assert plain(marked(text)) == text


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


# --- overlays ---------------------------------------------------------------------------------


def test_overlay_applies_only_to_its_role():
    of = role()
    set_overlay(
        of, "kubernetes", "V1Pod", {"spec": {"priority": 3}, "metadata": {"labels": {"a": "b"}}}
    )
    one, other = made(app(of, role("ps")))
    assert one["spec"]["priority"] == 3
    assert one["metadata"]["labels"]["a"] == "b"
    assert "priority" not in other["spec"]


@pytest.mark.parametrize(
    ("overlay", "text"),
    [
        ({"V1Pod": {"spec": {PUT("containers"): [{"name": "other"}]}}}, "no container 'task'"),
        ({"V1Pod": {"spec": "text"}}, "cannot be merged into the pod"),
        ("file:///nowhere.yaml", "role trainer: metadata"),
    ],
)
def test_invalid_overlay_is_rejected(overlay, text):
    assert text in refused(app(role(metadata={"kubernetes": overlay})))
