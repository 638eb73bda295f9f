import pytest

from farcall import (
    BindMount,
    ClaimMount,
    Device,
    EfsMount,
    Nodes,
    Settings,
    SettingsError,
    Ulimit,
)
from farcall.backends.base import JobSpec
from farcall.backends.batch import nodes
from farcall.backends.batch.documents import (
    DEFINITION_BYTES,
    OVERRIDE_CHARACTERS,
    OWN_PREFIX,
    definition,
    job_request,
)
from farcall.model.errors import TaskTooLargeError

ARN = "arn:aws:batch:us-east-1:1:job-definition/farcall-0:1"
FARGATE = {"platformCapabilities": ["FARGATE"]}


ROLES = {"batch_job_role_name": "job", "batch_execution_role_name": "execution"}


def job(*groups, **options):
    return JobSpec("hello-1", 1, {"FARCALL_RUN": "me-1"}, Settings(**{**ROLES, **options}), groups)


def command(**fields):
    return Nodes(**{"count": 1, "image": "alpine:3", "command": ["echo", "hi"], **fields})


def made(job):
    return definition(job, image="", region="us-east-1", job_role="", execution_role="")


def refused(job):
    with pytest.raises(SettingsError) as caught:
        made(job)
        job_request(job, ARN)
    return str(caught.value)


# --- one node ---------------------------------------------------------------------------------


def test_single_node_job_overrides_command():
    one = job(command(env={"A": "1"}), vcpu=1, memory=0.5)
    document, request = made(one).document, job_request(one, ARN)
    assert document["type"] == "container"
    assert document["containerProperties"]["image"] == "alpine:3"
    assert "command" not in document["containerProperties"]
    assert request["containerOverrides"] == {
        "command": ["echo", "hi"],
        "environment": [{"name": "A", "value": "1"}, {"name": "FARCALL_RUN", "value": "me-1"}],
        "resourceRequirements": [
            {"type": "VCPU", "value": "1"},
            {"type": "MEMORY", "value": "512"},
        ],
    }


def test_jobs_of_one_image_share_definition():
    names = {made(job(command(command=["echo", str(n)], env={"N": str(n)}))).name for n in (1, 2)}
    assert len(names) == 1
    assert made(job(command(image="alpine:4"))).name not in names


def test_empty_command_keeps_image_default():
    assert "command" not in job_request(job(command(command=())), ARN)["containerOverrides"]


def test_instance_type_makes_multi_node_job():
    document = made(job(command(), instance_type="p5.48xlarge")).document
    assert document["type"] == "multinode"
    [group] = document["nodeProperties"]["nodeRangeProperties"]
    assert (group["targetNodes"], group["instanceTypes"]) == ("0:0", ["p5.48xlarge"])


def test_command_exit_codes_have_no_rules():
    made = job(command(), retry_attempts=3, retry_on="failure")
    strategy = job_request(made, ARN)["retryStrategy"]
    codes = [rule["onExitCode"] for rule in strategy["evaluateOnExit"] if "onExitCode" in rule]
    assert (strategy["attempts"], codes) == (3, ["137"])  # SIGKILL, which the kernel sends


# --- several nodes ----------------------------------------------------------------------------


def test_groups_become_ordered_node_ranges():
    three = job(command(image="ps", command=["a"]), command(count=8, image="worker", vcpu=4))
    properties = made(three).document["nodeProperties"]
    assert (properties["numNodes"], properties["mainNode"]) == (9, 0)
    ranges = properties["nodeRangeProperties"]
    assert [(r["targetNodes"], r["container"]["image"]) for r in ranges] == [
        ("0:0", "ps"),
        ("1:8", "worker"),
    ]
    overrides = job_request(three, ARN)["nodeOverrides"]["nodePropertyOverrides"]
    assert [each["targetNodes"] for each in overrides] == ["0:0", "1:8"]
    assert overrides[0]["containerOverrides"]["command"] == ["a"]
    needs = overrides[1]["containerOverrides"]["resourceRequirements"]
    assert {"type": "VCPU", "value": "4"} in needs


def test_multi_node_function_runs_everywhere():
    several = JobSpec("f-1", 1, {"FARCALL_BUNDLE": "s3://b/k"}, Settings(nodes=4))
    found = definition(several, image="mine", region="r", job_role="", execution_role="")
    [group] = found.document["nodeProperties"]["nodeRangeProperties"]
    assert (group["targetNodes"], group["container"]["image"]) == ("0:3", "mine")
    [overrides] = job_request(several, ARN)["nodeOverrides"]["nodePropertyOverrides"]
    [variable] = overrides["containerOverrides"]["environment"]
    assert variable == {"name": "FARCALL_BUNDLE", "value": "s3://b/k"}


