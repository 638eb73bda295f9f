"""The official Python client against the local Kubernetes emulator.

Starts the emulator's API and pods, because the client's models and its watch read the responses.
"""

from __future__ import annotations

import pytest
from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import ProtocolError

from tests.local.cluster import JOB_NAME, unique


@pytest.fixture
def model(cluster):
    """Return a function that creates a Job from the client's models."""

    def make(script, **spec):
        resources = client.V1ResourceRequirements(limits={"cpu": "100m", "memory": "32Mi"})
        container = client.V1Container(
            name="task",
            image=cluster.image,
            command=["sh", "-c", script],
            resources=resources,
        )
        pod = client.V1PodSpec(
            containers=[container], restart_policy="Never", termination_grace_period_seconds=1
        )
        return client.V1Job(
            api_version="batch/v1",
            kind="Job",
            metadata=client.V1ObjectMeta(name=unique()),
            spec=client.V1JobSpec(template=client.V1PodTemplateSpec(spec=pod), **spec),
        )

    return make


def _is_over(job):
    return any(
        one.type in ("Complete", "Failed") and one.status == "True"
        for one in job.status.conditions or []
    )


def test_job_runs_from_creation_to_deletion(cluster, model):
    place = cluster.namespace
    version = cluster.jobs.list_namespaced_job(place).metadata.resource_version
    made = cluster.jobs.create_namespaced_job(place, model("echo $JOB_COMPLETION_INDEX",
        completion_mode="Indexed", completions=2, parallelism=2))  # fmt: skip
    name = made.metadata.name
    assert made.spec.backoff_limit == 6
    seen = []
    watching = watch.Watch()
    for event in watching.stream(
        cluster.jobs.list_namespaced_job,
        place,
        field_selector=f"metadata.name={name}",
        resource_version=version,
        timeout_seconds=300,
    ):
        assert isinstance(event["object"], client.V1Job)
        seen.append(event["type"])
        if _is_over(event["object"]):
            watching.stop()
    assert (seen[0], set(seen[1:])) == ("ADDED", {"MODIFIED"})
    job = cluster.jobs.read_namespaced_job(name, place)
    assert (job.status.succeeded, job.status.completed_indexes) == (2, "0,1")
    assert job.status.start_time <= job.status.completion_time
    pods = cluster.core.list_namespaced_pod(place, label_selector=f"{JOB_NAME}={name}").items
    assert [pod.status.phase for pod in pods] == ["Succeeded"] * 2
    for pod in pods:
        number = pod.metadata.annotations["batch.kubernetes.io/job-completion-index"]
        assert cluster.core.read_namespaced_pod_log(pod.metadata.name, place) == f"{number}\n"
        [status] = pod.status.container_statuses
        assert status.state.terminated.exit_code == 0
    cluster.jobs.delete_namespaced_job(name, place, propagation_policy="Background")
    with pytest.raises(ApiException) as caught:
        cluster.jobs.read_namespaced_job(name, place)
    assert (caught.value.status, caught.value.reason) == (404, "Not Found")


def test_interrupted_watch_resumes(cluster, model, hooks):
    """Each change is reported once, although connections break."""
    place = cluster.namespace
    version = cluster.jobs.list_namespaced_job(place).metadata.resource_version
    name = cluster.jobs.create_namespaced_job(place, model("true", suspend=True)).metadata.name
    versions, cuts = [], 0
    watching = watch.Watch()
    while cuts < 5:
        try:
            for event in watching.stream(
                cluster.jobs.list_namespaced_job,
                place,
                field_selector=f"metadata.name={name}",
                resource_version=watching.resource_version or version,
            ):
                versions.append(event["object"].metadata.resource_version)
                hooks.cut_watches()
        except ProtocolError:  # the client does not resume by itself
            cuts += 1
            cluster.patch(name, {"metadata": {"labels": {"number": str(cuts)}}})
    assert len(versions) >= 5
    assert versions == sorted(set(versions), key=int)
    cluster.kubectl("delete", "job", name)
