"""What reaches AWS, judged by what Batch says of job and definition.

The first half is what the scheduler of TorchX's own did, as far as it was right; the second half
what it did wrong, or not at all.
"""

from __future__ import annotations

import copy
import getpass
import json
import time

import boto3
import pytest
import torchx
from torchx.runner import Runner
from torchx.specs import (
    AppDef,
    BindMount,
    DeviceMount,
    Resource,
    RetryPolicy,
    VolumeMount,
    macros,
    resource,
)

from farcall import SettingsError
from farcall.engine.session import session_for
from farcall.torchx.batch.request import plan
from farcall.torchx.request import submit
from tests.support.proxy import Proxy
from tests.torchx.wire import Wire
from tests.unit.torchx.batch.apps import app, planned, role
from torchx_plugins.schedulers.aws_batch import aws_batch

ITYPE = "node.kubernetes.io/instance-type"
MAIN = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"


def sized(cpu=1, gpu=0, mib=128, **more):
    return Resource(cpu=cpu, gpu=gpu, memMB=mib, **more)


@pytest.fixture(scope="module")
def embedded(own_embedded):
    return own_embedded


@pytest.fixture
def wire(aws):
    with Runner("", {"aws_batch": aws_batch}) as runner:
        yield Wire(runner)


@pytest.fixture
def shared_queue(wire):
    """A queue with a scheduling policy."""
    return wire.make_queue(
        f"shared-{time.time_ns()}",
        schedulingPolicyArn="arn:aws:batch:us-east-1:123456789012:scheduling-policy/fair",
    )


# --- as the scheduler of TorchX's own did -----------------------------------------------------


def test_each_role_is_a_range_of_nodes_of_one_job(wire):
    told = wire.told(app(role(num_replicas=2), role("ps"), role("reader", num_replicas=3)))
    nodes = told.job["nodeProperties"]
    assert (nodes["numNodes"], nodes["mainNode"]) == (6, 0)
    assert [each["targetNodes"] for each in told.ranges] == ["0:1", "2:2", "3:5"]


def test_the_command_is_entrypoint_and_arguments(wire):
    told = wire.told(app(role(), role("ps", entrypoint="echo", args=["a b", "$c"])))
    assert told.containers[0]["command"] == ["sh", "-c", "echo hi"]
    assert told.containers[1]["command"] == ["echo", "a b", "$c"]


def test_each_role_has_its_image(wire):
    told = wire.told(app(role(image="one:1"), role("ps", image="two:2")))
    assert [each["image"] for each in told.containers] == ["one:1", "two:2"]


def test_each_role_has_its_variables(wire):
    told = wire.told(app(role(env={"A": "1"}), role("ps", env={"A": "2", "B": ""})))
    assert told.env(0)["A"] == "1"
    assert (told.env(1)["A"], told.env(1)["B"]) == ("2", "")


def test_jobs_know_role_image_and_job(wire):
    told = wire.told(app(role(image="one:1"), role("ps", image="two:2")))
    name = told.app_id.partition(":")[2]
    for index, (label, image) in enumerate([("trainer", "one:1"), ("ps", "two:2")]):
        env = told.env(index)
        assert env["TORCHX_ROLE_IDX"] == str(index)
        assert (env["TORCHX_ROLE_NAME"], env["TORCHX_IMAGE"]) == (label, image)
        assert env["TORCHX_JOB_ID"] == f"aws_batch:///{name}"


def test_resources_are_cpus_memory_and_gpus(wire):
    told = wire.told(app(role(resource=sized(2, 4, 3000)), role("ps")))
    assert told.resources(0) == {"VCPU": "2", "MEMORY": "3000", "GPU": "4"}
    assert told.resources(1) == {"VCPU": "1", "MEMORY": "128"}


def test_a_role_without_cpus_has_one(wire):
    assert wire.told(app(role(resource=sized(cpu=0)))).resources()["VCPU"] == "1"


