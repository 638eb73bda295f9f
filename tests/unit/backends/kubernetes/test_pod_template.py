"""Pods of tasks and of command groups: each field is translated."""

import json
from dataclasses import replace

import pytest

from farcall import Settings
from farcall.backends import bootstrap
from farcall.backends.base import JobSpec
from farcall.backends.kubernetes.names import OPTIONS_ANNOTATION
from farcall.backends.kubernetes.pod_template import escaped, unescaped
from farcall.model.commands import ClaimMount, Nodes
from farcall.model.errors import SettingsError
from tests.support.kubernetes_schemas import RELEASES, check
from tests.unit.backends.kubernetes.objects import command_pod
from tests.unit.backends.kubernetes.test_documents import (
    BUNDLE,
    RUNTIME,
    TASK,
    container,
    job,
    made,
    pod,
    spec,
    variables,
)


def test_minimal_group_is_only_an_image():
    container, volumes = command_pod()
    assert container["image"] == "busybox:1"
    assert {*container} == {"image", "name", "env", "resources"}
    assert (container["env"], volumes) == ([], [])


def test_dollar_signs_are_escaped():
    container, _ = command_pod(command=["sh", "-c", "echo $(date) $$ $HOME"], env={"A": "$(B)"})
    assert container["args"] == ["sh", "-c", "echo $$(date) $$$$ $$HOME"]
    assert container["env"] == [{"name": "A", "value": "$$(B)"}]


def test_secret_is_referenced_by_name():
    container, _ = command_pod(env={"B": "2"}, secrets={"PASSWORD": "db/password"})
    assert container["env"] == [
        {"name": "B", "value": "2"},
        {
            "name": "PASSWORD",
            "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}},
        },
    ]


@pytest.mark.parametrize(
    ("user", "context"),
    [
        ("1000", {"runAsUser": 1000}),
        ("1000:100", {"runAsUser": 1000, "runAsGroup": 100}),
        ("0", {"runAsUser": 0}),
    ],
)
def test_users_are_numeric(user, context):
    assert command_pod(user=user)[0]["securityContext"] == context


def test_options_set_variables_and_secrets():
    found = container(environment={"A": "$(B)"}, secrets={"PASSWORD": "db/password"})["env"]
    assert {"name": "A", "value": "$$(B)"} in found
    reference = {"secretKeyRef": {"name": "db", "key": "password"}}
    assert {"name": "PASSWORD", "valueFrom": reference} in found


@pytest.mark.parametrize(
    ("vcpu", "cpu"),
    [(1, "1"), (0.5, "500m"), (0.07, "70m"), (2.5, "2500m"), (1 / 3, "334m"), (0.0001, "1m")],
)
def test_cpus_are_whole_or_thousandths(vcpu, cpu):
    assert container(vcpu=vcpu)["resources"]["limits"]["cpu"] == cpu


def test_limits_equal_requests():
    found = container(memory="100MB", num_gpus=2)["resources"]
    assert found["limits"] == found["requests"]
    assert found["limits"]["memory"] == "96Mi"
    assert found["limits"]["nvidia.com/gpu"] == "2"


def test_stock_image_runs_bootstrap_unprivileged():
    found = container(runtime=RUNTIME)
    assert [part.replace("$$", "$") for part in found["command"]] == bootstrap.command(RUNTIME)
    assert found["securityContext"]["runAsUser"] == 10001
    assert found["securityContext"]["allowPrivilegeEscalation"] is False
    assert variables(runtime=RUNTIME)["HOME"] == "/tmp"
    options = json.loads(made(runtime=RUNTIME)["metadata"]["annotations"][OPTIONS_ANNOTATION])
    assert (options["image"], options["stock_image_uri"]) == ("", TASK)


def test_variables_are_not_expanded():
    assert escaped("a$(HOME)$$") == "a$$(HOME)$$$$"
    assert unescaped(escaped("a$(HOME)$$b$")) == "a$(HOME)$$b$"
    assert variables(environment={"FARCALL_RETRY_OF": "$(HOME)"})["FARCALL_RETRY_OF"] == "$$(HOME)"


