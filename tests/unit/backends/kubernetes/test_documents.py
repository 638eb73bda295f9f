import json

import pytest

from farcall import Settings
from farcall.backends import bootstrap
from farcall.backends.base import JobSpec, Runtime
from farcall.backends.kubernetes import documents
from farcall.backends.kubernetes.documents import ANNOTATION_BYTES, REQUEST_BYTES, escaped, job
from farcall.backends.kubernetes.names import OPTIONS_ANNOTATION, TAGS_ANNOTATION
from farcall.model.errors import SettingsError, TaskTooLargeError
from tests.support.kubernetes_schemas import RELEASES, check

BUNDLE = "s3://some-bucket/team/v1/ann-20261123T210000Z-a1b2c3/bundles/0a1b"
RUNTIME = Runtime("https://b.s3.r.amazonaws.com", "b", "r", "p/" + 64 * "0", "x86_64", "3.11")
TASK = "registry.example.org/task:1"


def spec(size=1, *, runtime=None, name="simulate-0a1b", environment=None, **options):
    given = {"FARCALL_BUNDLE": BUNDLE, **(environment or {})}
    settings = Settings(backend="kubernetes", **options)
    return JobSpec(name, size, given, settings, runtime=runtime)


def made(size=1, **options):
    """Return a Job that the schema of the newest release accepts."""
    document = job(spec(size, **options), TASK)
    check(document)
    return json.loads(json.dumps(document))


def pod(**options):
    return made(**options)["spec"]["template"]["spec"]


def container(**options):
    return pod(**options)["containers"][0]


def variables(**options):
    return {each["name"]: each.get("value") for each in container(**options)["env"]}


LABELS = {
    "app.kubernetes.io/managed-by": "farcall",
    "farcall/kind": "task",
    "farcall/job": "simulate-0a1b",
    "farcall/run": "ann-20261123T210000Z-a1b2c3",
}


def from_annotation(variable, name):
    path = f"metadata.annotations['batch.kubernetes.io/{name}']"
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}


GOLDEN = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {
        "name": "simulate-0a1b",
        "labels": LABELS,
        "annotations": {"farcall/name": "simulate-0a1b"},
    },
    "spec": {
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": 86400,
        "completionMode": "Indexed",
        "completions": 8,
        "parallelism": 8,
        "backoffLimitPerIndex": 2,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                {
                    "action": "FailIndex",
                    "onExitCodes": {"containerName": "task", "operator": "NotIn", "values": [143]},
                },
            ]
        },
        "template": {
            "metadata": {"labels": LABELS},
            "spec": {
                "restartPolicy": "Never",
                "activeDeadlineSeconds": 300,
                "enableServiceLinks": False,
                "automountServiceAccountToken": False,
                "nodeSelector": {"kubernetes.io/arch": "amd64"},
                "containers": [
                    {
                        "image": TASK,
                        "name": "task",
                        "env": [
                            from_annotation("FARCALL_INDEX", "job-completion-index"),
                            from_annotation("FARCALL_FAILED_ATTEMPTS", "job-index-failure-count"),
                            from_annotation(
                                "FARCALL_IGNORED_ATTEMPTS", "job-index-ignored-failure-count"
                            ),
                            {"name": "FARCALL_BUNDLE", "value": BUNDLE},
                            {"name": "FARCALL_JOB_ID", "value": "simulate-0a1b"},
                        ],
                        "resources": {
                            "limits": {"cpu": "2", "memory": "3840Mi"},
                            "requests": {"cpu": "2", "memory": "3840Mi"},
                        },
                    }
                ],
            },
        },
    },
}


def test_map_is_one_indexed_job():
    document = made(8)
    options = json.loads(document["metadata"]["annotations"].pop(OPTIONS_ANNOTATION))
    assert GOLDEN == document
    check(document, RELEASES)
    assert (options["image"], options["vcpu"], options["time_limit"]) == (TASK, 2, 300)


def test_options_set_variables_and_secrets():
    found = container(environment={"A": "$(B)"}, secrets={"PASSWORD": "db/password"})["env"]
    assert {"name": "A", "value": "$$(B)"} in found
    reference = {"secretKeyRef": {"name": "db", "key": "password"}}
    assert {"name": "PASSWORD", "valueFrom": reference} in found


def test_illegal_name_is_kept_in_annotation():
    document = made(name="My_Simulation-0A1B")
    name = document["metadata"]["name"]
    assert name.startswith("my-simulation-0a1b-")
    assert document["metadata"]["annotations"]["farcall/name"] == "My_Simulation-0A1B"
    labels = document["spec"]["template"]["metadata"]["labels"]
    assert name == labels["farcall/job"] == variables(name="My_Simulation-0A1B")["FARCALL_JOB_ID"]


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({"retry_attempts": 1}, None),
        ({"retry_attempts": 2}, [("NotIn", [143])]),
        ({"retry_attempts": 10, "retry_on": "failure"}, [("In", [*range(59, 70), 137])]),
    ],
)
def test_retry_options_set_backoff_and_rules(options, rules):
    found = made(**options)["spec"]
    assert found["backoffLimitPerIndex"] == options["retry_attempts"] - 1
    if rules is None:
        assert "podFailurePolicy" not in found
        return
    first, *others = found["podFailurePolicy"]["rules"]
    assert first["action"] == "Ignore"
    codes = [each["onExitCodes"] for each in others]
    assert [(each["operator"], each["values"]) for each in codes] == rules


