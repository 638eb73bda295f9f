import pytest

from farcall.backends.kubernetes.create import check_submission as check
from farcall.backends.kubernetes.create import create, delete, marked
from farcall.backends.kubernetes.names import DIGEST_ANNOTATION, MANAGED_LABEL
from farcall.model.errors import JobStuckError, SettingsError, SubmissionError
from farcall.model.pacing import Ticket
from tests.unit.backends.kubernetes.api_server import cut, give, refuse

JOBS = "/apis/batch/v1/namespaces/ml/jobs"
JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": {"x": 1}}
SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
TAKEN = refuse(409, "AlreadyExists", 'jobs.batch "a" already exists')


async def _echo(request):
    return await give(await request.json())(request)


class Keeping:
    """Stores objects, loses the first responses, and returns what it stored."""

    def __init__(self, lost=1):
        self.objects = {}
        self._lost = lost

    async def __call__(self, request):
        if request.method == "GET":
            return await give(self.objects[request.path.rpartition("/")[2]])(request)
        document = await request.json()
        name = document["metadata"]["name"]
        if name in self.objects:
            return await TAKEN(request)
        self.objects[name] = document
        if self._lost:
            self._lost -= 1
            return await cut(request)
        return await give(document)(request)


async def test_objects_are_created_in_order_strictly(kube, server):
    server.answers = [_echo]
    made = await create(kube, [SERVICE, JOB], Ticket())
    assert [each["kind"] for each in made] == ["Service", "Job"]
    assert [(each[0], each[1]) for each in server.requests] == [
        ("POST", "/api/v1/namespaces/ml/services"),
        ("POST", JOBS),
    ]
    assert {each[2]["fieldValidation"] for each in server.requests} == {"Strict"}


async def test_lost_response_is_harmless(kube, server):
    server.answers = [Keeping()]
    [made] = await create(kube, [JOB], Ticket())
    assert made["spec"] == JOB["spec"]
    assert (server.counted("POST"), server.counted("GET")) == (2, 1)


async def test_resubmitted_job_is_adopted(kube, server):
    keeping = Keeping(lost=0)
    server.answers = [keeping]
    first = await create(kube, [JOB], Ticket())
    assert await create(kube, [JOB], Ticket()) == first
    assert len(keeping.objects) == 1


@pytest.mark.parametrize(
    "there",
    [
        {**JOB, "metadata": {"name": "a"}},
        {**JOB, "metadata": {"name": "a", "annotations": {DIGEST_ANNOTATION: "of another"}}},
    ],
    ids=["another client's", "of another digest"],
)
async def test_name_of_foreign_job_is_rejected(kube, server, there):
    server.answers = [TAKEN, give(there)]
    with pytest.raises(
        SubmissionError, match="already has a Job named a.*kubectl delete jobs a -n ml"
    ):
        await create(kube, [JOB], Ticket())


async def test_own_service_is_shared(kube, server):
    labelled = {**SERVICE, "metadata": {"name": "s", "labels": {MANAGED_LABEL: "farcall"}}}
    server.answers = [TAKEN, give(labelled)]
    assert await create(kube, [SERVICE], Ticket()) == [labelled]
    server.answers = [TAKEN, give(SERVICE)]
    with pytest.raises(SubmissionError, match="already has a Service named s"):
        await create(kube, [SERVICE], Ticket())


@pytest.mark.parametrize(("status", "reason"), [(400, "BadRequest"), (422, "Invalid")])
async def test_rejected_job_leaves_no_objects(kube, server, status, reason):
    part = {**JOB, "metadata": {"name": "a-n1"}}
    server.answers = [_echo, refuse(status, reason, "spec.x: Invalid value"), give({})]
    with pytest.raises(
        SubmissionError, match="Kubernetes rejected Job a: .*spec.x: Invalid value"
    ):
        await create(kube, [part, JOB], Ticket())
    method, path, query, _ = server.requests[-1]
    assert (method, path) == ("DELETE", f"{JOBS}/a-n1")
    assert query == {"propagationPolicy": "Background"}


