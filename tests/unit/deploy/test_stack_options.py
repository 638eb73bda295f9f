"""Options of a stack, and their removal from a file."""

from farcall.config.settings import Settings
from farcall.deploy import stack_options
from farcall.deploy.parameters import merged, requested
from farcall.deploy.stack import State

_OUTPUTS = {
    "Bucket": "farcall-bucket-1",
    "LogGroup": "/farcall/farcall",
    "JobRole": "farcall-JobRole-1",
    "ExecutionRole": "farcall-ExecutionRole-1",
    "SpotQueue": "farcall-spot",
    "FargateQueue": "farcall-fargate",
}


def stack(prefix="farcall", **asked):
    wanted = requested(compute=("fargate", "spot"), **asked)
    return State("arn", "CREATE_COMPLETE", parameters=merged(wanted, {}, prefix), outputs=_OUTPUTS)


def given(state, kind, there, *, is_public=True):
    return stack_options.options(state, "eu-west-1", kind=kind, is_public=is_public, there=there)


def test_options_name_stack_resources():
    """They are removed again by the stack's name."""
    found = given(stack(), "spot", {})
    assert found == {
        "region": "eu-west-1",
        "queue": "farcall-spot",
        "s3_bucket_name": "farcall-bucket-1",
        "batch_job_role_name": "farcall-JobRole-1",
        "batch_execution_role_name": "farcall-ExecutionRole-1",
        "batch_job_log_group_name": "/farcall/farcall",
        "packages": "auto",
    }
    assert set(stack_options.of_stack("farcall", "eu-west-1", {**found, "vcpu": 4})) == set(found)
    assert stack_options.of_stack("farcall", "eu-west-2", found) == []
    assert stack_options.of_stack("other", "eu-west-1", {**found, "region": "eu-west-1"}) == []


def test_fargate_options_keep_other_fields():
    mine = {
        "job_definition_extra": {"containerProperties": {"user": "1000"}, "schedulingPriority": 1}
    }
    found = given(stack(arm64=True), "fargate", mine)
    extra = found["job_definition_extra"]
    assert extra["platformCapabilities"] == ["FARGATE"]
    container = extra["containerProperties"]
    assert ("1000", "ENABLED") == (
        container["user"],
        container["networkConfiguration"]["assignPublicIp"],
    )
    assert container["runtimePlatform"]["cpuArchitecture"] == "ARM64"
    assert "arm64" == found["architecture"]
    assert Settings(**found).architecture == "arm64"
    # Switching back to EC2 restores the options.
    back = given(stack(), "spot", {**mine, **found})
    assert (mine["job_definition_extra"], "x86_64") == (
        back["job_definition_extra"],
        back["architecture"],
    )


def test_private_subnets_assign_no_public_ip():
    extra = given(stack(), "fargate", {}, is_public=False)["job_definition_extra"]
    assert "DISABLED" == extra["containerProperties"]["networkConfiguration"]["assignPublicIp"]
    there = {"queue": "farcall-fargate", "job_definition_extra": extra}
    assert "job_definition_extra" in stack_options.of_stack("farcall", "eu-west-1", there)
    there["job_definition_extra"] = {**extra, "schedulingPriority": 1}
    assert "job_definition_extra" not in stack_options.of_stack("farcall", "eu-west-1", there)


def test_own_packages_or_image_are_kept():
    assert "packages" not in given(stack(), "spot", {"packages": ["numpy"]})
    assert "packages" not in given(stack(), "spot", {"image": "mine"})
    there = {"queue": "farcall-spot", "packages": ["numpy"]}
    assert ["queue"] == stack_options.of_stack("farcall", "eu-west-1", there)


def test_different_prefix_is_written():
    assert "prefix" not in given(stack(), "spot", {})
    assert "mine/runs" == given(stack("mine/runs"), "spot", {})["prefix"]
    assert "" == given(stack(""), "spot", {})["prefix"]
    assert "farcall" == given(stack(), "spot", {"prefix": "mine"})["prefix"]


def test_main_queue_follows_request_or_current():
    state = stack()
    assert "fargate" == stack_options.main_kind(state, ("fargate", "spot"), {})
    assert "fargate" == stack_options.main_kind(state, (), {"queue": "farcall-fargate"})
    assert "spot" == stack_options.main_kind(state, (), {"queue": "another"})