@pytest.mark.parametrize(
    ("vcpu", "cpu"),
    [(1, "1"), (0.5, "500m"), (0.07, "70m"), (2.5, "2500m"), (1 / 3, "334m"), (0.0001, "1m")],
)
def test_cpus_are_whole_or_thousandths(vcpu, cpu):
    assert container(vcpu=vcpu)["resources"]["limits"]["cpu"] == cpu


def test_limits_equal_requests():
    found = container(memory="100MB", num_gpus=2)["resources"]
    assert found["limits"] == found["requests"]
    assert found["limits"]["memory"] == "96Mi"
    assert found["limits"]["nvidia.com/gpu"] == "2"


def test_stock_image_runs_bootstrap_unprivileged():
    found = container(runtime=RUNTIME)
    assert [part.replace("$$", "$") for part in found["command"]] == bootstrap.command(RUNTIME)
    assert found["securityContext"]["runAsUser"] == 10001
    assert found["securityContext"]["allowPrivilegeEscalation"] is False
    assert variables(runtime=RUNTIME)["HOME"] == "/tmp"
    options = json.loads(made(runtime=RUNTIME)["metadata"]["annotations"][OPTIONS_ANNOTATION])
    assert (options["image"], options["stock_image_uri"]) == ("", TASK)


def test_variables_are_not_expanded():
    assert escaped("a$(HOME)$$") == "a$$(HOME)$$$$"
    assert documents.unescaped(escaped("a$(HOME)$$b$")) == "a$(HOME)$$b$"
    assert variables(environment={"FARCALL_RETRY_OF": "$(HOME)"})["FARCALL_RETRY_OF"] == "$$(HOME)"


def test_pod_placement_options_are_set():
    found = pod(
        service_account="simulator",
        priority_class="high",
        image_pull_secrets=["registry", "other"],
        node_selector={"zone": "a"},
        instance_type="m7g.large",
        architecture="arm64",
        tolerations=[{"key": "spot", "operator": "Exists"}],
        s3_secret="keys",
    )
    check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": found}, RELEASES)
    assert found["serviceAccountName"] == "simulator"
    assert "automountServiceAccountToken" not in found
    assert found["priorityClassName"] == "high"
    assert found["imagePullSecrets"] == [{"name": "registry"}, {"name": "other"}]
    assert found["nodeSelector"] == {
        "zone": "a",
        "node.kubernetes.io/instance-type": "m7g.large",
        "kubernetes.io/arch": "arm64",
    }
    assert found["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert found["containers"][0]["envFrom"] == [{"secretRef": {"name": "keys"}}]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"node_selector": {"kubernetes.io/arch": "arm64"}},
            ["node_selector", "'arm64'", "architecture requires 'amd64'"],
        ),
        (
            {
                "node_selector": {"node.kubernetes.io/instance-type": "a"},
                "instance_type": "b",
            },
            ["node_selector", "instance_type requires 'b'"],
        ),
        ({"scheduler": "kueue"}, ["queue is empty", "localqueues"]),
        ({"queue": "team"}, ["queue is 'team'", "set scheduler"]),
        ({"shm_size": 8, "memory": 4}, ["shm_size is 8 GiB", "memory is 4 GiB"]),
        (
            {
                "mounts": [
                    {"type": "bind", "src": "/a", "dst": "/c/"},
                    {"type": "bind", "src": "/b", "dst": "/c"},
                ]
            },
            ["mounts has '/c'", "another dst"],
        ),
    ],
)
def test_contradictory_options_are_rejected(options, words):
    with pytest.raises(SettingsError) as caught:
        job(spec(**options), TASK)
    assert caught.value.option in words[0]
    for word in words:
        assert word in str(caught.value)