FORBIDDEN = 'jobs.batch "a" is forbidden: '
QUOTA = (
    f"{FORBIDDEN}exceeded quota: few-jobs, requested: count/jobs.batch=1, used: "
    "count/jobs.batch=4, limited: count/jobs.batch=4"
)


@pytest.mark.parametrize(
    "message",
    [
        'admission webhook "vjob.kb.io" denied the request: metadata.annotations: Invalid value',
        f"{FORBIDDEN}ValidatingAdmissionPolicy 'owner' with binding 'owner' denied request: no",
        f'{FORBIDDEN}violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
        f"{FORBIDDEN}failed quota: few: must specify limits.cpu for: task",
    ],
    ids=["webhook", "policy", "pod security", "unspecified limit"],
)
async def test_admission_rejection_is_not_missing_permission(kube, server, message):
    server.answers = [refuse(403, "Forbidden", message)]
    with pytest.raises(SubmissionError, match="administrator about the rule") as caught:
        await create(kube, [JOB], Ticket())
    assert message in str(caught.value)
    assert "kubectl create role" not in str(caught.value)


async def test_terminating_namespace_is_option_error(kube, server):
    message = f"{FORBIDDEN}unable to create new content in namespace ml because it is being "
    cause = {"reason": "NamespaceTerminating", "field": "metadata.namespace"}
    details = {"name": "a", "group": "batch", "kind": "jobs", "causes": [cause]}
    server.answers = [refuse(403, "Forbidden", f"{message}terminated", details)]
    with pytest.raises(SettingsError, match="set namespace to another one") as caught:
        await create(kube, [JOB], Ticket())
    assert caught.value.option == "namespace"


async def test_exceeded_quota_is_waited_for(kube, server, caplog):
    """The objects created before are deleted, so that they do not use the quota meanwhile."""
    part = {**JOB, "metadata": {"name": "a-n1"}}
    server.answers = [_echo, refuse(403, "Forbidden", QUOTA), give({}), _echo]
    made = await create(kube, [part, JOB], Ticket())
    assert [each["metadata"]["name"] for each in made] == ["a-n1", "a"]
    assert [each[0] for each in server.requests] == ["POST", "POST", "DELETE", "POST", "POST"]
    assert "job a is waiting: " in caplog.text


async def test_lasting_quota_ends_submission(kube, server):
    server.answers = [refuse(403, "Forbidden", QUOTA)]
    with pytest.raises(JobStuckError, match=r"stuck_timeout_s: .*few-jobs.*describe quota -n ml"):
        await create(kube, [JOB], Ticket(), stuck_timeout_s=0)


async def test_unsupported_kind_is_reported(kube, server):
    server.answers = [refuse(404, "NotFound")]
    with pytest.raises(SettingsError, match="does not support Job of batch.volcano.sh/v1alpha1"):
        await create(kube, [{**JOB, "apiVersion": "batch.volcano.sh/v1alpha1"}], Ticket())


async def test_dry_run_creates_nothing(kube, server):
    server.answers = [TAKEN]
    await check(kube, [JOB])
    assert server.requests[0][2] == {"fieldValidation": "Strict", "dryRun": "All"}
    server.answers = [refuse(422, "Invalid")]
    with pytest.raises(SubmissionError):
        await check(kube, [JOB])


async def test_deleting_missing_object_is_silent(kube, server):
    server.answers = [refuse(404, "NotFound")]
    await delete(kube, JOB)
    assert server.counted("DELETE") == 1


def test_digest_depends_only_on_document():
    first, second = marked(JOB), marked(JOB)
    other = marked({**JOB, "spec": {"x": 2}})
    digests = [
        each["metadata"]["annotations"][DIGEST_ANNOTATION] for each in (first, second, other)
    ]
    assert digests[0] == digests[1] != digests[2]
    assert "annotations" not in JOB["metadata"]
