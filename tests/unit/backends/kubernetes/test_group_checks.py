"""Groups that Kubernetes does not support."""

import pytest

from farcall.backends.kubernetes.documents import KubernetesJob
from farcall.model.commands import BindMount, ClaimMount, Device, EfsMount, Ulimit
from farcall.model.errors import SettingsError
from tests.unit.backends.kubernetes.objects import command_pod
from tests.unit.backends.kubernetes.test_multi_node_documents import command, shell


def test_invalid_group_is_named():
    with pytest.raises(SettingsError, match=r"groups\[1\]: user is 'root'"):
        KubernetesJob(command(shell(), shell(user="root"))).objects()
    with pytest.raises(SettingsError, match="ps: vcpu is -1"):
        KubernetesJob(command(shell(), shell(vcpu=-1, name="ps"))).objects()


def test_too_many_nodes_are_rejected():
    with pytest.raises(SettingsError, match="1001 nodes, but the limit is 1000"):
        KubernetesJob(command(shell(count=1001))).objects()


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
        command_pod(**fields)
    assert caught.value.option == option
    assert message in str(caught.value)
