import pytest

from farcall import Settings
from farcall.backends.base import JobSpec
from farcall.backends.kubernetes.names import DIGEST_ANNOTATION, RUN_LABEL
from farcall.backends.kubernetes.resubmission import objects, requests
from farcall.model.commands import ENV_RUN
from farcall.model.errors import SettingsError


def job(name="a", **spec):
    template = {"spec": {"containers": [{"name": "task", "env": [{"name": "A", "value": "1"}]}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


def spec(requests, run="me-1"):
    return JobSpec("a", 1, {ENV_RUN: run}, Settings(), requests=requests)


def test_objects_are_sent_with_run_label():
    given = {"objects": [job()]}
    [found] = objects(spec(given))
    assert found["metadata"]["labels"] == {RUN_LABEL: "me-1"}
    template = found["spec"]["template"]
    assert template["metadata"]["labels"] == {RUN_LABEL: "me-1"}
    assert template["spec"]["containers"][0]["env"] == [
        {"name": "A", "value": "1"},
        {"name": ENV_RUN, "value": "me-1"},
    ]
    assert given == {"objects": [job()]}


def test_volcano_tasks_have_run_label():
    tasks = [{"template": job()["spec"]["template"]}, {"template": {"spec": {}}}]
    document = {**job(), "apiVersion": "batch.volcano.sh/v1alpha1", "spec": {"tasks": tasks}}
    [found] = objects(spec({"objects": [document]}))
    for task in found["spec"]["tasks"]:
        assert task["template"]["metadata"]["labels"] == {RUN_LABEL: "me-1"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no list 'objects'"),
        ({"objects": []}, "no list 'objects'"),
        ({"objects": [5]}, "lacks apiVersion"),
        ({"objects": [{"kind": "Job"}]}, "lacks apiVersion"),
        ({"objects": [{**job(), "kind": "ClusterRole"}]}, "'ClusterRole'.*Use "),
    ],
)
def test_invalid_requests_are_rejected(given, message):
    with pytest.raises(SettingsError, match=message):
        objects(spec(given))


def test_server_fields_are_removed():
    there = job(selector={"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}})
    there["status"] = {"active": 1}
    there["metadata"] |= {
        "uid": "u",
        "resourceVersion": "5",
        "labels": {"mine": "1"},
        "annotations": {DIGEST_ANNOTATION: "d", "kept": "1"},
    }
    there["spec"]["template"]["metadata"] = {"labels": {"job-name": "a", "mine": "1"}}
    [found] = requests([there])["objects"]
    assert found["metadata"] == {
        "name": "a",
        "labels": {"mine": "1"},
        "annotations": {"kept": "1"},
    }
    assert set(found) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(found["spec"]) == {"template"}
    assert found["spec"]["template"]["metadata"]["labels"] == {"mine": "1"}
    assert there["metadata"]["uid"] == "u"