def test_containers_are_privileged_where_they_are_to_be(wire):
    both = app(role(), role("ps"))
    assert all(each["privileged"] for each in wire.told(both, privileged=True).containers)
    assert not any(each.get("privileged") for each in wire.told(both).containers)


def test_roles_of_iam_are_taken_by_their_arns(wire):
    arns = [
        f"arn:aws:iam::123456789012:role/farcall-local-{name}" for name in ("job", "execution")
    ]
    told = wire.told(app(role(), role("ps")), job_role_arn=arns[0], execution_role_arn=arns[1])
    for container in told.containers:
        assert [container["jobRoleArn"], container["executionRoleArn"]] == arns


def test_limits_of_processes_are_those_of_the_option(wire):
    told = wire.told(app(), ulimits=["nofile:1024:4096", "memlock:-1:-1"])
    assert told.containers[0]["ulimits"] == [
        {"name": "nofile", "softLimit": 1024, "hardLimit": 4096},
        {"name": "memlock", "softLimit": -1, "hardLimit": -1},
    ]


def test_a_share_and_its_priority_are_the_job_s(wire, shared_queue):
    told = wire.told(app(), queue=shared_queue, share_id="blue", priority=7)
    assert (told.job["shareIdentifier"], told.job["schedulingPriority"]) == ("blue", 7)
    assert "-blue-" in told.job["jobName"]
    assert wire.told(app(), queue=shared_queue, share_id="red").job["schedulingPriority"] == 0


def test_without_a_share_there_is_no_priority(wire):
    told = wire.told(app(), priority=7)
    assert not told.job.get("shareIdentifier")
    assert not told.job.get("schedulingPriority")


def test_tags_say_version_app_user_and_what_the_app_says(wire):
    tags = wire.told(app(name="hello", metadata={"team": "blue"})).job["tags"]
    assert tags["torchx.pytorch.org/version"] == torchx.__version__
    assert tags["torchx.pytorch.org/app-name"] == "hello"
    assert tags["torchx.pytorch.org/user"] == getpass.getuser()
    assert tags["team"] == "blue"


def test_the_user_is_the_one_of_the_option(wire):
    assert wire.told(app(), user="jane.doe").job["tags"]["torchx.pytorch.org/user"] == "jane.doe"


def test_shared_memory_is_all_of_the_role_s(wire):
    told = wire.told(app(role(resource=sized(mib=300)), role("ps")))
    sizes = [each["linuxParameters"]["sharedMemorySize"] for each in told.containers]
    assert sizes == [300, 128]


def test_a_bind_mount_is_a_folder_of_the_instance(wire):
    mounts = [BindMount("/src", "/dst", read_only=True), BindMount("/a", "/b")]
    told = wire.told(app(role(mounts=mounts)))
    assert told.mounts() == [
        ({"host": {"sourcePath": "/src"}}, "/dst", True),
        ({"host": {"sourcePath": "/a"}}, "/b", False),
    ]


def test_a_volume_is_a_file_system_of_efs(wire):
    told = wire.told(app(role(mounts=[VolumeMount("fs-12345678", "/efs", read_only=True)])))
    [(source, path, is_read_only)] = told.mounts()
    assert source["efsVolumeConfiguration"]["fileSystemId"] == "fs-12345678"
    assert (path, is_read_only) == ("/efs", True)


def test_a_device_has_its_path_and_permissions(wire):
    mounts = [DeviceMount("/dev/null", "/dev/null2"), DeviceMount("/dev/zero", "/dev/zero", "r")]
    told = wire.told(app(role(mounts=mounts)))
    devices = told.containers[0]["linuxParameters"]["devices"]
    assert devices == [
        {
            "hostPath": "/dev/null",
            "containerPath": "/dev/null2",
            "permissions": ["READ", "WRITE", "MKNOD"],
        },
        {"hostPath": "/dev/zero", "containerPath": "/dev/zero", "permissions": ["READ"]},
    ]


