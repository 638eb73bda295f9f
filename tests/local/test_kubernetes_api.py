"""Rules of the Kubernetes API that farcall depends on: writes, selectors, watches, logs.

Each docstring states a rule and its source. Starts the local Kubernetes emulator, because the
rules are those of HTTP requests; with ``--kubeconfig``, a real cluster is used.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.local.cluster import MERGE, condition, unique

# Objects: create, read, reject ------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "DELETE", "PATCH"])
def test_unknown_name_returns_404(cluster, method):
    """A request for an unknown name returns 404 with a Status that contains the name.

    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
    """
    name = unique()
    body = {} if method == "PATCH" else None
    content_type = MERGE if method == "PATCH" else "application/json"
    path = cluster.path("jobs", name)
    answer = cluster.ask(method, path, body, content_type=content_type)
    assert answer.status == 404
    assert answer.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f'jobs.batch "{name}" not found',
        "reason": "NotFound",
        "details": {"name": name, "group": "batch", "kind": "jobs"},
        "code": 404,
    }


def test_unknown_token_returns_401(cluster):
    """A request with an unknown token returns 401 Unauthorized.

    https://kubernetes.io/docs/reference/access-authn-authz/authentication/
    """
    response = cluster.api.rest_client.pool_manager.request(
        "GET",
        cluster.api.configuration.host + cluster.path("jobs"),
        headers={"Authorization": "Bearer unknown"},
        retries=False,
    )
    body = json.loads(response.data)
    assert (response.status, body["reason"], body["code"]) == (401, "Unauthorized", 401)


def _pod(**fields):
    return lambda document: document["spec"]["template"]["spec"].update(fields)


REFUSED = {
    "completions missing": (
        lambda document: document["spec"].pop("completions"),
        "spec.completions",
    ),
    "pods that are restarted": (
        _pod(restartPolicy="Always"),
        "spec.template.spec.restartPolicy",
    ),
    "no name": (
        lambda document: document["metadata"].pop("name"),
        "metadata.name",
    ),
    "a name in capitals": (
        lambda document: document["metadata"].update(name="Job"),
        "metadata.name",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_document_returns_422(cluster, case):
    """A document that breaks a rule is rejected with 422 Invalid and the field's name.

    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/
    """
    change, field = REFUSED[case]
    document = cluster.indexed("true", 2)
    change(document)
    answer = cluster.refused(document)
    assert (answer.status, answer.body["reason"]) == (422, "Invalid"), answer.body
    assert field in answer.fields()
    assert answer.body["details"]["kind"] == "Job"
    assert answer.body["message"].startswith(
        f'Job.batch "{document["metadata"].get("name", "")}" is invalid: '
    )


@pytest.mark.parametrize(("parallelism", "status"), [(1, 403), (2, 201)])
def test_minimum_parallelism_is_below_parallelism(cluster, parallelism, status):
    """Kueue's webhook rejects other Jobs of its queues.

    https://kueue.sigs.k8s.io/docs/tasks/run/jobs/#partial-admission
    """
    document = cluster.job("true", parallelism=parallelism)
    document["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    document["metadata"]["annotations"] = {"kueue.x-k8s.io/job-min-parallelism": "1"}
    answer = cluster.ask("POST", cluster.path("jobs"), document, dryRun="All")
    assert answer.status == status


def test_dry_run_stores_nothing(cluster):
    """dryRun=All returns the same response, with defaults and errors, but stores nothing.

    https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
    """
    document, bad = cluster.job("true"), cluster.job("true", parallelism=-1)
    answer = cluster.ask("POST", cluster.path("jobs"), document, dryRun="All")
    assert answer.status == 201
    assert answer.body["spec"]["backoffLimit"] == 6
    assert cluster.refused(bad, dryRun="All").status == 422
    name = document["metadata"]["name"]
    assert cluster.ask("GET", cluster.path("jobs", name)).status == 404
    assert cluster.create(document) == name
    assert cluster.refused(document, dryRun="All").status == 409
    answer = cluster.ask("DELETE", cluster.path("jobs", name), dryRun="All")
    assert answer.status == 200
    assert cluster.get("jobs", name)["metadata"]["name"] == name


# Changes --------------------------------------------------------------------------------------


def test_merge_patch_sets_and_removes_fields(cluster):
    """A merge patch sets fields, and removes fields that are null in it; it replaces lists.

    https://datatracker.ietf.org/doc/html/rfc7386
    """
    document = cluster.job("true", suspend=True)
    document["metadata"]["annotations"] = {"keep": "1", "drop": "2"}
    name = cluster.create(document)
    job = cluster.patch(name, {"metadata": {"annotations": {"drop": None, "new": "3"}}})
    assert job["metadata"]["annotations"] == {"keep": "1", "new": "3"}
    job = cluster.patch(name, {"spec": {"parallelism": 2}})
    assert job["spec"]["parallelism"] == 2


# Lists and watches -----------------------------------------------------------------------------


@pytest.fixture
def three(cluster):
    """Create three suspended Jobs; return a label value that only they have, and their names."""
    mine = unique()
    names = []
    for colour in ("red", "green", "blue"):
        document = cluster.job("true", suspend=True)
        document["metadata"]["labels"] = {"mine": mine, "colour": colour}
        names.append(cluster.create(document))
    return mine, names


def test_lists_come_in_pages(cluster, three):
    """limit cuts a list, and continue returns the rest at the version of the first page.

    https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks
    """
    mine, names = three
    query = {"labelSelector": f"mine={mine}", "limit": 2}
    first = cluster.ask("GET", cluster.path("jobs"), **query).body
    assert len(first["items"]) == 2
    token = first["metadata"]["continue"]
    rest = cluster.ask("GET", cluster.path("jobs"), **{**query, "continue": token}).body
    assert len(rest["items"]) == 1
    assert not rest["metadata"].get("continue")
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    found = [job["metadata"]["name"] for job in first["items"] + rest["items"]]
    assert found == sorted(names)
    # Only the list has a kind; its items do not.
    assert (first["kind"], first["apiVersion"]) == ("JobList", "batch/v1")
    assert "kind" not in first["items"][0]


def test_watch_continues_from_version(cluster):
    """A watch from a list's version reports each change once, in order: ADDED, MODIFIED, DELETED.

    https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
    """
    document = cluster.job("true", suspend=True)
    name = document["metadata"]["name"]
    path, query = cluster.path("jobs"), {"fieldSelector": f"metadata.name={name}"}
    version = cluster.ask("GET", path, **query).body["metadata"]["resourceVersion"]
    cluster.create(document)
    cluster.until(lambda: condition(cluster.get("jobs", name), "Suspended"))
    cluster.patch(name, {"metadata": {"labels": {"a": "1"}}})
    cluster.ask("DELETE", cluster.path("jobs", name), propagationPolicy="Background")
    seen = []
    for event in cluster.events(path, resourceVersion=version, timeoutSeconds=300, **query):
        seen.append(event)
        if event["type"] == "DELETED":
            break
    kinds = [event["type"] for event in seen]
    assert (kinds[0], kinds[-1]) == ("ADDED", "DELETED")
    assert set(kinds[1:-1]) == {"MODIFIED"}
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in seen]
    assert versions == sorted(set(versions))
    assert seen[0]["object"]["kind"] == "Job"
    # A watch from one of them reports each of the others once.
    again = []
    for event in cluster.events(path, resourceVersion=versions[0], timeoutSeconds=300, **query):
        again.append(event)
        if event["type"] == "DELETED":
            break
    assert again == seen[1:]


def test_label_watch_reports_changed_matches(cluster, three):
    """An object that starts or stops matching a selector is ADDED or DELETED.

    https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
    """
    mine, names = three
    path, query = cluster.path("jobs"), {"labelSelector": f"mine={mine},colour=red"}
    version = cluster.ask("GET", path, **query).body["metadata"]["resourceVersion"]
    cluster.patch(names[1], {"metadata": {"labels": {"colour": "red"}}})
    cluster.patch(names[1], {"metadata": {"labels": {"colour": "green"}}})
    seen = []
    for event in cluster.events(path, resourceVersion=version, timeoutSeconds=300, **query):
        if event["object"]["metadata"]["name"] == names[1]:
            seen.append(event["type"])
        if "DELETED" in seen:
            break
    assert seen[0] == "ADDED"
    assert seen[-1] == "DELETED"


def test_watch_sends_bookmarks(cluster):
    """With allowWatchBookmarks, the server sends the newest version if there are no events.

    https://kubernetes.io/docs/reference/using-api/api-concepts/#watch-bookmarks
    """
    path, query = cluster.path("jobs"), {"fieldSelector": f"metadata.name={unique()}"}
    version = cluster.ask("GET", path, **query).body["metadata"]["resourceVersion"]
    cluster.create(cluster.job("true", suspend=True))
    for event in cluster.events(
        path, resourceVersion=version, allowWatchBookmarks=True, timeoutSeconds=120, **query
    ):
        assert event["type"] == "BOOKMARK"
        assert event["object"]["kind"] == "Job"
        assert int(event["object"]["metadata"]["resourceVersion"]) > int(version)
        break
    else:
        pytest.fail("no bookmark came")


# Logs -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(any_cluster):
    """A pod that has printed five lines to both streams."""
    script = "for n in 1 2 3 4; do echo line $n; done; echo err >&2"
    name = any_cluster.run(any_cluster.job(script))["metadata"]["name"]
    return any_cluster.pods(name)[0]["metadata"]["name"]


def test_log_has_both_streams(cluster, written):
    """A log contains both streams; it can be limited to the last lines or have times.

    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#get-read-log-of-the-specified-pod
    """
    lines = [f"line {number}" for number in range(1, 5)]
    assert [line for line in cluster.log(written).splitlines() if line != "err"] == lines
    assert sorted(cluster.log(written).splitlines()) == ["err", *lines]
    assert len(cluster.log(written, tailLines=2).splitlines()) == 2
    assert cluster.log(written, tailLines=0) == ""
    stamped = cluster.log(written, timestamps=True).splitlines()
    pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}Z (line \d|err)"
    assert all(re.fullmatch(pattern, line) for line in stamped)
    assert cluster.log(written, container="task", sinceSeconds=100_000) == cluster.log(written)
    assert cluster.log(written, sinceTime="2001-01-01T00:00:00Z") == cluster.log(written)
    assert cluster.log(written, sinceTime="2101-01-01T00:00:00Z") == ""


def test_missing_log_returns_400_or_404(cluster, written):
    """The status is 400 for an unknown or waiting container, and 404 for an unknown pod.

    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
    """
    path = cluster.path("pods", written, "log")
    answer = cluster.ask("GET", path, container="none")
    assert (answer.status, answer.body["reason"]) == (400, "BadRequest")
    assert cluster.ask("GET", cluster.path("pods", "none", "log")).status == 404
    source = [{"secretRef": {"name": "farcall-test-none"}}]
    name = cluster.create(cluster.job("true", container={"envFrom": source}))
    [pod] = cluster.until(
        lambda: [one for one in cluster.pods(name) if one["status"].get("containerStatuses")]
    )
    answer = cluster.ask("GET", cluster.path("pods", pod["metadata"]["name"], "log"))
    assert answer.status == 400
    assert 'container "task" in pod' in answer.body["message"]
    assert "is waiting to start: " in answer.body["message"]
