import asyncio
import contextlib
import dataclasses
import json
import pickle
import sys

import pytest

from farcall.backends.kubernetes.client import MERGE_PATCH
from farcall.backends.kubernetes.error_translation import KubeError
from farcall.model.errors import SettingsError
from farcall.model.pacing import Ticket
from tests.support.patience import until_async
from tests.unit.backends.kubernetes.api_server import cut, give, kubeconfig, opened, refuse, tell

JOBS = "/apis/batch/v1/namespaces/ml/jobs"
DENIAL = (
    'jobs.batch is forbidden: User "alice" cannot create resource "jobs" in API group "batch" in '
    'the namespace "ml"'
)


async def test_path_has_namespace_of_context(kube):
    assert kube.namespace == "ml"
    assert kube.path("jobs", group="batch") == JOBS
    assert kube.path("pods", "a/log") == "/api/v1/namespaces/ml/pods/a/log"


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        (give({"kind": "APIResourceList"}), "v1beta2"),
        (refuse(404, "NotFound", "the server could not find the requested resource"), "v1beta1"),
        (refuse(403, "Forbidden", 'User "alice" cannot get path "/apis"'), "v1beta2"),
    ],
    ids=["new", "old", "denied"],
)
async def test_newest_version_of_kueue_is_used(kube, server, answer, version):
    server.answers = [answer]
    for name in ("", "nightly"):
        path = await kube.kueue_path("localqueues", name)
        assert path.startswith(f"/apis/kueue.x-k8s.io/{version}/namespaces/ml/localqueues")
    assert len(server.requests) == 1


async def test_request_has_token_query_and_body(kube, server):
    server.answers = [give({"kind": "Job"})]
    params, body = {"dryRun": "All"}, {"a": "ü"}
    answer = await kube.request(
        "PATCH", f"{JOBS}/x", params=params, body=body, content_type=MERGE_PATCH
    )
    assert answer == {"kind": "Job"}
    assert server.requests == [("PATCH", f"{JOBS}/x", params, body)]
    assert server.headers["Authorization"] == "Bearer secret"
    assert server.headers["Content-Type"] == MERGE_PATCH
    assert kube.meter.last_minute == 1


@pytest.mark.parametrize(
    "failing",
    [refuse(500, "InternalError"), refuse(504, "Timeout"), refuse(409, "Conflict"), cut],
    ids=["500", "504", "conflict", "cut"],
)
async def test_transient_failure_is_retried(kube, server, failing):
    server.answers = [failing, failing, give({"kind": "Job"})]
    assert await kube.request("GET", f"{JOBS}/x") == {"kind": "Job"}
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [401, 403])
async def test_denials_of_allowed_request_are_retried(server, tmp_path, status):
    """A starting server may deny requests for longer than other failures are retried."""
    there, denied = give({"kind": "Job"}), refuse(status, "No", DENIAL)
    server.answers = [there, denied, denied, there]
    kube = opened(kubeconfig(tmp_path / "config", server.url), call_retry_s=0)
    for _ in range(2):
        assert await kube.request("GET", f"{JOBS}/x") == {"kind": "Job"}
    await kube.close()
    assert len(server.requests) == 4


@pytest.mark.parametrize("then", ["end", "cut"])
async def test_denials_after_ended_watch_are_retried(kube, server, then):
    """A starting API server denies requests, also the first request of its kind."""
    server.answers = [tell(then=then), refuse(403, "Forbidden", DENIAL), give({"kind": "Job"})]
    with contextlib.suppress(KubeError):
        async for _ in kube.watch(JOBS, {}):
            pass
    assert await kube.request("GET", f"{JOBS}/x") == {"kind": "Job"}


async def test_denial_of_other_permission_is_final(kube, server):
    server.answers = [give({"kind": "Job"}), refuse(403, "Forbidden", DENIAL)]
    await kube.request("GET", f"{JOBS}/x")
    with pytest.raises(KubeError, match="--verb=create"):
        await kube.request("POST", JOBS, body={})
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [400, 404, 409, 410, 422, 501])
async def test_rejection_raises_at_once(kube, server, status):
    reason = {409: "AlreadyExists"}.get(status, "Whatever")
    server.answers = [refuse(status, reason, details={"name": "x"})]
    with pytest.raises(KubeError) as caught:
        await kube.request("GET", f"{JOBS}/x")
    assert len(server.requests) == 1
    error = caught.value
    assert (error.code, error.status, error.operation) == (reason, status, "get jobs.batch x")
    assert error.details == {"name": "x"}
    assert error.sent is (status >= 500)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code, again.call) == (str(error), error.code, error.call)


