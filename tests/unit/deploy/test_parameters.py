"""Parameters of the stack: requested, current and conflicting ones."""

import pytest

from farcall import FarcallError
from farcall.deploy import parameters
from farcall.deploy.parameters import merged, requested


def test_first_stack_has_ec2_queue():
    found = merged({}, {}, "farcall")
    assert ["ec2"] == parameters.compute(found)
    assert ("256", "x86_64", "", "0", "farcall/") == tuple(
        found[name]
        for name in ("MaxVcpus", "Architecture", "InstanceTypes", "WarmMinutes", "KeyPrefix")
    )


def test_unrequested_parameters_are_kept():
    first = merged(requested(compute=("spot", "ec2"), max_vcpus=16, warm_s=1800), {}, "")
    again = merged(requested(max_vcpus=32), {**first, "VpcId": "vpc-1"}, "")
    assert again == {**first, "MaxVcpus": "32"}
    assert ("30", "") == (again["WarmMinutes"], again["KeyPrefix"])
    assert merged(requested(compute=("fargate",), warm_s=0), first, "")["Spot"] == "false"


def test_unsuitable_instance_types_are_dropped():
    first = merged(requested(instance_types=("m7i", "c7i.large")), {}, "farcall")
    assert first["InstanceTypes"] == "m7i,c7i.large"
    assert merged(requested(arm64=True), first, "farcall")["InstanceTypes"] == ""
    assert merged(requested(arm64=False), first, "farcall")["InstanceTypes"] == "m7i,c7i.large"
    both = merged(requested(arm64=True, instance_types=("c7g",)), first, "farcall")
    assert ("arm64", "c7g") == (both["Architecture"], both["InstanceTypes"])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"instance_types": ("M7I large",)}, "--instance-types has 'M7I large'"),
        ({"warm_s": 600}, "whole minutes from 20m to 1w"),
        ({"warm_s": 1801}, "whole minutes from 20m to 1w"),
        ({"warm_s": 8 * 86400}, "whole minutes from 20m to 1w"),
        ({"permissions_boundary": "mine"}, "use the ARN of a policy"),
        ({"gpu": True, "compute": ("fargate",)}, "Fargate has no GPUs"),
        ({"gpu": True, "arm64": True}, "only for x86_64"),
        ({"arm64": True, "compute": ("fargate-spot",)}, "no ARM on Fargate Spot"),
        ({"warm_s": 1800, "compute": ("fargate",)}, "--warm is 30, but Fargate has no instances"),
        (
            {"instance_types": ("m7i",), "compute": ("fargate",)},
            "--instance-types is m7i, but Fargate has no instances",
        ),
    ],
)
def test_invalid_parameters_are_rejected(asked, message):
    with pytest.raises(FarcallError) as caught:
        merged(requested(**asked), {}, "farcall")
    assert message in str(caught.value)
