import copy
import math

import pytest
from torchx.specs import BindMount, DeviceMount, RetryPolicy, VolumeMount, macros
from torchx.specs.overlays import PUT, set_overlay

import farcall
from farcall import Device, EfsMount, SettingsError
from farcall.backends.base import JobSpec
from farcall.backends.batch import fargate
from farcall.torchx.batch.mapping import name_of
from farcall.torchx.batch.options import BatchOptions
from farcall.torchx.batch.request import of_requests
from tests.unit.torchx.apps import ITYPE, app, role, sized
from tests.unit.torchx.batch.apps import planned


def refused(of, **options):
    with pytest.raises(SettingsError) as caught:
        planned(of, **options)
    return str(caught.value)


# --- roles ------------------------------------------------------------------------------------


def test_each_role_is_a_node_group():
    made = planned(app(role(num_replicas=2), role("ps", entrypoint="ps", args=["--all"])))
    first, second = made.groups
    assert (first.count, first.name, first.command) == (2, "role trainer", ["sh", "-c", "echo hi"])
    assert (second.count, second.name, second.command) == (1, "role ps", ["ps", "--all"])


def test_role_without_entrypoint_keeps_image_default():
    assert (
        planned(app(farcall_role := role(entrypoint="<MISSING>", args=[]))).groups[0].command == []
    )
    assert farcall_role.entrypoint == "<MISSING>"


def test_app_is_not_modified():
    given = app(role(args=["${app_id}"], resource=sized(devices={"vpc.amazonaws.com/efa": 2})))
    before = copy.deepcopy(given)
    planned(given)
    assert given == before


def test_jobs_know_their_role_and_image():
    env = planned(app(role(), role("ps", image="other", env={"A": "1"}))).groups[1].env
    assert env == {
        "A": "1",
        "TORCHX_ROLE_IDX": "1",
        "TORCHX_ROLE_NAME": "ps",
        "TORCHX_IMAGE": "other",
    }


def test_six_roles_are_rejected_by_name():
    text = refused(app(*(role(f"r{n}") for n in range(6))))
    assert "6 roles (r0, r1, r2, r3, r4, r5), but Batch supports at most 5" in text


def test_more_than_1000_nodes_are_rejected():
    assert "1001 in total (role trainer: 1001)" in refused(app(role(num_replicas=1001)))
    assert planned(app(role(num_replicas=1000))).groups[0].count == 1000


# --- resources --------------------------------------------------------------------------------


def test_resources_come_from_the_role():
    [group] = planned(app(role(resource=sized(4, 2, 1000)))).groups
    assert (group.vcpu, group.num_gpus) == (4, 2)
    assert math.ceil(group.memory * 1024) == 1000


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        (sized(mib=0), "role trainer: resource.memMB is 0"),
        (sized(mib=-1), "role trainer: resource.memMB is -1"),
        (sized(gpu=0.5), "role trainer: resource.gpu is 0.5"),
    ],
)
def test_unsupported_resources_are_rejected(resource, message):
    assert message in refused(app(role(resource=resource)))


def test_role_without_resource_is_rejected():
    from torchx.specs import NULL_RESOURCE

    assert "role trainer has no resource" in refused(app(role(resource=NULL_RESOURCE)))


def test_shared_memory_defaults_to_memory():
    assert planned(app()).groups[0].shm_size == 128 / 1024
    assert planned(app(), shm_size=64).groups[0].shm_size == 64 / 1024
    assert planned(app(), shm_size=0).groups[0].shm_size is None
    assert "use 0 to the 128 MiB of memory of role trainer" in refused(app(), shm_size=129)


def test_different_instance_types_are_rejected():
    roles = [
        role(name, resource=sized(capabilities={ITYPE: type_}))
        for name, type_ in [("a", "p5.48xlarge"), ("b", "m5.large")]
    ]
    text = refused(app(*roles))
    assert "role a: p5.48xlarge, role b: m5.large" in text


# --- mounts and devices -----------------------------------------------------------------------


def test_mounts_become_folders_file_systems_devices():
    mounts = [
        BindMount("/src", "/dst", read_only=True),
        VolumeMount("fs-12345678", "/efs"),
        VolumeMount("fs-12345678:/folder", "/folder", read_only=True),
        VolumeMount("fs-12345678::fsap-12345678", "/point"),
        DeviceMount("/dev/fuse", "/dev/fuse2", "rw"),
    ]
    [group] = planned(app(role(mounts=mounts))).groups
    assert group.mounts == [
        farcall.BindMount("/src", "/dst", read_only=True),
        EfsMount("fs-12345678", "/efs"),
        EfsMount("fs-12345678", "/folder", read_only=True, root="/folder"),
        EfsMount("fs-12345678", "/point", access_point="fsap-12345678"),
    ]
    assert group.devices == [Device("/dev/fuse", "/dev/fuse2", "rw")]


def test_adapters_become_devices():
    devices = {"vpc.amazonaws.com/efa": 2, "aws.amazon.com/neurondevice": 1}
    [group] = planned(app(role(resource=sized(devices=devices)))).groups
    paths = [device.source for device in group.devices]
    assert paths == ["/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1", "/dev/neuron0"]


# --- macros -----------------------------------------------------------------------------------


def test_macros_are_replaced():
    args = [macros.app_id, macros.replica_id, macros.rank0_env, f"a{macros.img_root}"]
    command = planned(app(role(args=args))).groups[0].command
    assert command[1:] == ["hello-1", "0", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "a"]


