import json

import pytest

from farcall import Settings
from farcall.backends.base import JobSpec, Runtime
from farcall.backends.kubernetes.documents import ANNOTATION_BYTES, REQUEST_BYTES, KubernetesJob
from farcall.backends.kubernetes.names import OPTIONS_ANNOTATION, TAGS_ANNOTATION
from farcall.model.errors import TaskTooLargeError
from tests.support.kubernetes_schemas import RELEASES, check

BUNDLE = "s3://some-bucket/team/v1/ann-20261123T210000Z-a1b2c3/bundles/0a1b"
RUNTIME = Runtime("https://b.s3.r.amazonaws.com", "b", "r", "p/" + 64 * "0", "x86_64", "3.11")
TASK = "registry.example.org/task:1"


def spec(size=1, *, runtime=None, name="simulate-0a1b", environment=None, **options):
    given = {"FARCALL_BUNDLE": BUNDLE, **(environment or {})}
    settings = Settings(backend="kubernetes", **options)
    return JobSpec(name, size, given, settings, runtime=runtime)


def job(spec, image):
    """Return the only object of a job."""
    (document,) = KubernetesJob(spec, image).objects()
    return document


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


def test_illegal_name_is_kept_in_annotation():
    document = made(name="My_Simulation-0A1B")
    name = document["metadata"]["name"]
    assert name.startswith("my-simulation-0a1b-")
    assert document["metadata"]["annotations"]["farcall/name"] == "My_Simulation-0A1B"
    labels = document["spec"]["template"]["metadata"]["labels"]
    assert name == labels["farcall/job"] == variables(name="My_Simulation-0A1B")["FARCALL_JOB_ID"]


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


# --- limits -----------------------------------------------------------------------------------


def test_oversized_request_is_rejected():
    given = {"FARCALL_RETRY_OF": "x" * REQUEST_BYTES}
    with pytest.raises(TaskTooLargeError, match=f"Kubernetes accepts at most {REQUEST_BYTES}"):
        job(spec(environment=given), TASK)


def test_oversized_annotations_are_rejected():
    options = {"pod_overlay": {"metadata": {"annotations": {"a": "x" * ANNOTATION_BYTES}}}}
    with pytest.raises(TaskTooLargeError, match=f"Kubernetes accepts at most {ANNOTATION_BYTES}"):
        job(spec(**options), TASK)