async def test_throttled_requests_wait_for_retry_after(kube, server):
    busy = refuse(429, "TooManyRequests", **{"Retry-After": "1"})
    server.answers = [busy, give({"kind": "Job"})]
    first = asyncio.ensure_future(kube.request("GET", f"{JOBS}/x"))
    await until_async(lambda: server.requests)
    before = asyncio.get_running_loop().time()
    await asyncio.gather(first, kube.request("GET", f"{JOBS}/y"))
    assert asyncio.get_running_loop().time() - before > 0.9
    assert kube.meter.throttled_at is not None


async def test_unanswered_create_is_repeated(kube, server):
    server.answers = [cut, refuse(409, "AlreadyExists")]
    ticket = Ticket()
    with pytest.raises(KubeError) as caught:
        await kube.request("POST", JOBS, body={}, ticket=ticket)
    assert caught.value.code == "AlreadyExists"
    assert server.counted("POST") == 2


async def test_unanswered_request_may_have_been_sent(kube, server):
    server.answers = [cut]
    with pytest.raises(KubeError, match=r"tried \d times") as caught:
        await kube.request("POST", JOBS, body={}, retry_s=0.5)
    assert caught.value.sent


async def test_throttled_request_can_be_withdrawn(kube, server):
    server.answers = [refuse(429, "TooManyRequests", **{"Retry-After": "60"})]
    ticket = Ticket()
    making = asyncio.ensure_future(kube.request("POST", JOBS, body={}, ticket=ticket))
    await until_async(lambda: kube.meter.throttled_at)
    assert ticket.withdraw()
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert server.counted("POST") == 1


# --- errors with remedies ---------------------------------------------------------------------


async def test_forbidden_request_names_permission(kube, server):
    server.answers = [refuse(403, "Forbidden", 'User "me" cannot create resource "jobs"')]
    with pytest.raises(KubeError) as caught:
        await kube.request("POST", JOBS, body={}, retry_s=0)
    text = str(caught.value)
    assert "kubectl create role farcall-jobs --verb=create --resource=jobs.batch -n ml" in text
    assert "kubectl create rolebinding farcall-jobs --role=farcall-jobs" in text


async def test_missing_namespace_is_named(kube, server):
    server.answers = [refuse(404, "NotFound", details={"kind": "namespaces", "name": "ml"})]
    with pytest.raises(KubeError, match="set namespace to one that"):
        await kube.request("POST", JOBS, body={})


async def test_rejected_credentials_are_reported(kube, server):
    server.answers = [refuse(401, "Unauthorized")]
    with pytest.raises(KubeError, match=r"context here of .*renew its token or certificate"):
        await kube.request("GET", JOBS, retry_s=0)


async def test_unreachable_server_error_names_context(server, tmp_path):
    await server.stop()
    path = kubeconfig(tmp_path / "config", server.url)
    kube = opened(path)
    with pytest.raises(KubeError) as caught:
        await kube.request("GET", JOBS, retry_s=0)
    await kube.close()
    assert not caught.value.sent
    for expected in (server.url, "context here", str(path), "kubectl config get-contexts"):
        assert expected in str(caught.value)
    await server.start()


async def test_web_page_is_no_response(kube, server):
    server.answers = [give("<html>", 200)]
    with pytest.raises(KubeError, match="not a response of Kubernetes"):
        await kube.request("GET", JOBS, retry_s=0)


async def test_control_characters_are_escaped(kube, server):
    server.answers = [refuse(400, "BadRequest", "\x1b[31mred")]
    with pytest.raises(KubeError) as caught:
        await kube.request("GET", JOBS)
    assert "\x1b" not in str(caught.value)


# --- credentials ------------------------------------------------------------------------------


def plugin(tmp_path, *, until=None):
    """Return a user whose plugin prints another token each time."""
    script = tmp_path / "plugin.py"
    script.write_text(
        "import json, os, pathlib\n"
        f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "n = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(n))\n"
        "asked = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        f"status = {{'token': f'token-{{n}}', 'expirationTimestamp': {until!r}}}\n"
        "print(json.dumps({**asked, 'status': status}))\n"
    )
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(script)],
            "provideClusterInfo": True,
        }
    }


@pytest.fixture
async def open_as(server, tmp_path):
    """Function that opens a client with the credentials of a user."""
    clients = []

    def open_client(user=None, url=server.url, **cluster):
        clients.append(opened(kubeconfig(tmp_path / "config", url, user, **cluster)))
        return clients[-1]

    yield open_client
    for each in clients:
        await each.close()


