"""kubectl as a judge: what people type at a cluster, against the embedded Kubernetes.

It is the released command, with its own validation, tables, waits and texts. With ``--kubeconfig``
the same is asked of a real cluster.
"""

from __future__ import annotations

import contextlib
import json
import re

import pytest
import yaml

from tests.local.cluster import JOB_NAME, condition, unique


@pytest.fixture
def following(cluster):
    """Start kubectl for what goes on; it is ended with the test."""
    with contextlib.ExitStack() as stack:

        def start(*arguments):
            process = cluster.start_kubectl(*arguments)
            stack.callback(process.wait)
            stack.callback(process.stdout.close)
            stack.callback(process.stderr.close)
            stack.callback(process.kill)
            return process

        yield start


def test_versions_go_together(cluster):
    shown = json.loads(cluster.kubectl("version", "--output=json").out)
    assert shown["serverVersion"]["gitVersion"].startswith("v1.")
    said = cluster.kubectl("version")
    assert "Server Version: v1." in said.out
    assert "WARNING" not in said.err


def test_get_of_a_job_that_is_done(cluster):
    name = cluster.run(cluster.indexed("true", 3))["metadata"]["name"]
    heading, row = cluster.kubectl("get", "jobs", name).rows
    assert heading == ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"]
    assert row[:3] == [name, "Complete", "3/3"]
    assert all(re.fullmatch(r"(\d+[smhd])+", age) for age in row[3:])
    heading, row = cluster.kubectl("get", "job", name, "-o", "wide").rows
    assert heading[5:] == ["CONTAINERS", "IMAGES", "SELECTOR"]
    assert row[5:7] == ["task", cluster.image]
    assert row[7].startswith("batch.kubernetes.io/controller-uid=")
    assert cluster.kubectl("get", "job", name, "-o", "name").out == f"job.batch/{name}\n"


@pytest.mark.parametrize(
    ("changes", "status"),
    [({"suspend": True}, "Suspended"), ({"parallelism": 0}, "Running")],
)
def test_get_of_a_job_that_is_not(cluster, changes, status):
    name = cluster.create(cluster.indexed("true", 2, **changes))
    cluster.until(lambda: cluster.kubectl("get", "job", name).rows[1][1] == status)
    assert cluster.kubectl("get", "job", name).rows[1][2] == "0/2"


def test_get_of_a_job_that_failed(cluster):
    name = cluster.run(cluster.job("exit 3", backoffLimit=0))["metadata"]["name"]
    assert cluster.kubectl("get", "job", name).rows[1][1:3] == ["Failed", "0/1"]
    selector = f"{JOB_NAME}={name}"
    heading, row = cluster.kubectl("get", "pods", "--selector", selector).rows
    assert heading == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row[1:4] == ["0/1", "Error", "0"]


def test_get_of_pods(cluster, gate):
    name = cluster.create(cluster.indexed(gate[0], 2))
    cluster.running(name, 2)
    selector = f"{JOB_NAME}={name}"
    _, *rows = cluster.until(
        lambda: [
            rows
            for rows in [cluster.kubectl("get", "pods", "-l", selector).rows]
            if [row[1] for row in rows[1:]] == ["1/1", "1/1"]
        ]
    )[0]
    assert [row[2:4] for row in rows] == [["Running", "0"]] * 2
    heading, *rows = cluster.kubectl("get", "pods", "-l", selector, "-o", "wide").rows
    assert heading[5:8] == ["IP", "NODE", "NOMINATED"]
    assert all(row[6] not in ("", "<none>") for row in rows)
    label = "batch.kubernetes.io/job-completion-index"
    _, *rows = cluster.kubectl("get", "pods", "-l", selector, "-L", label).rows
    assert [row[-1] for row in rows] == ["0", "1"]
    [row] = cluster.kubectl("get", "pods", "-l", f"{selector},{label}=1", "--no-headers").rows
    assert row[0].startswith(f"{name}-1-")
    gate[1]()
    cluster.ended(name)
    _, *rows = cluster.kubectl("get", "pods", "-l", selector).rows
    assert [row[1:3] for row in rows] == [["0/1", "Completed"]] * 2


def test_get_of_nothing(cluster):
    nothing = cluster.kubectl("get", "jobs", "--selector", f"a={unique()}")
    assert (nothing.out, nothing.err) == (
        "",
        f"No resources found in {cluster.namespace} namespace.\n",
    )
    missing = cluster.kubectl("get", "job", "no-such", ok=False)
    assert missing.code == 1
    assert missing.err == 'Error from server (NotFound): jobs.batch "no-such" not found\n'


