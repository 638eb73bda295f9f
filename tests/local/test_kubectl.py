"""Everyday kubectl commands against the local Kubernetes emulator.

Starts the released kubectl and pods as processes, because kubectl has its own validation and
waits; with ``--kubeconfig``, on a real cluster.
"""

from __future__ import annotations

import contextlib
import json
import re

import pytest
import yaml

from tests.local.cluster import JOB_NAME, unique


@pytest.fixture
def following(cluster):
    """Return a function that starts kubectl; it is killed when the test ends."""
    with contextlib.ExitStack() as stack:

        def start(*arguments):
            process = cluster.start_kubectl(*arguments)
            stack.callback(process.wait)
            stack.callback(process.stdout.close)
            stack.callback(process.stderr.close)
            stack.callback(process.kill)
            return process

        yield start


def test_get_shows_complete_job(cluster):
    name = cluster.run(cluster.indexed("true", 3))["metadata"]["name"]
    heading, row = cluster.kubectl("get", "jobs", name).rows
    columns = dict(zip(heading, row, strict=True))  # a cluster has more than the emulator
    assert (columns["NAME"], columns["STATUS"]) == (name, "Complete")
    assert re.fullmatch(r"\d+[smhd]", columns["AGE"])
    assert cluster.kubectl("get", "job", name, "-o", "name").out == f"job.batch/{name}\n"


def test_get_shows_pods(cluster, gate):
    name = cluster.create(cluster.indexed(gate[0], 2))
    cluster.running(name, 2)
    selector = f"{JOB_NAME}={name}"

    def statuses():
        heading, *rows = cluster.kubectl("get", "pods", "-l", selector).rows
        at = heading.index("STATUS")
        return [(row[0].rpartition("-")[0], row[at]) for row in rows]

    both = [f"{name}-0", f"{name}-1"]
    cluster.until(lambda: statuses() == [(each, "Running") for each in both])
    label = "batch.kubernetes.io/job-completion-index"
    [row] = cluster.kubectl("get", "pods", "-l", f"{selector},{label}=1", "--no-headers").rows
    assert row[0].startswith(f"{name}-1-")
    gate[1]()
    cluster.ended(name)
    assert statuses() == [(each, "Completed") for each in both]


def test_get_reports_missing_objects(cluster):
    nothing = cluster.kubectl("get", "jobs", "--selector", f"a={unique()}")
    assert (nothing.out, nothing.err) == (
        "",
        f"No resources found in {cluster.namespace} namespace.\n",
    )
    missing = cluster.kubectl("get", "job", "no-such", ok=False)
    assert missing.code == 1
    assert missing.err == 'Error from server (NotFound): jobs.batch "no-such" not found\n'


def test_describe_shows_job_and_pod(cluster):
    name = cluster.run(cluster.indexed("exit 3", 2, backoffLimitPerIndex=0))["metadata"]["name"]
    [pod, _] = cluster.pods(name)

    def described():
        out = cluster.kubectl("describe", "job", name).out
        return out if out.count("SuccessfulCreate") == 2 else ""

    out = cluster.until(described)
    for line in (
        rf"Name: +{name}",
        r"Completion Mode: +Indexed",
        r"Parallelism: +2",
        r"Completions: +2",
        r"Pods Statuses: +0 Active \(0 Ready\) / 0 Succeeded / 2 Failed",
        rf" +Image: +{cluster.image}",
        rf".*SuccessfulCreate .*Created pod: {pod['metadata']['name']}",
    ):
        assert re.search(rf"(?m)^{line}", out), (line, out)
    out = cluster.kubectl("describe", "pod", pod["metadata"]["name"]).out
    for line in (
        r"Status: +Failed",
        rf"Controlled By: +Job/{name}",
        r" +State: +Terminated",
        r" +Reason: +Error",
        r" +Exit Code: +3",
        r" +Restart Count: +0",
        r" +cpu: +100m",
    ):
        assert re.search(rf"(?m)^{line}", out), (line, out)