def test_replica_number_is_computed_by_shell():
    """The number counts within its role."""
    args = ["-c", macros.replica_id]
    roles = [role(args=args, num_replicas=2), role("b", args=args, num_replicas=3), role("c")]
    first, second, _ = planned(app(*roles)).groups
    assert first.command[-1] == "$AWS_BATCH_JOB_NODE_INDEX"
    assert second.command[-1] == "$((AWS_BATCH_JOB_NODE_INDEX-2))"


def test_replica_number_variable_needs_one_replica():
    env = {"RANK": macros.replica_id}
    assert planned(app(role(env=env), role("b", num_replicas=2))).groups[0].env["RANK"] == "0"
    text = refused(app(role(env=env, num_replicas=2)))
    assert "role trainer: env['RANK'] is '${replica_id}'" in text


# --- retries ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("retries", "attempts"), [(0, 1), (1, 2), (9, 10), (20, 10)])
def test_attempts_are_retries_plus_one(retries, attempts):
    made = planned(app(role(max_retries=retries)))
    assert made.settings.retry_attempts == attempts
    assert bool(made.warnings) is (retries > 9)


def test_ignored_fields_warn_if_relevant():
    policy = RetryPolicy.REPLICA
    assert not planned(app(role(retry_policy=policy))).warnings
    [warning] = planned(app(role(retry_policy=policy, max_retries=1))).warnings
    assert "retry_policy is REPLICA" in warning
    [warning] = planned(app(role(min_replicas=1, num_replicas=2))).warnings
    assert "min_replicas is 1, but Batch starts either all 2 nodes or none" in warning
    assert not planned(app(role(min_replicas=2, num_replicas=2))).warnings


# --- names and tags ---------------------------------------------------------------------------


def test_tags_have_version_app_and_user():
    tags = planned(app(metadata={"team": "blue"}), user="jane.doe").settings.tags
    assert tags["torchx.pytorch.org/app-name"] == "hello"
    assert tags["torchx.pytorch.org/user"] == "jane.doe"
    assert tags["torchx.pytorch.org/version"]
    assert tags["team"] == "blue"


def test_tags_are_sanitized():
    metadata = {"a#b": "c;d\n", "k" * 200: "v" * 300, "né 1": 5, "document": {"no": "tag"}}
    tags = planned(app(metadata=metadata)).settings.tags
    assert tags["a_b"] == "c_d_"
    assert tags["k" * 128] == "v" * 256
    assert tags["né 1"] == "5"
    assert "document" not in tags


def test_illegal_tags_are_rejected():
    assert "'aws:x'" in refused(app(metadata={"aws:x": "1"}))
    assert "49 tags, more than 45" in refused(app(metadata={f"t{n}": "1" for n in range(46)}))


def test_name_is_sanitized_and_unique():
    options = BatchOptions("q")
    first, second = (name_of(app(name="my app!"), options) for _ in range(2))
    assert first.startswith("my-app-")
    assert first != second
    assert len(name_of(app(name="x" * 300), options)) <= 128
    assert name_of(app(name="_é_"), options).startswith("app-")
    assert name_of(app(name="a"), BatchOptions("q", share_id="blue")).startswith("a-blue-")


# --- options ----------------------------------------------------------------------------------


def test_options_apply_to_every_role():
    [group, other] = planned(
        app(role(), role("ps")),
        ulimits=["nofile:1:2"],
        privileged=True,
        secrets={"TOKEN": "arn:aws:secretsmanager:us-east-1:1:secret:t"},
    ).groups
    assert group.privileged
    assert group.ulimits == other.ulimits
    assert group.ulimits[0].hard == 2
    assert other.secrets == {"TOKEN": "arn:aws:secretsmanager:us-east-1:1:secret:t"}


# --- Fargate ----------------------------------------------------------------------------------


def test_fargate_limit_names_the_role():
    options = {"platform": "fargate", "execution_role_arn": "puller"}
    made = planned(app(role(mounts=[BindMount("/src", "/dst")])), **options)
    job = JobSpec("name", 1, {}, made.settings, made.groups)
    with pytest.raises(SettingsError, match="^role trainer: mounts is /src, which Fargate"):
        fargate.check(job)


def test_fargate_requires_execution_role():
    assert "run option execution_role_arn is None" in refused(app(), platform="fargate")


# --- overlays ---------------------------------------------------------------------------------


def test_overlay_is_merged_into_container():
    one = role(metadata={"aws_batch": {"linuxParameters": {"initProcessEnabled": True}, "a": {}}})
    other = role("ps")
    set_overlay(other, "aws_batch", "ContainerProperties", {PUT("ulimits"): []})
    containers = [{"linuxParameters": {"sharedMemorySize": 1}}, {"ulimits": [{"name": "nofile"}]}]
    nodes = {"nodeRangeProperties": [{"container": each} for each in containers]}
    definition = {"jobDefinitionName": "d", "nodeProperties": nodes}
    found = {
        "RegisterJobDefinition": definition,
        "SubmitJob": {"jobDefinition": "d", "timeout": 1},
    }
    of_requests(planned(app(one, other)), found)
    assert containers == [
        {"linuxParameters": {"sharedMemorySize": 1, "initProcessEnabled": True}, "a": {}},
        {"ulimits": []},
    ]


@pytest.mark.parametrize(
    "overlay",
    [
        {"command": ["sh"]},
        {"image": "other"},
        {"__torchx_overlays__": True, "V1Pod": {"a": "b"}},
        "/no/such/file",
        5,
    ],
)
def test_invalid_overlay_is_rejected_by_role(overlay):
    text = refused(app(role(metadata={"aws_batch": overlay})))
    assert text.startswith('role trainer: metadata["aws_batch"] cannot be used')
