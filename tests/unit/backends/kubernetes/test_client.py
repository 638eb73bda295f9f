import asyncio
import contextlib
import dataclasses
import json
import pickle

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