async def test_plugin_token_is_kept_until_rejected(server, tmp_path, open_as):
    kube = open_as(plugin(tmp_path))
    server.answers = [give({}), give({}), refuse(401, "Unauthorized"), give({})]
    await kube.request("GET", JOBS)
    await kube.request("GET", JOBS)
    assert server.headers["Authorization"] == "Bearer token-1"
    await kube.request("GET", JOBS)
    assert server.headers["Authorization"] == "Bearer token-2"
    assert len(server.requests) == 4


async def test_concurrent_requests_run_plugin_once(server, tmp_path, open_as):
    kube = open_as(plugin(tmp_path))
    server.answers = [give({})]
    await asyncio.gather(*(kube.request("GET", JOBS) for _ in range(5)))
    assert (tmp_path / "count").read_text() == "1"


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"command": "no-such-plugin", "installHint": "install it"}, "cannot be started.*install"),
        ({"command": "sh", "args": ["-c", "echo log in first >&2; exit 3"]}, "3: log in first"),
        ({"command": "echo"}, "no valid ExecCredential"),
        ({"command": "echo", "apiVersion": "v0"}, "'v0'.*supported"),
        ({"command": "echo", "interactiveMode": "Always"}, "requires a terminal"),
    ],
)
async def test_failed_plugin_raises(open_as, user, message):
    user = {"apiVersion": "client.authentication.k8s.io/v1", **user}
    kube = open_as({"exec": user})
    with pytest.raises(SettingsError, match=f"credential plugin `.*{message}"):
        await kube.request("GET", JOBS)


async def test_token_file_is_read_again(server, tmp_path, open_as):
    token = tmp_path / "token"
    token.write_text("one\n")
    kube = open_as({"tokenFile": "token"})
    server.answers = [give({}), refuse(401, "Unauthorized"), give({})]
    await kube.request("GET", JOBS)
    assert server.headers["Authorization"] == "Bearer one"
    token.write_text("two\n")
    await kube.request("GET", JOBS)
    assert server.headers["Authorization"] == "Bearer two"


async def test_impersonation_headers_are_sent(server, open_as):
    kube = open_as({"token": "t", "as": "her", "as-groups": ["a", "b"]})
    server.answers = [give({})]
    await kube.request("GET", JOBS)
    assert server.headers["Impersonate-User"] == "her"
    assert server.headers.getall("Impersonate-Group") == ["a", "b"]


async def test_proxy_of_kubeconfig_is_used(server, open_as):
    kube = open_as(url="http://10.1.2.3:1", **{"proxy-url": server.url})
    server.answers = [give({"kind": "Job"})]
    assert await kube.request("GET", JOBS) == {"kind": "Job"}


@pytest.mark.parametrize("name", ["certificate-authority-data", "client-certificate-data"])
async def test_unusable_certificates_raise(open_as, name):
    where = {"user": {name: "Z2FyYmFnZQ=="}} if "client" in name else {name: "Z2FyYmFnZQ=="}
    kube = open_as(**where)
    with pytest.raises(SettingsError, match="certificates of .* cannot be used"):
        await kube.request("GET", JOBS)


# --- streams ----------------------------------------------------------------------------------


async def test_watch_yields_events(kube, server):
    server.answers = [tell(("ADDED", {"n": 1}), ("MODIFIED", {"n": 2}))]
    events = [event async for event in kube.watch(JOBS, {"labelSelector": "a=b"})]
    assert events == [
        {"type": "ADDED", "object": {"n": 1}},
        {"type": "MODIFIED", "object": {"n": 2}},
    ]
    query = server.requests[0][2]
    assert query["watch"] == query["allowWatchBookmarks"] == "true"


async def test_outdated_version_raises(kube, server):
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    server.answers = [tell(("ERROR", status))]
    with pytest.raises(KubeError) as caught:
        async for _ in kube.watch(JOBS, {}):
            pass
    assert caught.value.is_outdated


async def test_silent_watch_times_out(kube, server):
    server.answers = [tell(then="stay")]
    with pytest.raises(KubeError, match="no response"):
        async for _ in kube.stream(JOBS, {}, silent_s=0.2):
            pass


async def test_request_after_close_raises(kube, server):
    server.answers = [give({})]
    await kube.close()
    with pytest.raises(Exception, match="is closed"):
        await kube.request("GET", JOBS)
    assert server.requests == []


def test_repr_of_connection_hides_token(tmp_path):
    from farcall.backends.kubernetes.kubeconfig import read

    found = read(str(kubeconfig(tmp_path / "config", "https://h", {"token": "hush"})))
    assert "hush" not in repr(found)
    assert json.dumps(dataclasses.asdict(found), default=str)