def test_logs_show_container_output(cluster):
    name = cluster.run(cluster.job("echo one; echo two; echo three"))["metadata"]["name"]
    lines = ["one", "two", "three"]
    assert cluster.kubectl("logs", f"job/{name}").out.split() == lines
    [pod] = [found["metadata"]["name"] for found in cluster.pods(name)]
    assert cluster.kubectl("logs", pod).out.split() == lines
    assert cluster.kubectl("logs", pod, "--tail", 2).out.split() == lines[1:]
    assert cluster.kubectl("logs", pod, "--since", "1h").out.split() == lines
    stamped = cluster.kubectl("logs", pod, "--timestamps").rows
    assert [text for _, text in stamped] == lines
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", at) for at, _ in stamped)
    told = cluster.kubectl("logs", "-l", f"{JOB_NAME}={name}", "--prefix").out.splitlines()
    assert told == [f"[pod/{pod}/task] {line}" for line in lines]
    none = cluster.kubectl("logs", "no-such", ok=False)
    assert 'pods "no-such" not found' in none.err


def test_logs_are_followed(cluster, gate, following):
    wait, release = gate
    name = cluster.create(cluster.job(f"echo first; {wait}; echo last"))
    cluster.running(name)
    following_it = following("logs", "--follow", f"job/{name}")
    assert following_it.stdout.readline() == "first\n"
    release()
    assert following_it.stdout.readline() == "last\n"
    assert following_it.stdout.readline() == ""
    assert following_it.wait() == 0


@pytest.mark.parametrize(("script", "ending"), [("true", "complete"), ("exit 3", "failed")])
def test_wait_returns_at_condition(cluster, gate, following, script, ending):
    name = cluster.create(cluster.job(f"{gate[0]}; {script}", backoffLimit=0))
    waiting = following("wait", f"--for=condition={ending}", f"job/{name}", "--timeout=300s")
    cluster.running(name)
    gate[1]()
    out, err = waiting.communicate()
    assert (waiting.returncode, err) == (0, "")
    assert out == f"job.batch/{name} condition met\n"


def test_delete_removes_job_and_pods(cluster, gate):
    name = cluster.create(cluster.indexed(gate[0], 2))
    cluster.running(name, 2)
    out = cluster.kubectl("delete", "job", name).out
    assert re.fullmatch(rf'job\.batch "{name}" deleted( from \S+ namespace)?\n', out)
    cluster.until(lambda: cluster.pods(name) == [])
    missing = cluster.kubectl("delete", "job", name, ok=False)
    assert "NotFound" in missing.err
    assert cluster.kubectl("delete", "job", name, "--ignore-not-found").out == ""


def test_apply_creates_job_once(cluster, tmp_path):
    document = cluster.job("true", suspend=True)
    name = document["metadata"]["name"]
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document))
    assert cluster.kubectl("apply", "-f", file).out == f"job.batch/{name} created\n"
    assert cluster.kubectl("apply", "-f", file).out == f"job.batch/{name} unchanged\n"
    cluster.kubectl("delete", "job", name)


@pytest.mark.parametrize("verb", ["create", "apply"])
def test_misspelled_fields_are_rejected(cluster, verb, tmp_path):
    document = cluster.job("true")
    document["spec"]["paralellism"] = 2
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document))
    refused = cluster.kubectl(verb, "-f", file, "--validate=strict", ok=False)
    assert 'unknown field "spec.paralellism"' in refused.err


def test_job_is_cancelled_with_one_patch(cluster, gate):
    """Like farcall's cancel, the patch sets an annotation and a deadline of 0 s."""
    name = cluster.create(cluster.indexed(gate[0], 2))
    cluster.running(name, 2)
    patch = {
        "metadata": {"annotations": {"farcall/reason": "enough"}},
        "spec": {"activeDeadlineSeconds": 0, "suspend": False},
    }
    cluster.kubectl("patch", "job", name, "--type=merge", "-p", json.dumps(patch))
    cluster.kubectl("wait", "--for=condition=failed", f"job/{name}", "--timeout=300s")
    assert "DeadlineExceeded" in cluster.kubectl("describe", "job", name).out


def test_events_of_job_are_shown(cluster):
    name = cluster.run(cluster.job("true"))["metadata"]["name"]
    shown = cluster.until(
        lambda: [
            out
            for out in [cluster.kubectl("events", "--for", f"job/{name}").out]
            if "Completed" in out
        ]
    )[0]
    assert "SuccessfulCreate" in shown