def test_get_of_documents(cluster):
    """What is shown as YAML and JSON is what the API has; what jsonpath finds, too."""
    name = cluster.run(cluster.indexed("true", 1))["metadata"]["name"]
    document = cluster.get("jobs", name)
    assert yaml.safe_load(cluster.kubectl("get", "job", name, "-o", "yaml").out) == {
        **yaml.safe_load(yaml.safe_dump(document)),
    }
    assert json.loads(cluster.kubectl("get", "job", name, "-o", "json").out) == document
    shown = cluster.kubectl("get", "job", name, "-o", "jsonpath={.status.completedIndexes}")
    assert shown.out == "0"
    columns = "custom-columns=N:.metadata.name,S:.status.succeeded"
    assert cluster.kubectl("get", "job", name, "-o", columns).rows == [["N", "S"], [name, "1"]]


def test_several_kinds_together(cluster):
    name = cluster.run(cluster.job("true"))["metadata"]["name"]
    shown = cluster.kubectl("get", "jobs,pods", "-l", f"{JOB_NAME}={name}", "-o", "name").out
    # The Job itself has the label on its template alone.
    assert re.fullmatch(rf"pod/{name}-[a-z0-9]{{5}}\n", shown)
    assert f"job.batch/{name}" in cluster.kubectl("get", "all").out


def test_watching(cluster, following):
    """get -w prints a row for each change, up to the end."""
    document = cluster.job("true", suspend=True)
    name = cluster.create(document)
    cluster.until(lambda: condition(cluster.get("jobs", name), "Suspended"))
    watching = following("get", "job", name, "--watch", "--output-watch-events")
    heading, first = (watching.stdout.readline().split() for _ in range(2))
    assert heading[:3] == ["EVENT", "NAME", "STATUS"]
    assert first[:3] == ["ADDED", name, "Suspended"]
    cluster.kubectl("patch", "job", name, "-p", '{"spec":{"suspend":false}}')
    seen = []
    while "Complete" not in seen:
        row = watching.stdout.readline().split()
        assert row[:2] == ["MODIFIED", name]
        seen.append(row[2])
    assert "Running" in seen
    cluster.kubectl("delete", "job", name)
    while (row := watching.stdout.readline().split())[0] != "DELETED":
        assert row[0] == "MODIFIED"


def test_describe(cluster):
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


def test_logs(cluster):
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
def test_waiting_for_an_end(cluster, gate, following, script, ending):
    name = cluster.create(cluster.job(f"{gate[0]}; {script}", backoffLimit=0))
    waiting = following("wait", f"--for=condition={ending}", f"job/{name}", "--timeout=300s")
    cluster.running(name)
    gate[1]()
    out, err = waiting.communicate()
    assert (waiting.returncode, err) == (0, "")
    assert out == f"job.batch/{name} condition met\n"


def test_waiting_for_what_does_not_come(cluster):
    name = cluster.create(cluster.job("true", suspend=True))
    ended = cluster.kubectl(
        "wait", "--for=condition=complete", f"job/{name}", "--timeout=1s", ok=False
    )
    assert ended.code == 1
    assert f"timed out waiting for the condition on jobs/{name}" in ended.err


def test_waiting_for_a_deletion(cluster, following):
    name = cluster.create(cluster.job("true", suspend=True))
    waiting = following("wait", "--for=delete", f"job/{name}", "--timeout=300s")
    cluster.kubectl("delete", "job", name)
    assert waiting.wait() == 0


def test_deletion(cluster, gate):
    name = cluster.create(cluster.indexed(gate[0], 2))
    cluster.running(name, 2)
    out = cluster.kubectl("delete", "job", name).out
    assert re.fullmatch(rf'job\.batch "{name}" deleted( from \S+ namespace)?\n', out)
    cluster.until(lambda: cluster.pods(name) == [])
    missing = cluster.kubectl("delete", "job", name, ok=False)
    assert "NotFound" in missing.err
    assert cluster.kubectl("delete", "job", name, "--ignore-not-found").out == ""