def test_extra_fields_apply_to_each_node():
    extra = {"containerProperties": {"user": "1000"}, "schedulingPriority": 3}
    document = made(job(command(), command(), job_definition_extra=extra)).document
    ranges = document["nodeProperties"]["nodeRangeProperties"]
    assert [each["container"]["user"] for each in ranges] == ["1000", "1000"]
    assert (document["schedulingPriority"], "containerProperties" in document) == (3, False)


# --- other fields of containers ---------------------------------------------------------------


def test_mounts_devices_and_limits_are_set():
    group = command(
        mounts=[
            BindMount("/data", "/mnt/data", read_only=True),
            EfsMount("fs-0123abcd", "/efs", root="/a"),
            EfsMount("fs-0123abcd", "/own", access_point="fsap-0123abcd"),
        ],
        devices=[Device("/dev/infiniband/uverbs0"), Device("/dev/a", "/dev/b", "r")],
        shm_size=1.5,
        ulimits=[Ulimit("memlock", -1, -1)],
        secrets={"TOKEN": "arn:aws:secretsmanager:r:1:secret:t"},
        privileged=True,
        user="1000",
    )
    container = made(job(group)).document["containerProperties"]
    volumes, points = container["volumes"], container["mountPoints"]
    assert volumes[0]["host"] == {"sourcePath": "/data"}
    assert [each["containerPath"] for each in points] == ["/mnt/data", "/efs", "/own"]
    assert [each["readOnly"] for each in points] == [True, False, False]
    assert [each["sourceVolume"] for each in points] == [each["name"] for each in volumes]
    assert volumes[1]["efsVolumeConfiguration"] == {
        "fileSystemId": "fs-0123abcd",
        "rootDirectory": "/a",
        "transitEncryption": "ENABLED",
    }
    assert volumes[2]["efsVolumeConfiguration"] == {
        "fileSystemId": "fs-0123abcd",
        "transitEncryption": "ENABLED",
        "authorizationConfig": {"accessPointId": "fsap-0123abcd", "iam": "ENABLED"},
    }
    assert container["linuxParameters"] == {
        "devices": [
            {
                "hostPath": "/dev/infiniband/uverbs0",
                "containerPath": "/dev/infiniband/uverbs0",
                "permissions": ["READ", "WRITE", "MKNOD"],
            },
            {"hostPath": "/dev/a", "containerPath": "/dev/b", "permissions": ["READ"]},
        ],
        "sharedMemorySize": 1536,
    }
    assert container["ulimits"] == [{"name": "memlock", "softLimit": -1, "hardLimit": -1}]
    assert container["secrets"][0]["name"] == "TOKEN"
    assert (container["privileged"], container["user"]) == (True, "1000")


# --- commands that are too long for a request -------------------------------------------------


def test_long_command_gets_its_own_definition():
    long = job(command(command=["sh", "-c", "x" * OVERRIDE_CHARACTERS], env={"A": "1"}))
    found = made(long)
    assert found.name.startswith(OWN_PREFIX)
    container = found.document["containerProperties"]
    assert container["command"][2] == "x" * OVERRIDE_CHARACTERS
    assert container["environment"] == [{"name": "A", "value": "1"}]
    overrides = job_request(long, ARN)["containerOverrides"]
    assert "command" not in overrides
    assert overrides["environment"] == [{"name": "FARCALL_RUN", "value": "me-1"}]


def test_one_long_command_moves_all():
    long = job(command(), command(command=["x" * OVERRIDE_CHARACTERS]))
    ranges = made(long).document["nodeProperties"]["nodeRangeProperties"]
    assert [len(each["container"]["command"]) for each in ranges] == [2, 1]
    for each in job_request(long, ARN)["nodeOverrides"]["nodePropertyOverrides"]:
        assert "command" not in each["containerOverrides"]


def test_oversized_definition_is_rejected():
    with pytest.raises(TaskTooLargeError, match=r"definition.*24576.*shorten commands and env"):
        made(job(command(command=["x" * DEFINITION_BYTES])))


def test_oversized_request_is_rejected():
    with pytest.raises(TaskTooLargeError, match=r"SubmitJob request.*30720.*shorten"):
        job_request(job(*[command(command=["x" * 7000])] * 5), ARN)


# --- what Batch would reject ------------------------------------------------------------------

