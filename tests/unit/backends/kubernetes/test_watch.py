import pytest

from farcall.backends.kubernetes.names import JOB_LABEL, RUN_LABEL
from farcall.backends.kubernetes.watch import ClusterWatch, pages
from tests.support.patience import until_async
from tests.unit.backends.kubernetes.api_server import cut, give, refuse, tell

RUN = "me-1"


def thing(name, version, job=None, **status):
    """Return a document."""
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    metadata["labels"] = {JOB_LABEL: job or name, RUN_LABEL: RUN}
    metadata["managedFields"] = [{"much": "text"}]
    return {"metadata": metadata, "status": status}


def listed(version, *items, more=""):
    return give({"metadata": {"resourceVersion": str(version), "continue": more}, "items": items})


BOOKMARK = ("BOOKMARK", {"metadata": {"resourceVersion": "50"}})


def follow(watch):
    """Follow a run by requesting one of its jobs."""
    watch.note(RUN, thing("first", 1))
    assert watch.get("first") is None


class Lanes:
    """Answers requests for jobs and pods, each from its own list."""

    def __init__(self, server):
        self.jobs, self.pods = [listed(1), tell(then="stay")], [listed(1), tell(then="stay")]
        self.asked = {"jobs": [], "pods": []}
        server.answers = [self._answer]

    async def _answer(self, request):
        kind = request.path.rpartition("/")[2]
        answers = getattr(self, kind)
        self.asked[kind].append(dict(request.query))
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return await answer(request)


@pytest.fixture
def lanes(server):
    return Lanes(server)


@pytest.fixture
async def watch(kube):
    opened = ClusterWatch(kube)
    yield opened
    await opened.close()


async def test_watched_jobs_need_no_request(watch, lanes, kube):
    lanes.jobs = [
        listed(1),
        tell(("ADDED", thing("a", 2)), ("MODIFIED", thing("a", 3, active=1)), then="stay"),
    ]
    follow(watch)
    watch.note(RUN, thing("a", 2))
    await until_async(lambda: (seen := watch.get("a")) and seen.objects["a"]["status"])
    await until_async(lambda: len(lanes.asked["pods"]) == 2)
    seen = watch.get("a")
    assert seen.objects["a"]["status"] == {"active": 1}
    assert "managedFields" not in seen.objects["a"]["metadata"]
    assert kube.meter.last_minute == 4
    assert watch.get("b") is None
    assert all(query["labelSelector"] == f"{RUN_LABEL}={RUN}" for query in lanes.asked["jobs"])
    assert lanes.asked["jobs"][1]["resourceVersion"] == "1"
    assert lanes.asked["pods"][1]["fieldSelector"] == "status.phase=Failed"


async def test_cut_watch_resumes_at_last_version(watch, lanes):
    lanes.jobs = [
        listed(1),
        tell(("ADDED", thing("a", 2)), then="cut"),
        cut,
        refuse(503, "ServiceUnavailable"),
        tell(("MODIFIED", thing("a", 3, ready=1)), then="stay"),
    ]
    follow(watch)
    watch.note(RUN, thing("a", 2))
    await until_async(lambda: (seen := watch.get("a")) and seen.objects["a"]["status"])
    versions = [query.get("resourceVersion") for query in lanes.asked["jobs"]]
    assert versions == [None, "1", "2", "2", "2"]


async def test_bookmark_version_is_resumed(watch, lanes):
    lanes.jobs = [listed(1), tell(BOOKMARK), tell(then="stay")]
    follow(watch)
    await until_async(lambda: len(lanes.asked["jobs"]) == 3)
    assert lanes.asked["jobs"][2]["resourceVersion"] == "50"


@pytest.mark.parametrize("how", ["event", "status"])
async def test_outdated_version_lists_everything_again(watch, lanes, how):
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    old = tell(("ERROR", status)) if how == "event" else refuse(410, "Expired")
    lanes.jobs = [
        listed(1, thing("a", 1), thing("b", 1)),
        old,
        listed(9, thing("a", 8, succeeded=1)),
        tell(then="stay"),
    ]
    follow(watch)
    await until_async(lambda: len(lanes.asked["jobs"]) == 4)
    for name in "ab":
        watch.note(RUN, thing(name, 1))
    await until_async(lambda: watch.get("a") and watch.get("b").is_deleted)
    assert watch.get("a").objects["a"]["status"] == {"succeeded": 1}
    assert not watch.get("a").is_deleted
    assert lanes.asked["jobs"][3]["resourceVersion"] == "9"


async def test_deleted_job_is_reported(watch, lanes):
    lanes.jobs = [
        listed(1),
        tell(("ADDED", thing("a", 2)), ("DELETED", thing("a", 3, active=1)), then="stay"),
    ]
    follow(watch)
    watch.note(RUN, thing("a", 2))
    await until_async(lambda: (seen := watch.get("a")) and seen.is_deleted)
    assert watch.get("a").objects["a"]["status"] == {"active": 1}


async def test_deleted_failed_pods_stay_known(watch, lanes):
    pods = [thing(f"a-{n}", n, job="a") for n in range(3)]
    lanes.pods = [
        listed(5, *pods[:2]),
        tell(("ADDED", pods[2]), ("DELETED", pods[0]), then="cut"),
        refuse(410, "Expired"),
        listed(9, pods[2]),
        tell(then="stay"),
    ]
    lanes.jobs = [listed(1, thing("a", 1)), tell(then="stay")]
    follow(watch)
    watch.note(RUN, thing("a", 1))
    await until_async(lambda: len(lanes.asked["pods"]) == 5 and watch.get("a"))
    await until_async(lambda: watch.knows_failed("a"))
    found = {pod.uid: pod.gone for pod in watch.get("a").failed.values()}
    assert found == {"uid-a-0": True, "uid-a-1": True, "uid-a-2": False}


async def test_unreachable_server_makes_cache_invalid(watch, lanes, server):
    follow(watch)
    watch.note(RUN, thing("a", 2))
    await until_async(lambda: watch.get("a"))
    port = int(server.url.rpartition(":")[2])
    await server.stop()
    await until_async(lambda: watch.get("a") is None)
    await server.start(port)
    lanes.jobs = [tell(("MODIFIED", thing("a", 3, ready=1)), then="stay")]
    await until_async(lambda: watch.get("a"))


async def test_forbidden_watch_is_logged_once(watch, lanes, caplog):
    lanes.jobs = [refuse(403, "Forbidden")]
    follow(watch)
    await until_async(lambda: "requested separately" in caplog.text)
    watch.note(RUN, thing("a", 2))
    assert watch.get("a") is None
    assert caplog.text.count("--verb=list --resource=jobs.batch") == 1


async def test_long_list_comes_in_pages(kube, server):
    server.answers = [listed(1, thing("a", 1), more="next"), listed(1, thing("b", 1))]
    found = [page["items"][0]["metadata"]["name"] async for page in pages(kube, "/api/v1/x", {})]
    assert found == ["a", "b"]
    assert [each[2].get("continue") for each in server.requests] == [None, "next"]