def test_pod_placement_options_are_set():
    found = pod(
        service_account="simulator",
        priority_class="high",
        image_pull_secrets=["registry", "other"],
        node_selector={"zone": "a"},
        instance_type="m7g.large",
        architecture="arm64",
        tolerations=[{"key": "spot", "operator": "Exists"}],
        s3_secret="keys",
    )
    check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": found}, RELEASES)
    assert found["serviceAccountName"] == "simulator"
    assert "automountServiceAccountToken" not in found
    assert found["priorityClassName"] == "high"
    assert found["imagePullSecrets"] == [{"name": "registry"}, {"name": "other"}]
    assert found["nodeSelector"] == {
        "zone": "a",
        "node.kubernetes.io/instance-type": "m7g.large",
        "kubernetes.io/arch": "arm64",
    }
    assert found["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert found["containers"][0]["envFrom"] == [{"secretRef": {"name": "keys"}}]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"node_selector": {"kubernetes.io/arch": "arm64"}},
            ["node_selector", "'arm64'", "architecture requires 'amd64'"],
        ),
        (
            {
                "node_selector": {"node.kubernetes.io/instance-type": "a"},
                "instance_type": "b",
            },
            ["node_selector", "instance_type requires 'b'"],
        ),
        ({"scheduler": "kueue"}, ["queue is empty", "localqueues"]),
        ({"queue": "team"}, ["queue is 'team'", "set scheduler"]),
        ({"shm_size": 8, "memory": 4}, ["shm_size is 8 GiB", "memory is 4 GiB"]),
        (
            {
                "mounts": [
                    {"type": "bind", "src": "/a", "dst": "/c/"},
                    {"type": "bind", "src": "/b", "dst": "/c"},
                ]
            },
            ["mounts has '/c'", "another dst"],
        ),
    ],
)
def test_contradictory_options_are_rejected(options, words):
    with pytest.raises(SettingsError) as caught:
        job(spec(**options), TASK)
    assert caught.value.option in words[0]
    for word in words:
        assert word in str(caught.value)


def test_device_in_stock_image_is_privileged():
    found = container(runtime=RUNTIME, mounts=[{"type": "device", "src": "/dev/fuse"}])
    assert found["securityContext"]["privileged"] is True
    assert "allowPrivilegeEscalation" not in found["securityContext"]


def test_template_includes_node_group_fields():
    group = Nodes(
        1,
        "theirs",
        env={"A": "1", "FARCALL_BUNDLE": "theirs"},
        mounts=[ClaimMount("own", "/dev/shm")],
        vcpu=4,
    )
    found = job(replace(spec(shm_size=1), groups=(group,)), TASK)["spec"]["template"]
    own = found["spec"]["containers"][0]
    assert own["image"] == "theirs"
    assert own["resources"]["limits"]["cpu"] == "4"
    assert [each["name"] for each in found["spec"]["volumes"]] == ["mount-0"]
    assert own["volumeMounts"] == [{"name": "mount-0", "mountPath": "/dev/shm"}]
    assert found["metadata"]["labels"]["farcall/job"] == "simulate-0a1b"
    values = [each.get("value") for each in own["env"] if each["name"] == "FARCALL_BUNDLE"]
    assert values == [BUNDLE]
    assert {"name": "A", "value": "1"} in own["env"]


def test_command_image_has_no_architecture():
    settings = Settings(backend="kubernetes")
    command = JobSpec("c", 1, {"FARCALL_RUN": "ann-1"}, settings, requests={})
    found = job(command, "theirs")["spec"]["template"]
    assert "nodeSelector" not in found["spec"]
    assert found["metadata"]["labels"]["farcall/kind"] == "command"
    assert found["metadata"]["labels"]["farcall/run"] == "ann-1"
