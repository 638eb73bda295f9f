"""Rejection of jobs that no compute environment could ever place."""

import pytest

from farcall import Settings
from farcall.backends.batch import placement
from farcall.model.errors import SettingsError

UNMANAGED = {"computeEnvironmentName": "own", "type": "UNMANAGED", "unmanagedvCpus": 2}


def environment(most=256, kind="EC2"):
    resources = {"type": kind, "maxvCpus": most}
    return {"computeEnvironmentName": "ce", "type": "MANAGED", "computeResources": resources}


@pytest.mark.parametrize(
    ("where", "options", "words"),
    [
        (environment(), {"vcpu": 500}, "vcpu is 500.*ce has at most 256 vCPUs; raise"),
        (environment(16, "FARGATE"), {"vcpu": 32}, "at most 16 vCPUs"),
        (environment(100), {"vcpu": 60, "nodes": 2}, "100 vCPUs on 2 nodes.*or nodes"),
    ],
)
def test_unplaceable_job_is_rejected_with_remedy(where, options, words):
    settings = Settings(queue="q", **options)
    with pytest.raises(SettingsError, match=words) as caught:
        placement.check([where], settings, settings.nodes)
    assert caught.value.option == "vcpu"
    assert "'q' would wait indefinitely" in str(caught.value)


@pytest.mark.parametrize("where", [UNMANAGED, environment(500), {"computeEnvironmentName": "ce"}])
def test_possibly_placeable_job_is_accepted(where):
    placement.check([environment(1), where], Settings(vcpu=500))


def test_error_covers_every_environment():
    with pytest.raises(SettingsError, match="ce has at most 1 vCPUs; ce has at most 2 vCPUs"):
        placement.check([environment(1), environment(2)], Settings(vcpu=4))
    placement.check([], Settings(vcpu=4000))  # unknown environments


@pytest.mark.parametrize(("memory", "words"), [(4096, "MiB is memory=4)"), (256, "")])
def test_memory_in_mib_is_suspected(memory, words):
    assert words in placement.hint(Settings(memory=memory))
    assert bool(placement.hint(Settings(memory=memory))) == bool(words)