def test_mounts_and_shared_memory_are_volumes():
    found = pod(
        mounts=[
            {"type": "volume", "src": "data", "dst": "/data", "readonly": True},
            {"type": "bind", "src": "/scratch", "dst": "/tmp/scratch"},
            {"type": "device", "src": "/dev/fuse"},
            {"type": "device", "src": "/dev/null", "dst": "/dev/nothing", "perm": "r"},
        ],
        shm_size="1.5GiB",
    )
    check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": found}, RELEASES)
    volumes = {each.pop("name"): each for each in found["volumes"]}
    assert volumes == {
        "volume-0": {"persistentVolumeClaim": {"claimName": "data"}},
        "volume-1": {"hostPath": {"path": "/scratch"}},
        "volume-2": {"hostPath": {"path": "/dev/fuse"}},
        "volume-3": {"hostPath": {"path": "/dev/null"}},
        "shared-memory": {"emptyDir": {"medium": "Memory", "sizeLimit": "1536Mi"}},
    }
    assert found["containers"][0]["volumeMounts"] == [
        {"name": "volume-0", "mountPath": "/data", "readOnly": True},
        {"name": "volume-1", "mountPath": "/tmp/scratch"},
        {"name": "volume-2", "mountPath": "/dev/fuse"},
        {"name": "volume-3", "mountPath": "/dev/nothing", "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
    ]
    assert found["containers"][0]["securityContext"] == {"privileged": True}


def test_device_in_stock_image_is_privileged():
    found = container(runtime=RUNTIME, mounts=[{"type": "device", "src": "/dev/fuse"}])
    assert found["securityContext"]["privileged"] is True
    assert "allowPrivilegeEscalation" not in found["securityContext"]


def test_tags_may_have_any_key():
    tags = {"torchx.pytorch.org/user": "ann", "cost centre": "7"}
    found = made(tags=tags)["metadata"]["annotations"]
    assert json.loads(found[TAGS_ANNOTATION]) == tags


def test_max_parallel_makes_tasks_cancellable():
    document = made(10, max_parallel=3)
    assert document["spec"]["parallelism"] == 3
    assert variables(size=10, max_parallel=3)["FARCALL_CANCELLABLE"] == "1"
    assert "FARCALL_CANCELLABLE" not in variables(size=3, max_parallel=3)
    assert made(3, max_parallel=10)["spec"]["parallelism"] == 3


def test_kueue_job_is_suspended():
    document = made(10, scheduler="kueue", queue="team-a")
    assert document["spec"]["suspend"] is True
    labels = document["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == labels["farcall/queue"] == "team-a"
    assert document["metadata"]["annotations"]["kueue.x-k8s.io/job-min-parallelism"] == "1"
    assert variables(size=10, scheduler="kueue", queue="q")["FARCALL_CANCELLABLE"] == "1"


@pytest.mark.parametrize(("size", "options"), [(1, {}), (10, {"max_parallel": 1})])
def test_single_pod_has_no_minimum_parallelism(size, options):
    """Kueue's webhook rejects it: ``Invalid value: 1: should be between 0 and 0``."""
    document = made(size, scheduler="kueue", queue="team-a", **options)
    assert document["spec"]["parallelism"] == 1
    assert "kueue.x-k8s.io/job-min-parallelism" not in document["metadata"]["annotations"]


def test_volcano_queue_is_annotated():
    document = made(10, scheduler="volcano", queue="team-a")
    assert document["metadata"]["annotations"]["scheduling.volcano.sh/group-min-member"] == "1"
    template = document["spec"]["template"]
    assert template["metadata"]["annotations"] == {"scheduling.volcano.sh/queue-name": "team-a"}
    assert template["spec"]["schedulerName"] == "volcano"
    assert "suspend" not in document["spec"]


def test_ttl_is_optional():
    assert "ttlSecondsAfterFinished" not in made(ttl=None)["spec"]
    assert made(ttl="1h")["spec"]["ttlSecondsAfterFinished"] == 3600


# --- templates that others use ----------------------------------------------------------------


def test_template_includes_node_group_fields():
    found = documents.template(
        spec(shm_size=1),
        Settings(backend="kubernetes", shm_size=1, vcpu=4),
        {
            "image": "theirs",
            "env": [{"name": "A", "value": "1"}, {"name": "FARCALL_BUNDLE", "value": "theirs"}],
            "volumeMounts": [{"name": "own", "mountPath": "/dev/shm"}],
        },
        volumes=[{"name": "own", "emptyDir": {}}],
        labels={"farcall/node": "3"},
    )
    own = found["spec"]["containers"][0]
    assert own["resources"]["limits"]["cpu"] == "4"
    assert found["spec"]["volumes"] == [{"name": "own", "emptyDir": {}}]
    assert own["volumeMounts"] == [{"name": "own", "mountPath": "/dev/shm"}]
    assert found["metadata"]["labels"]["farcall/node"] == "3"
    assert found["metadata"]["labels"]["farcall/job"] == "simulate-0a1b"
    values = [each.get("value") for each in own["env"] if each["name"] == "FARCALL_BUNDLE"]
    assert values == [BUNDLE]


def test_command_image_has_no_architecture():
    settings = Settings(backend="kubernetes")
    command = JobSpec("c", 1, {"FARCALL_RUN": "ann-1"}, settings, requests={})
    found = documents.template(command, settings, {"image": "theirs"})
    assert "nodeSelector" not in found["spec"]
    assert found["metadata"]["labels"]["farcall/kind"] == "command"
    assert found["metadata"]["labels"]["farcall/run"] == "ann-1"


# --- limits -----------------------------------------------------------------------------------


def test_oversized_request_is_rejected():
    given = {"FARCALL_RETRY_OF": "x" * REQUEST_BYTES}
    with pytest.raises(TaskTooLargeError, match=f"Kubernetes accepts at most {REQUEST_BYTES}"):
        job(spec(environment=given), TASK)


def test_oversized_annotations_are_rejected():
    options = {"pod_overlay": {"metadata": {"annotations": {"a": "x" * ANNOTATION_BYTES}}}}
    with pytest.raises(TaskTooLargeError, match=f"Kubernetes accepts at most {ANNOTATION_BYTES}"):
        job(spec(**options), TASK)
