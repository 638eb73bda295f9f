"""Rejection of jobs that no compute environment could ever place."""

import pytest

from farcall import Settings
from farcall.backends.batch import placement
from farcall.model.errors import SettingsError

UNMANAGED = {"computeEnvironmentName": "own", "type": "UNMANAGED", "unmanagedvCpus": 2}


def environment(*types, most=256, kind="EC2"):
    resources = {"type": kind, "maxvCpus": most, "instanceTypes": list(types)}
    return {"computeEnvironmentName": "ce", "type": "MANAGED", "computeResources": resources}


@pytest.mark.parametrize(
    ("where", "options", "words"),
    [
        (environment("optimal"), {"vcpu": 500}, "vcpu is 500.*ce has at most 256 vCPUs; raise"),
        (environment("optimal", most=9999), {"vcpu": 500}, "instances with at most 384 vCPUs"),
        (environment("m5", most=9999), {"vcpu": 200}, "at most 100 vCPUs"),
        (environment("c5.large", "m5.2xlarge"), {"vcpu": 16}, "at most 12 vCPUs"),
        (environment("optimal"), {"memory": 4096}, "memory is 4096.*4096 MiB is memory=4"),
        (environment("r6i.4xlarge"), {"memory": 128}, "less than 128 GiB for jobs; reduce memory"),
        (environment("c6g", "m6g"), {"memory": 800}, "less than 768 GiB"),
        (environment("m5", "r5"), {"num_gpus": 1}, "num_gpus is 1.*with no GPUs"),
        (environment("optimal"), {"num_gpus": 1}, "with no GPUs"),
        (environment("g5", "p3.2xlarge"), {"num_gpus": 9}, "at most 8 GPUs"),
        (environment(kind="FARGATE", most=16), {"vcpu": 32}, "at most 16 vCPUs"),
        (environment("p4d", most=100), {"vcpu": 60, "nodes": 2}, "100 vCPUs on 2 nodes.*or nodes"),
        (environment("m5"), {"instance_type": "c5.large", "memory": 9}, "less than 8 GiB"),
    ],
)
def test_unplaceable_job_is_rejected_with_remedy(where, options, words):
    settings = Settings(queue="q", **options)
    with pytest.raises(SettingsError, match=words) as caught:
        placement.check([where], settings, settings.nodes)
    assert caught.value.option in options
    assert "'q' would wait indefinitely" in str(caught.value)


@pytest.mark.parametrize(
    ("where", "options"),
    [
        (UNMANAGED, {"vcpu": 500, "memory": 9000, "num_gpus": 99}),
        (environment("optimal"), {"vcpu": 256, "memory": 1024}),
        (environment("u-6tb1", "optimal", most=999), {"memory": 4096, "vcpu": 448}),
        (environment("x9zz.metal", "p6e-gb200", "new"), {"vcpu": 256, "num_gpus": 72}),
        (environment("m5", "g5"), {"num_gpus": 8}),
        (environment("c4.8xlarge"), {"vcpu": 36, "memory": 55}),
        (environment("c5n"), {"memory": 190}),
        (environment("m9i"), {"memory": 9000}),
        (environment("r5.metal"), {"memory": 700}),
        (environment("t3.medium"), {"memory": 3.75}),
        (environment(kind="FARGATE_SPOT"), {"memory": 100}),
        ({"computeEnvironmentName": "ce"}, {"vcpu": 500}),
    ],
)
def test_possibly_placeable_job_is_accepted(where, options):
    placement.check([environment(most=1), where], Settings(**options))


def test_error_covers_every_environment():
    with pytest.raises(SettingsError, match="ce has at most 1 vCPUs; ce has instances with no"):
        placement.check(
            [environment("g5", most=1), environment("m5")], Settings(vcpu=4, num_gpus=1)
        )
    placement.check([], Settings(vcpu=4000))  # unknown environments


@pytest.mark.parametrize(
    ("where", "memory", "is_suspected"),
    [
        ([UNMANAGED], 4096, True),
        ([], 512, True),
        ([], 256, False),
        ([environment("r5")], 600, False),
    ],
)
def test_memory_in_mib_is_suspected(where, memory, is_suspected):
    assert ("MiB is memory=" in placement.doubt(where, Settings(memory=memory))) == is_suspected