def test_deletion_by_label_and_without_pods(cluster):
    mine = unique()
    names = []
    for _ in range(2):
        document = cluster.job("true")
        document["metadata"]["labels"] = {"mine": mine}
        names.append(cluster.run(document)["metadata"]["name"])
    cluster.kubectl("delete", "jobs", "-l", f"mine={mine}", "--cascade=orphan")
    for name in names:
        assert cluster.ask("GET", cluster.path("jobs", name)).status == 404
        assert len(cluster.pods(name)) == 1
        cluster.kubectl("delete", "pods", "-l", f"{JOB_NAME}={name}", "--wait=false")


def test_a_pod_is_deleted_at_once_by_force(cluster, gate):
    document = cluster.job(
        f"trap '' TERM; {gate[0]}", backoffLimit=0, pod={"terminationGracePeriodSeconds": 3600}
    )
    name = cluster.create(document)
    [pod] = cluster.running(name)
    cluster.kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0")
    assert condition(cluster.ended(name), "Failed")["reason"] == "BackoffLimitExceeded"


def test_creation_from_a_file(cluster, tmp_path):
    document = cluster.indexed("true", 2)
    name = document["metadata"]["name"]
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document))
    for where in ("client", "server"):
        out = cluster.kubectl("create", "-f", file, f"--dry-run={where}").out
        assert out.startswith(f"job.batch/{name} created (")
        assert cluster.ask("GET", cluster.path("jobs", name)).status == 404
    assert cluster.kubectl("create", "-f", file).out == f"job.batch/{name} created\n"
    again = cluster.kubectl("create", "-f", file, ok=False)
    assert "Error from server (AlreadyExists)" in again.err
    cluster.kubectl("wait", "--for=condition=complete", f"job/{name}", "--timeout=300s")
    cluster.kubectl("delete", "-f", file)


def test_apply(cluster, tmp_path):
    document = cluster.job("true", suspend=True)
    name = document["metadata"]["name"]
    document["metadata"]["labels"] = {"a": "1", "b": "2"}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document))
    assert cluster.kubectl("apply", "-f", file).out == f"job.batch/{name} created\n"
    assert cluster.kubectl("apply", "-f", file).out == f"job.batch/{name} unchanged\n"
    document["metadata"]["labels"] = {"a": "3"}
    file.write_text(yaml.safe_dump(document))
    assert cluster.kubectl("apply", "-f", file).out == f"job.batch/{name} configured\n"
    assert cluster.get("jobs", name)["metadata"]["labels"] == {"a": "3"}
    cluster.kubectl("delete", "job", name)


@pytest.mark.parametrize("verb", ["create", "apply"])
def test_misspelt_fields_are_refused(cluster, verb, tmp_path):
    document = cluster.job("true")
    document["spec"]["paralellism"] = 2
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document))
    refused = cluster.kubectl(verb, "-f", file, "--validate=strict", ok=False)
    assert 'unknown field "spec.paralellism"' in refused.err
    warned = cluster.kubectl(verb, "-f", file, "--validate=warn")
    assert 'Warning: unknown field "spec.paralellism"' in warned.err
    cluster.kubectl("delete", "job", document["metadata"]["name"])


