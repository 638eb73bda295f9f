"""The API server of the local Kubernetes emulator: files, tokens, faults and restarts.

Starts the local AWS emulator with Kubernetes, because tokens and connections are the server's.
"""

from __future__ import annotations

import http.client
import json
import ssl
import stat
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests import emulators
from tests.support.patience import until

JOBS = "/apis/batch/v1/namespaces/default/jobs"
SECRETS = "/api/v1/namespaces/default/secrets"


class Api:
    """Requests with the connection and a token of a kubeconfig file."""

    def __init__(self, kubeconfig, user="farcall-local"):
        self.config = yaml.safe_load(Path(kubeconfig).read_text())
        cluster = self.config["clusters"][0]["cluster"]
        import base64

        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self.context = ssl.create_default_context(cadata=authority)
        self.url = cluster["server"]
        self.token = next(
            each["user"]["token"] for each in self.config["users"] if each["name"] == user
        )

    def ask(self, method, path, body=None, **headers):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", **headers}
        if data is not None:
            headers.setdefault("Content-Type", "application/json")
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self.context, timeout=60) as reply:
                return reply.status, json.load(reply), reply.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error), error.headers


def secret(name):
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}


@pytest.fixture(scope="module")
def aws():
    with emulators.start(kubernetes=True) as running:
        yield running


@pytest.fixture
def api(aws):
    return Api(aws.environment["KUBECONFIG"])


def names(api):
    return {each["metadata"]["name"] for each in api.ask("GET", SECRETS)[1]["items"]}


def test_kubeconfig_is_private_and_temporary():
    with emulators.start(kubernetes=True) as aws:
        file = Path(aws.environment["KUBECONFIG"])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    until(lambda: not file.parent.exists())


def test_secret_has_s3_keys(aws, api):
    import base64

    status, found, _ = api.ask("GET", f"{SECRETS}/{aws.environment['FARCALL_S3_SECRET']}")
    assert status == 200
    key = base64.b64decode(found["data"]["AWS_ACCESS_KEY_ID"]).decode()
    assert key == aws.environment["AWS_ACCESS_KEY_ID"]


def test_lost_response_stores_object(aws, api):
    aws.kubernetes.lose_response()
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError, urllib.error.URLError)):
        api.ask("POST", SECRETS, secret("lost"))
    assert "lost" in names(api)
    assert api.ask("POST", SECRETS, secret("lost"))[0] == 409


def test_throttled_request_returns_429(aws, api):
    before = aws.kubernetes.requests()
    aws.kubernetes.throttle(2, retry_after_s=3)
    for _ in range(2):
        status, body, headers = api.ask("GET", SECRETS)
        assert (status, body["reason"]) == (429, "TooManyRequests")
        assert headers["Retry-After"] == "3"
    assert api.ask("GET", SECRETS)[0] == 200
    after = aws.kubernetes.requests()
    assert after["429"] == before.get("429", 0) + 2
    assert after["list secrets"] == before.get("list secrets", 0) + 1


def test_restart_keeps_objects_but_not_history(aws, api):
    api.ask("POST", SECRETS, secret("kept"))
    version = api.ask("GET", SECRETS)[1]["metadata"]["resourceVersion"]
    aws.kubernetes.restart()
    assert "kept" in names(api)
    path = f"{SECRETS}?watch=true&resourceVersion={version}&timeoutSeconds=60"
    assert api.ask("GET", path)[1]["object"]["code"] == 410


RULES = [
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
]


@pytest.fixture
def restricted(aws, api):
    """Return an API client of the restricted user, which has a role."""
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    version = "rbac.authorization.k8s.io/v1"
    role = {"apiVersion": version, "kind": "Role", "metadata": {"name": "some"}, "rules": RULES}
    api.ask("POST", f"{rbac}/roles", role)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "some"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "restricted"}
    binding = {
        "apiVersion": version,
        "kind": "RoleBinding",
        "metadata": {"name": "some"},
        "roleRef": reference,
        "subjects": [subject],
    }
    api.ask("POST", f"{rbac}/rolebindings", binding)
    yield Api(aws.environment["KUBECONFIG"], "restricted")
    api.ask("DELETE", f"{rbac}/rolebindings/some")
    api.ask("DELETE", f"{rbac}/roles/some")


def test_role_grants_only_its_permissions(restricted, api):
    until(
        lambda: restricted.ask("GET", f"{JOBS}/none")[0] == 404
    )  # when the server has loaded its roles
    status, body, _ = restricted.ask("GET", JOBS)
    assert (status, body["reason"]) == (403, "Forbidden")
    assert body["message"] == (
        'jobs.batch is forbidden: User "restricted" cannot list resource "jobs" in API group '
        '"batch" in the namespace "default"'
    )
    status, body, _ = restricted.ask("GET", f"{SECRETS}/other")
    assert (status, body["details"]["name"]) == (403, "other")
    assert restricted.ask("GET", "/api/v1/namespaces/default/pods/none")[0] == 403
    until(lambda: restricted.ask("GET", "/api/v1/namespaces/default/pods/none/log")[0] == 404)
    assert restricted.ask("GET", "/api/v1/namespaces/kube-system/pods/none/log")[0] == 403
    api.ask("DELETE", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/some")
    assert restricted.ask("GET", f"{JOBS}/none")[0] == 403


def test_restarted_server_denies_until_roles_are_read(aws, restricted):
    """The emulator denies the first request of each verb and resource."""
    aws.kubernetes.restart()
    assert [restricted.ask("GET", f"{JOBS}/none")[0] for _ in range(2)] == [403, 404]


def test_restricted_user_has_no_default_permissions(aws):
    restricted = Api(aws.environment["KUBECONFIG"], "restricted")
    assert restricted.ask("GET", JOBS)[0] == 403
    assert restricted.ask("GET", "/version")[0] == 200
