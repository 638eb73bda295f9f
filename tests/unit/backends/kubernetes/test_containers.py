"""Containers of command jobs: each field of a group is translated or rejected."""

import pytest

from farcall.backends.kubernetes import documents
from farcall.model.commands import BindMount, ClaimMount, Device, EfsMount, Nodes, Ulimit
from farcall.model.errors import SettingsError


def of(**fields):
    group = Nodes(1, "busybox:1", **fields)
    documents.check_group(group)
    return documents.container_of(group)


def test_minimal_group_is_only_an_image():
    assert of() == ({"image": "busybox:1"}, [])


def test_dollar_signs_are_escaped():
    container, _ = of(command=["sh", "-c", "echo $(date) $$ $HOME"], env={"A": "$(B)"})
    assert container["args"] == ["sh", "-c", "echo $$(date) $$$$ $$HOME"]
    assert container["env"] == [{"name": "A", "value": "$$(B)"}]


def test_mounts_and_devices_are_volumes():
    container, volumes = of(
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


def test_secret_is_referenced_by_name():
    container, _ = of(env={"B": "2"}, secrets={"PASSWORD": "db/password"})
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
    assert of(user=user)[0]["securityContext"] == context


@pytest.mark.parametrize(
    ("fields", "option", "message"),
    [
        ({"user": "daemon"}, "user", 'for example "1000" or "1000:1000"'),
        ({"ulimits": [Ulimit("nofile", 1, 2)]}, "ulimits", "ulimit -n"),
        ({"mounts": [EfsMount("fs-0123456789", "/efs")]}, "mounts", "ClaimMount"),
        ({"mounts": [ClaimMount("My Claim", "/a")]}, "mounts", "PersistentVolumeClaim"),
        ({"mounts": [BindMount("data", "/a")]}, "mounts", "an absolute path on the node"),
        ({"mounts": [BindMount("/data", "a")]}, "mounts", "beginning with /"),
        ({"mounts": [BindMount("/a", "/x"), ClaimMount("b", "/x")]}, "mounts", "only once"),
        ({"secrets": {"A": "arn:aws:ssm:r:1:p"}}, "secrets", '"db/password"'),
        ({"env": {"1A": "x"}}, "env", "no digit at the beginning"),
        ({"env": {"A B": "x"}}, "env", "letters, digits"),
        ({"command": "echo hi"}, "command", "a list of strings"),
        ({"shm_size": 0}, "shm_size", "above 0"),
        ({"devices": [Device("fuse")]}, "devices", "absolute paths"),
    ],
)
def test_unsupported_fields_are_rejected_with_remedy(fields, option, message):
    with pytest.raises(SettingsError) as caught:
        of(**fields)
    assert caught.value.option == option
    assert message in str(caught.value)