WRONG = {
    "no image": (command(image=" "), {}, "image is ' '"),
    "a text for a command": (command(command="echo hi"), {}, "use a list of strings"),
    "no node": (command(count=0), {}, "count is 0"),
    "too many nodes": (
        command(count=1001),
        {},
        "the job has 1001 nodes, but Batch supports at most 1000",
    ),
    "half a vCPU": (command(vcpu=0.5), {}, "vcpu=0.5 is not supported on EC2"),
    "no memory": (command(memory=0), {}, "memory is 0"),
    "memory in words": (command(memory="much"), {}, "memory is 'much'"),
    "half a GPU": (command(num_gpus=0.5), {}, "num_gpus is 0.5"),
    "a variable of Batch's": (command(env={"AWS_BATCH_X": "1"}), {}, "AWS_BATCH"),
    "a number in a variable": (command(env={"A": 1}), {}, "env['A'] is a int"),
    "a mount at no path": (command(mounts=[BindMount("/a", "b")]), {}, "mounts is 'b'"),
    "a mount of no path": (command(mounts=[BindMount("a", "/b")]), {}, "mounts is 'a'"),
    "a path twice": (
        command(mounts=[BindMount("/a", "/b"), BindMount("/c", "/b")]),
        {},
        "only once",
    ),
    "a claim of Kubernetes": (
        command(mounts=[ClaimMount("data", "/b")]),
        {},
        "mounts is 'data': Batch does not support claims",
    ),
    "no file system": (command(mounts=[EfsMount("efs", "/b")]), {}, "mounts is 'efs'"),
    "no access point": (
        command(mounts=[EfsMount("fs-0123abcd", "/b", access_point="x")]),
        {},
        "mounts is 'x'",
    ),
    "a root with an access point": (
        command(mounts=[EfsMount("fs-0123abcd", "/b", root="/x", access_point="fsap-0123abcd")]),
        {},
        "Remove root",
    ),
    "no device": (command(devices=[Device("dev")]), {}, "absolute paths"),
    "no permission": (command(devices=[Device("/dev/a", permissions="x")]), {}, "r, w and m"),
    "no shared memory": (command(shm_size=0), {}, "shm_size is 0"),
    "limits the wrong way round": (command(ulimits=[Ulimit("nofile", 2, 1)]), {}, "soft limit"),
    "no such limit": (command(ulimits=[Ulimit("files", 1, 1)]), {}, "ulimits is 'files'"),
    "half a limit": (command(ulimits=[Ulimit("nofile", 0.5, 1)]), {}, "two whole numbers"),
    "limits on Fargate": (command(ulimits=[Ulimit("nofile", 1, 1)]), FARGATE, "ulimits is nofile"),
    "a folder of Fargate's": (
        command(mounts=[BindMount("/a", "/b")]),
        FARGATE,
        "mounts is /a, which Fargate does not support",
    ),
    "a device of Fargate's": (command(devices=[Device("/dev/a")]), FARGATE, "devices is /dev/a"),
    "root on Fargate": (command(privileged=True), FARGATE, "privileged is True"),
    "nodes on Fargate": (command(count=2), FARGATE, "2 nodes, which Fargate does not support"),
}


@pytest.mark.parametrize("case", WRONG)
def test_illegal_group_is_rejected_by_name(case):
    group, extra, text = WRONG[case]
    assert text in refused(job(group, job_definition_extra=extra))


@pytest.mark.parametrize(
    ("group", "role", "member", "text"),
    [
        (
            command(mounts=[EfsMount("fs-0123abcd", "/b", access_point="fsap-0123abcd")]),
            "batch_job_role_name",
            "jobRoleArn",
            "mounts has 'fsap-0123abcd'",
        ),
        (
            command(secrets={"TOKEN": "arn:aws:ssm:r:1:parameter/t"}),
            "batch_execution_role_name",
            "executionRoleArn",
            "secrets has 'TOKEN'",
        ),
    ],
    ids=["access point", "secret"],
)
def test_missing_role_is_rejected(group, role, member, text):
    without = {role: ""}
    assert f"{text}, which requires a role on Batch. Set {role}" in refused(job(group, **without))
    extra = {"containerProperties": {member: "arn:aws:iam::123456789012:role/r"}}
    assert made(job(group, job_definition_extra=extra, **without))
    assert made(job(group))


def test_error_names_the_node_group():
    assert refused(job(command(), command(vcpu=0.5))).startswith("groups[1]: vcpu=0.5")
    named = refused(job(command(), command(vcpu=0.5, name="role trainer")))
    assert named.startswith("role trainer: vcpu=0.5")


def test_too_many_groups_are_rejected():
    assert made(job(*[command()] * nodes.MOST_GROUPS))
    assert "the job has 6 groups of nodes, but Batch supports at most 5" in refused(
        job(*[command()] * 6)
    )