def test_adapters_and_neuron_devices_of_a_resource_are_devices(wire):
    devices = {"vpc.amazonaws.com/efa": 2, "aws.amazon.com/neurondevice": 1}
    told = wire.told(app(role(resource=sized(devices=devices)), role("ps")))
    found = told.containers[0]["linuxParameters"]["devices"]
    assert [each["hostPath"] for each in found] == [
        "/dev/infiniband/uverbs0",
        "/dev/infiniband/uverbs1",
        "/dev/neuron0",
    ]
    assert not told.containers[1]["linuxParameters"].get("devices")


def test_an_instance_type_is_that_of_all_nodes(wire):
    typed = sized(capabilities={ITYPE: "p4d.24xlarge"})
    told = wire.told(app(role(resource=typed), role("ps", resource=typed)))
    assert [each["instanceTypes"] for each in told.ranges] == [["p4d.24xlarge"]] * 2


def test_macros_of_the_command_have_their_values(wire):
    args = ["-c", f"{macros.app_id} {macros.replica_id} {macros.rank0_env} [{macros.img_root}]"]
    told = wire.told(app(role(args=args, num_replicas=2)))
    name = told.app_id.partition(":")[2]
    expected = f"{name} $AWS_BATCH_JOB_NODE_INDEX {MAIN} []"
    assert told.containers[0]["command"][2] == expected


def test_an_app_is_called_by_queue_and_name(wire):
    told = wire.told(app(name="hello"))
    assert told.app_id == f"{wire.queue}:{told.job['jobName']}"
    assert told.job["jobName"].startswith("hello-")


# --- as it did not ----------------------------------------------------------------------------


