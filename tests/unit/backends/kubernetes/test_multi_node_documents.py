"""Documents of jobs with groups or several nodes: objects, and variables of the nodes."""

import pytest

from farcall import Settings
from farcall.backends.base import JobSpec
from farcall.backends.kubernetes.documents import KubernetesJob
from farcall.model.commands import ENV_RUN, Nodes
from farcall.model.errors import SettingsError, TaskTooLargeError
from tests.support import volcano_schema
from tests.support.kubernetes_schemas import RELEASES, check

RUN = "ann-20261123T210000Z-a1b2c3"
BUNDLE = f"s3://some-bucket/team/v1/{RUN}/bundles/0a1b"


def command(*groups, name="train-0a1b", **options):
    return JobSpec(name, 1, {ENV_RUN: RUN}, Settings(backend="kubernetes", **options), groups)


def task(**options):
    settings = Settings(backend="kubernetes", **options)
    return JobSpec("train-0a1b", 1, {"FARCALL_BUNDLE": BUNDLE}, settings)


def shell(text="true", count=1, **more):
    return Nodes(count, "busybox:1", ["sh", "-c", text], **more)


def objects(job, image=""):
    """Return a job's objects, after checking them with the schema of every release."""
    found = KubernetesJob(job, image).objects()
    for document in found:
        if document["apiVersion"].startswith("batch.volcano.sh"):
            assert volcano_schema.faults(document) == []
        else:
            check(document, RELEASES)
    return found


def variables(job):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


# --- one node ---------------------------------------------------------------------------------


def test_single_node_command_retries_like_task():
    (job,) = objects(command(shell("exit 3"), retry_attempts=3, retry_on="failure"))
    assert job["metadata"]["name"] == "train-0a1b"
    assert job["metadata"]["labels"]["farcall/kind"] == "command"
    spec = job["spec"]
    assert (spec["completions"], spec["backoffLimitPerIndex"]) == (1, 2)
    ignored, final = spec["podFailurePolicy"]["rules"]
    assert ignored["action"] == "Ignore"
    # the command's own exit codes mean nothing to farcall
    assert final["onExitCodes"]["values"] == [137]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["args"] == ["sh", "-c", "exit 3"]
    assert "command" not in container
    assert "subdomain" not in spec["template"]["spec"]


def test_group_resources_override_options():
    group = shell(vcpu=2, memory=4, num_gpus=1, shm_size=2, env={"A": "1"})
    (job,) = objects(command(group, vcpu=1, memory=0.5))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {
        "cpu": "2",
        "memory": "4096Mi",
        "nvidia.com/gpu": "1",
    }
    (volume,) = pod["volumes"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "2048Mi"}
    assert variables(job)["A"] == "1"


# --- several nodes of one group ---------------------------------------------------------------


def test_one_group_is_one_indexed_job():
    service, job = objects(command(shell(count=4), retry_attempts=1))
    assert (service["kind"], service["metadata"]["name"]) == ("Service", "farcall-nodes")
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"farcall/gang": "yes"},
    }
    spec, template = job["spec"], job["spec"]["template"]
    assert job["metadata"]["name"] == "train-0a1b"
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    assert template["metadata"]["labels"]["farcall/gang"] == "yes"
    assert template["metadata"]["labels"]["farcall/job"] == "train-0a1b"
    assert template["spec"]["subdomain"] == "farcall-nodes"
    values = variables(job)
    assert values["FARCALL_NODE_COUNT"] == "4"
    assert values["FARCALL_MAIN_ADDRESS"] == "train-0a1b-0.farcall-nodes"
    path = values["FARCALL_NODE_INDEX"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['batch.kubernetes.io/job-completion-index']"


@pytest.mark.parametrize("attempts", [1, 3])
def test_failure_or_main_success_ends_job(attempts):
    _, job = objects(command(shell(count=2), retry_attempts=attempts))
    spec = job["spec"]
    assert spec["backoffLimit"] == 0
    assert "backoffLimitPerIndex" not in spec
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["FailJob", "FailJob"]
    assert spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["operator"] == "NotIn"
    assert spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"] == [0]
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}