def test_what_is_invalid_is_named(cluster, tmp_path):
    document = cluster.indexed("true", 2)
    document["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(document))
    refused = cluster.kubectl("create", "-f", file, ok=False)
    name = document["metadata"]["name"]
    assert f'The Job "{name}" is invalid: spec.template.spec.restartPolicy: ' in refused.err


def test_a_job_by_words_alone(cluster):
    name = unique()
    cluster.kubectl("create", "job", name, f"--image={cluster.image}", "--", "sh", "-c", "echo hi")
    cluster.kubectl("wait", "--for=condition=complete", f"job/{name}", "--timeout=300s")
    assert cluster.kubectl("logs", f"job/{name}").out == "hi\n"
    cluster.kubectl("delete", "job", name)


def test_changes(cluster):
    name = cluster.create(cluster.job("true", suspend=True))
    out = cluster.kubectl("annotate", "job", name, "example.com/why=because").out
    assert out == f"job.batch/{name} annotated\n"
    cluster.kubectl("label", "job", name, "colour=red")
    metadata = cluster.get("jobs", name)["metadata"]
    assert metadata["annotations"]["example.com/why"] == "because"
    assert metadata["labels"]["colour"] == "red"
    cluster.kubectl("annotate", "job", name, "example.com/why-")
    assert "example.com/why" not in cluster.get("jobs", name)["metadata"].get("annotations", {})
    patch = '{"spec": {"suspend": false}}'
    assert cluster.kubectl("patch", "job", name, "--type=merge", "-p", patch).out == (
        f"job.batch/{name} patched\n"
    )
    again = cluster.kubectl("patch", "job", name, "--type=merge", "-p", patch).out
    assert again == f"job.batch/{name} patched (no change)\n"
    cluster.ended(name)


def test_a_cancel_as_farcall_does_it_is_one_patch(cluster, gate):
    """An annotation and a deadline of 0 s by kubectl: the Job fails, and says why."""
    name = cluster.create(cluster.indexed(gate[0], 2))
    cluster.running(name, 2)
    patch = {
        "metadata": {"annotations": {"farcall/reason": "enough"}},
        "spec": {"activeDeadlineSeconds": 0, "suspend": False},
    }
    cluster.kubectl("patch", "job", name, "--type=merge", "-p", json.dumps(patch))
    cluster.kubectl("wait", "--for=condition=failed", f"job/{name}", "--timeout=300s")
    assert "DeadlineExceeded" in cluster.kubectl("describe", "job", name).out


def test_secrets(cluster):
    name = unique()
    cluster.kubectl("create", "secret", "generic", name, "--from-literal=KEY=value")
    shown = cluster.kubectl("get", "secret", name, "-o", "jsonpath={.data.KEY}").out
    assert shown == "dmFsdWU="
    assert cluster.kubectl("get", "secret", name).rows[1][1:3] == ["Opaque", "1"]
    assert "value" not in cluster.kubectl("describe", "secret", name).out
    cluster.kubectl("delete", "secret", name)


def test_events(cluster):
    name = cluster.run(cluster.job("true"))["metadata"]["name"]
    shown = cluster.until(
        lambda: [
            out
            for out in [cluster.kubectl("events", "--for", f"job/{name}").out]
            if "Completed" in out
        ]
    )[0]
    assert "SuccessfulCreate" in shown
    fields = f"involvedObject.name={name},reason=SuccessfulCreate"
    heading, row = cluster.kubectl("get", "events", "--field-selector", fields).rows
    assert heading == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert row[1:4] == ["Normal", "SuccessfulCreate", f"job/{name}"]


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("create", "jobs.batch"),
        ("get", "pods/log"),
        ("watch", "pods"),
        ("delete", "secrets"),
        ("patch", "jobs"),
    ],
)
def test_what_one_may_do(cluster, verb, resource):
    assert cluster.kubectl("auth", "can-i", verb, resource).out == "yes\n"


def test_who_one_is_and_may_do(cluster):
    assert "Username" in cluster.kubectl("auth", "whoami").out
    listed = cluster.kubectl("auth", "can-i", "--list").out
    assert listed.startswith("Resources")


def test_what_there_is(cluster):
    names = cluster.kubectl("api-resources", "--namespaced", "-o", "name").out.split()
    assert {"jobs.batch", "pods", "secrets", "services", "events", "serviceaccounts"} <= {*names}
    rows = cluster.kubectl("api-resources", "--api-group=batch").rows
    assert ["jobs", "batch/v1", "true", "Job"] in rows
    assert "batch/v1" in cluster.kubectl("api-versions").out.split()


def test_fields_are_explained(cluster):
    out = cluster.kubectl("explain", "job.spec.backoffLimitPerIndex").out
    assert "FIELD: backoffLimitPerIndex <integer>" in out
    out = cluster.kubectl("explain", "pod.spec").out
    assert "activeDeadlineSeconds" in out
    missing = cluster.kubectl("explain", "job.spec.retries", ok=False)
    assert 'field "retries" does not exist' in missing.err


def test_nodes(cluster):
    if cluster.local is None:
        pytest.skip("a namespace's users may not see nodes")
    heading, *rows = cluster.kubectl("get", "nodes").rows
    assert heading == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert rows
    assert all(row[1] == "Ready" for row in rows)


def test_diff(cluster, tmp_path):
    document = cluster.job("true", suspend=True)
    cluster.create(document)
    file = tmp_path / "job.yaml"
    document["spec"]["parallelism"] = 2
    file.write_text(yaml.safe_dump(document))
    shown = cluster.kubectl("diff", "-f", file, ok=False)
    assert shown.code == 1
    assert re.search(r"(?m)^\+ +parallelism: 2", shown.out)