def test_a_dry_run_asks_for_nothing_and_leaves_the_app_as_it_is(aws, monkeypatch):
    given = app(role(num_replicas=2, args=[macros.app_id]), role("ps"))
    before = copy.deepcopy(given)
    with Proxy(aws.endpoint_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with Runner("", {"aws_batch": aws_batch}) as runner:
            info = runner.dryrun(given, "aws_batch", {"queue": "q"})
        assert proxy.counts.total() == 0
    assert given == before
    assert "nodeRangeProperties" in str(info)


def test_a_dry_run_needs_no_credentials(aws, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with Runner("", {"aws_batch": aws_batch}) as runner:
        request = runner.dryrun(app(), "aws_batch", {"queue": "q"}).request
    assert request.job["jobQueue"] == "q"


def test_equal_apps_share_one_definition(wire):
    first = wire.told(app(role(image="shared:1"), role("ps")))
    before = wire.definitions()
    second = wire.told(app(role(image="shared:1", args=["-c", "echo other"]), role("ps")))
    assert second.job["jobDefinition"] == first.job["jobDefinition"]
    assert wire.definitions() == before
    assert second.job["jobName"] != first.job["jobName"]


def test_one_replica_of_one_role_is_a_plain_job(wire):
    told = wire.told(app(role(args=["-c", macros.replica_id])))
    assert told.definition["type"] == "container"
    assert told.containers[0]["command"] == ["sh", "-c", "0"]


def test_an_instance_type_makes_it_one_of_nodes(wire):
    told = wire.told(app(role(resource=sized(capabilities={ITYPE: "m5.large"}))))
    assert told.definition["type"] == "multinode"
    assert told.ranges[0]["instanceTypes"] == ["m5.large"]


def test_a_named_resource_is_taken_with_all_it_has(wire):
    told = wire.told(app(role(resource=resource(h="aws_p4d.24xlarge"), num_replicas=2)))
    assert told.ranges[0]["instanceTypes"] == ["p4d.24xlarge"]
    assert told.resources()["GPU"] == "8"
    assert len(told.containers[0]["linuxParameters"]["devices"]) == 4


@pytest.mark.parametrize(("retries", "attempts"), [(0, 1), (1, 2), (3, 4), (12, 10)])
def test_attempts_are_one_more_than_retries(wire, retries, attempts):
    told = wire.told(app(role(max_retries=retries, args=["-c", "exit 0"])))
    assert told.job["retryStrategy"]["attempts"] == attempts


def test_of_several_roles_the_most_retries_count(wire, caplog):
    told = wire.told(app(role(max_retries=2), role("ps", retry_policy=RetryPolicy.ROLE)))
    assert told.job["retryStrategy"]["attempts"] == 3
    assert "role ps: max_retries is 0, and 2 hold for all roles" in caplog.text
    assert "role ps: retry_policy is ROLE" in caplog.text


def test_only_what_is_lost_is_tried_again_where_that_is_asked_for(wire):
    told = wire.told(app(role(max_retries=1)), retry_on="infrastructure")
    rules = told.job["retryStrategy"]["evaluateOnExit"]
    assert (rules[-1]["onReason"], rules[-1]["action"].upper()) == ("*", "EXIT")


def test_names_that_batch_refuses_are_cleaned(wire):
    assert wire.told(app(name="my app! (2)")).job["jobName"].startswith("my-app-2-")
    assert len(wire.told(app(name="x" * 300)).job["jobName"]) <= 128


def test_tags_that_batch_refuses_are_cleaned(wire):
    metadata = {"a#b": "c;d", "k" * 200: "v" * 300}
    tags = wire.told(app(name="my app!", metadata=metadata)).job["tags"]
    assert tags["a_b"] == "c_d"
    assert tags["k" * 128] == "v" * 256
    assert tags["torchx.pytorch.org/app-name"] == "my app_"


def test_roles_of_iam_are_taken_by_their_names(wire):
    told = wire.told(app(), job_role_arn="farcall-local-job")
    arn = told.containers[0]["jobRoleArn"]
    assert arn.startswith("arn:aws:iam::")
    assert arn.endswith(":role/farcall-local-job")
    assert "ACCOUNT" not in arn


def test_a_queue_is_taken_by_its_arn(wire):
    [queue] = wire.batch.describe_job_queues(jobQueues=[wire.queue])["jobQueues"]
    told = wire.told(app(), queue=queue["jobQueueArn"])
    assert told.app_id.startswith(f"{wire.queue}:")
    assert told.job["jobQueue"] == queue["jobQueueArn"]


def test_the_log_group_is_the_one_asked_for(wire):
    name = f"mine-{time.time_ns()}"
    boto3.client("logs").create_log_group(logGroupName=name)
    log = wire.told(app(), log_group=name).containers[0]["logConfiguration"]
    assert (log["logDriver"], log["options"]["awslogs-group"]) == ("awslogs", name)


def test_without_one_it_is_batch_s_own(wire, monkeypatch):
    monkeypatch.delenv("FARCALL_BATCH_JOB_LOG_GROUP_NAME")
    options = wire.told(app()).containers[0].get("logConfiguration", {}).get("options", {})
    assert not options.get("awslogs-group")


def test_a_limit_of_time_is_there_where_it_is_asked_for(wire):
    assert wire.told(app(), timeout_s=90).job["timeout"] == {"attemptDurationSeconds": 90}
    assert not wire.told(app()).job.get("timeout")


def test_secrets_are_in_every_container(wire):
    arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:token"
    told = wire.told(
        app(role(), role("ps")),
        secrets={"TOKEN": arn},
        execution_role_arn="farcall-local-execution",
    )
    assert [each["secrets"] for each in told.containers] == [
        [{"name": "TOKEN", "valueFrom": arn}]
    ] * 2


def test_tags_reach_the_tasks_unless_they_are_not_to(wire):
    assert wire.told(app()).job["propagateTags"] is True
    assert not wire.told(app(), propagate_tags=False).job.get("propagateTags")


def test_fargate_takes_a_fraction_of_a_cpu(wire):
    told = wire.told(
        app(role(resource=sized(0.5, 0, 1024))),
        platform="fargate",
        execution_role_arn="farcall-local-execution",
    )
    assert told.definition["platformCapabilities"] == ["FARGATE"]
    assert told.resources() == {"VCPU": "0.5", "MEMORY": "1024"}


def test_shared_memory_can_be_less(wire):
    told = wire.told(app(), shm_size=64)
    assert told.containers[0]["linuxParameters"]["sharedMemorySize"] == 64


def test_efs_travels_encrypted_and_may_be_a_folder_or_an_access_point(wire):
    mounts = [
        VolumeMount("fs-12345678:/folder", "/a"),
        VolumeMount("fs-12345678::fsap-12345678", "/b"),
    ]
    told = wire.told(app(role(mounts=mounts)), job_role_arn="farcall-local-job")
    folder, point = (source["efsVolumeConfiguration"] for source, _, _ in told.mounts())
    assert (folder["rootDirectory"], folder["transitEncryption"]) == ("/folder", "ENABLED")
    assert point["authorizationConfig"]["accessPointId"] == "fsap-12345678"


def test_a_role_s_number_counts_in_the_role(wire):
    args = ["-c", macros.replica_id]
    told = wire.told(app(role(num_replicas=2), role("ps", args=args, num_replicas=2)))
    assert told.containers[1]["command"][2] == "$((AWS_BATCH_JOB_NODE_INDEX-2))"


def test_an_overlay_reaches_the_containers_of_its_role(wire):
    metadata = {"aws_batch": {"linuxParameters": {"initProcessEnabled": True}}}
    told = wire.told(app(role(metadata=metadata), role("ps")))
    assert told.containers[0]["linuxParameters"]["initProcessEnabled"] is True
    assert "initProcessEnabled" not in told.containers[1]["linuxParameters"]


def test_more_of_the_definition_reaches_it(wire):
    extra = json.dumps({"containerProperties": {"readonlyRootFilesystem": True}})
    told = wire.told(app(role(), role("ps")), job_definition_extra=extra)
    assert all(each["readonlyRootFilesystem"] for each in told.containers)


def test_a_command_too_long_for_a_request_is_in_a_definition(wire):
    long = "x" * 10_000
    told = wire.told(app(role(args=["-c", ": " + long])))
    assert told.containers[0]["command"][2] == ": " + long
    assert told.env()["TORCHX_ROLE_NAME"] == "trainer"


# --- what was edited --------------------------------------------------------------------------


def test_what_is_edited_in_the_request_reaches_aws(wire):
    info = wire.dryrun(app(role(), role("ps")))
    request = info.request
    request.name = f"renamed-{time.time_ns()}"
    ranges = request.definition["nodeProperties"]["nodeRangeProperties"]
    ranges[1]["container"]["image"] = "edited:1"
    overrides = request.job["nodeOverrides"]["nodePropertyOverrides"]
    overrides[0]["containerOverrides"]["command"] = ["echo", "edited"]
    overrides[0]["containerOverrides"]["environment"].append({"name": "NEW", "value": "1"})
    request.job["tags"]["more"] = "edited"
    request.job["timeout"] = {"attemptDurationSeconds": 77}
    told = wire.scheduled(info)
    assert told.app_id == f"{wire.queue}:{request.name}"
    assert [each["image"] for each in told.containers] == ["alpine:3", "edited:1"]
    assert told.containers[0]["command"] == ["echo", "edited"]
    assert told.env(0)["NEW"] == "1"
    assert told.job["tags"]["more"] == "edited"
    assert told.job["timeout"] == {"attemptDurationSeconds": 77}


def test_a_field_taken_out_of_the_request_is_not_sent(wire):
    info = wire.dryrun(app())
    del info.request.job["tags"]
    del info.request.definition["containerProperties"]["linuxParameters"]
    told = wire.scheduled(info)
    assert not told.job.get("tags")
    assert not told.containers[0].get("linuxParameters")


def test_another_queue_can_be_chosen_in_the_request(wire):
    other = wire.make_queue(f"other-{time.time_ns()}")
    info = wire.dryrun(app())
    info.request.queue = other
    told = wire.scheduled(info)
    assert told.app_id.startswith(f"{other}:")


def test_what_is_submitted_is_a_command_job_of_this_user(wire):
    told = wire.told(app(role(), role("ps")))
    for index in (0, 1):
        assert told.env(index)["FARCALL_RUN"]
        assert told.env(index)["FARCALL_WORKFLOW"] == "hello"


async def test_each_app_of_a_session_has_its_own_definition(wire):
    requests = [
        await plan(planned(app(role(image=image)), queue=wire.queue)) for image in ("a:1", "b:1")
    ]
    for number, request in enumerate(requests):
        request.name = f"hello-{number}-{time.time_ns()}"
    session = await session_for(requests[0].settings())
    for request in requests:
        await submit(session, request)
    told = [wire.of(f"aws_batch:///{request.app_id}") for request in requests]
    assert [each.containers[0]["image"] for each in told] == ["a:1", "b:1"]


# --- what is refused, before anything is submitted --------------------------------------------


@pytest.mark.parametrize(
    ("refused", "options", "said"),
    [
        (app(role(resource=sized(mib=0))), {}, "role trainer: resource.memMB is 0"),
        (app(role(resource=sized(cpu=0.5))), {}, "role trainer: resource.cpu is 0.5"),
        (AppDef("a", [role(f"r{n}") for n in range(6)]), {}, "6 roles"),
        (app(role(num_replicas=1001)), {}, "1001 in all (role trainer: 1001)"),
        (
            app(
                role(resource=sized(capabilities={ITYPE: "m5.large"})),
                role("ps", resource=sized(capabilities={ITYPE: "p5.48xlarge"})),
            ),
            {},
            "role trainer: m5.large, role ps: p5.48xlarge",
        ),
        (
            app(role(mounts=[BindMount("/a", "/b")])),
            {"platform": "fargate", "execution_role_arn": "farcall-local-execution"},
            "role trainer: mounts is '/a'",
        ),
        (app(role(env={"AWS_BATCH_X": "1"})), {}, "role trainer: env is 'AWS_BATCH_X'"),
        (app(metadata={"aws:x": "1"}), {}, "metadata of the app has 'aws:x'"),
        (app(), {"queue": "not there"}, "run option queue is 'not there'"),
        (app(), {"queue": "missing"}, "queue is 'missing', and there is no such queue"),
        (app(), {"job_role_arn": "missing"}, "job_role_arn is 'missing', and there is no such"),
        (app(), {"log_group": "missing"}, "log_group is 'missing', and there is no such"),
        (app(), {"secrets": {"A": "arn:aws:ssm:x"}}, "set execution_role_arn"),
        (app(), {"ulimits": ["nofile"]}, "run option ulimits is 'nofile'"),
        (app(), {"timeout_s": 5}, "run option timeout_s is 5"),
    ],
)
def test_one_sentence_says_what_batch_would_refuse(wire, monkeypatch, refused, options, said):
    monkeypatch.delenv("FARCALL_BATCH_EXECUTION_ROLE_NAME")
    before = wire.jobs()
    with pytest.raises(SettingsError) as caught:
        wire.told(refused, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert wire.jobs() == before


# --- exactly once -----------------------------------------------------------------------------


@pytest.mark.timing(listed_within_s=0.0)
@pytest.mark.parametrize("fault", ["lost", "reset", "throttled", "error"])
def test_one_job_runs_whatever_becomes_of_the_request(aws, wire, monkeypatch, fault):
    with Proxy(aws.endpoint_url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        proxy.faults["batch submitjob"] += [fault]
        with Runner("", {"aws_batch": aws_batch}) as runner:
            handle = runner.run(app(), "aws_batch", {"queue": wire.queue})
        assert proxy.injected[f"batch submitjob {fault}"] == 1
    assert len(wire.named(handle.rpartition("/")[2])) == 1
