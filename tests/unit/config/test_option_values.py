"""Options whose values are tables and lists: reading, defaults and errors."""

import json

import pytest

from farcall import Settings
from farcall.model.errors import SettingsError


def on_kubernetes(**options):
    return Settings(backend="kubernetes", **options)


def refused(**options):
    with pytest.raises(SettingsError) as caught:
        on_kubernetes(**options)
    (option,) = options
    assert caught.value.option == option
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        (
            {"type": "volume", "src": "data", "dst": "/data"},
            {"type": "volume", "src": "data", "dst": "/data", "readonly": False, "perm": ""},
        ),
        (
            {"type": "bind", "src": "/host", "dst": "/there", "readonly": True},
            {"type": "bind", "src": "/host", "dst": "/there", "readonly": True, "perm": ""},
        ),
        (
            {"type": "device", "src": "/dev/fuse"},
            {
                "type": "device",
                "src": "/dev/fuse",
                "dst": "/dev/fuse",
                "readonly": False,
                "perm": "rwm",
            },
        ),
    ],
)
def test_mount_is_completed_with_defaults(given, whole, monkeypatch):
    assert on_kubernetes(mounts=[given]).mounts == [whole]
    assert on_kubernetes(mounts=[given]).replace(vcpu=1).mounts == [whole]
    monkeypatch.setenv("FARCALL_MOUNTS", json.dumps([given]))
    assert on_kubernetes().mounts == [whole]


@pytest.mark.parametrize(
    ("mount", "message"),
    [
        ("data:/data", "mounts.0 is 'data:/data': use a table"),
        (
            {"type": "nfs", "src": "a", "dst": "/a"},
            "type is 'nfs': use 'volume'",
        ),
        ({"type": "volume", "dst": "/a"}, ": add it"),
        ({"type": "volume", "src": "No_Claim", "dst": "/a"}, "not 'No_Claim'"),
        ({"type": "volume", "src": "a"}, "dst of a mount must be an absolute path"),
        (
            {"type": "bind", "src": "relative", "dst": "/a"},
            "src of a mount must be an absolute path",
        ),
        ({"type": "bind", "src": "/a/../b", "dst": "/a"}, "without ..: '/a/../b'"),
        ({"type": "bind", "src": "/a", "dst": "/a:b"}, "must not contain a colon"),
        ({"type": "bind", "src": "/a", "dst": "/a", "readonly": "yes"}, "mounts.0.readonly is"),
        ({"type": "bind", "src": "/a", "dst": "/a", "perm": "r"}, "perm is for devices"),
        ({"type": "device", "src": "/dev/fuse", "perm": "x"}, "letters of rwm"),
        (
            {"type": "bind", "source": "/a", "dst": "/a"},
            "mounts.0.source is '/a': remove it",
        ),
    ],
)
def test_invalid_mount_is_rejected(mount, message):
    assert message in refused(mounts=[mount])


def test_tolerations_follow_kubernetes():
    given = [{"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}]
    assert on_kubernetes(tolerations=given).tolerations == given
    assert "tolerations.0.efect is" in refused(tolerations=[{"key": "gpu", "efect": "NoSchedule"}])
    assert "tolerations.0.tolerationSeconds is '60'" in refused(
        tolerations=[{"tolerationSeconds": "60"}]
    )
    assert "use a list" in refused(tolerations={"key": "gpu"})


@pytest.mark.parametrize("value", ["registry", ["Registry"], [3], ["a" * 254]])
def test_invalid_pull_secrets_are_rejected(value):
    assert refused(image_pull_secrets=value).startswith("image_pull_secrets")


@pytest.mark.parametrize(
    ("given", "seconds"), [("never", None), (None, None), ("2d", 172_800), ("90", 90), (60, 60)]
)
def test_ttl_may_be_unlimited(given, seconds, monkeypatch):
    assert on_kubernetes(ttl=given).ttl == seconds
    if isinstance(given, str):
        monkeypatch.setenv("FARCALL_TTL", given)
        assert on_kubernetes().ttl == seconds


@pytest.mark.parametrize("given", ["ever", 59, True, 2**31])
def test_invalid_ttl_is_rejected(given):
    refused(ttl=given)


def test_shared_memory_accepts_units():
    assert on_kubernetes(shm_size="512MiB").shm_size == 0.5
    assert "0" in refused(shm_size=0)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("namespace", "Research"),
        ("namespace", "a" * 64),
        ("service_account", "a_b"),
        ("queue", "a" * 254),
        ("image", "two words"),
        ("context", "a\x1b[2J"),
        ("scheduler", "slurm"),
        ("max_parallel", 0),
        ("max_parallel", 100_001),
        ("node_selector", {"a": 1}),
    ],
)
def test_wrong_value_of_kubernetes_is_named(option, value):
    assert refused(**{option: value}).startswith((f"{option} is ", f"{option}.a is "))


def test_overlay_is_hidden():
    given = {"spec": {"containers": [{"env": [{"name": "KEY", "value": "secret-1"}]}]}}
    assert "secret-1" not in repr(on_kubernetes(pod_overlay=given))
    assert "secret-1" not in refused(pod_overlay=["secret-1"])