def test_multi_node_task_names_its_bundle():
    _, job = objects(task(nodes=2), "registry.example.org/task:1")
    assert job["metadata"]["labels"]["farcall/kind"] == "task"
    assert '"nodes": 2' in job["metadata"]["annotations"]["farcall/options"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.org/task:1"
    values = variables(job)
    assert values["FARCALL_BUNDLE"] == BUNDLE
    assert "FARCALL_INDEX" not in values
    assert values["FARCALL_NODE_COUNT"] == "2"


def test_schedulers_place_all_nodes_together():
    _, job = objects(command(shell(count=3), retry_attempts=1, scheduler="volcano", queue="gpu"))
    key = "scheduling.volcano.sh/group-min-member"
    assert job["metadata"]["annotations"][key] == "3"
    template = job["spec"]["template"]
    assert template["spec"]["schedulerName"] == "volcano"
    assert template["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] == "gpu"
    _, job = objects(command(shell(count=3), scheduler="kueue", queue="team"))
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert "kueue.x-k8s.io/job-min-parallelism" not in job["metadata"]["annotations"]


# --- several groups ---------------------------------------------------------------------------


def test_later_groups_are_separate_jobs():
    groups = (shell("a", 2), shell("b", 1, memory=4), shell("c", 2))
    service, *later, job = objects(command(*groups, memory=1))
    assert service["kind"] == "Service"
    assert [each["metadata"]["name"] for each in later] == [
        "train-0a1b-n2",
        "train-0a1b-n3",
        "train-0a1b-n4",
    ]
    assert job["spec"]["completions"] == 2
    for number, each in enumerate(later, start=2):
        template = each["spec"]["template"]
        assert template["spec"]["hostname"] == f"train-0a1b-{number}"
        assert template["spec"]["subdomain"] == "farcall-nodes"
        assert variables(each)["FARCALL_NODE_INDEX"] == str(number)
        assert variables(each)["FARCALL_NODE_COUNT"] == "5"
        assert variables(each)["FARCALL_MAIN_ADDRESS"] == "train-0a1b-0.farcall-nodes"
        labels = template["metadata"]["labels"]
        assert (labels["farcall/job"], labels["farcall/node"]) == ("train-0a1b", str(number))
        assert each["metadata"]["labels"]["farcall/node"] == str(number)
        assert each["spec"]["backoffLimit"] == 0
    (container,) = later[0]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["memory"] == "4096Mi"


@pytest.mark.parametrize(
    ("groups", "attempts"), [((shell(), shell(count=2)), 1), ((shell(count=3),), 2)]
)
def test_volcano_job_has_groups_and_attempts(groups, attempts):
    options = {"scheduler": "volcano", "queue": "gpu", "priority_class": "high", "ttl": 600}
    (job,) = objects(command(*groups, retry_attempts=attempts, **options))
    spec = job["spec"]
    assert (job["apiVersion"], job["metadata"]["name"]) == (
        "batch.volcano.sh/v1alpha1",
        "train-0a1b",
    )
    assert (spec["minAvailable"], spec["maxRetry"]) == (3, attempts)
    assert (spec["queue"], spec["priorityClassName"]) == ("gpu", "high")
    assert spec["ttlSecondsAfterFinished"] == 600
    assert [each["name"] for each in spec["tasks"]] == ["n0", "n1", "n2"]
    assert [each["replicas"] for each in spec["tasks"]] == [1, 1, 1]
    assert spec["tasks"][0]["policies"] == [{"event": "TaskCompleted", "action": "CompleteJob"}]
    values = variables({"spec": spec["tasks"][2]})
    assert values["FARCALL_NODE_INDEX"] == "2"
    assert values["FARCALL_MAIN_ADDRESS"] == "train-0a1b-n0-0.train-0a1b"
    labels = spec["tasks"][2]["template"]["metadata"]["labels"]
    assert (labels["farcall/job"], labels["farcall/node"]) == ("train-0a1b", "2")


# --- refusals ---------------------------------------------------------------------------------


def test_volcano_name_must_start_with_letter():
    job = command(shell(), shell(), name="3d-0a1b", scheduler="volcano")
    with pytest.raises(SettingsError, match="must begin with a letter"):
        KubernetesJob(job).objects()
    job = command(shell(), shell(), name="3d-0a1b")
    assert KubernetesJob(job).objects()[-1]["metadata"]["name"] == "3d-0a1b"


def test_oversized_command_is_rejected():
    with pytest.raises(TaskTooLargeError, match="Kubernetes accepts at most"):
        KubernetesJob(command(shell("x" * 2_000_000))).objects()
