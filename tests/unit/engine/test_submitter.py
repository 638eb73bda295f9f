import asyncio
from types import SimpleNamespace

import pytest

from farcall import Settings
from farcall.aws.buckets import place
from farcall.engine.group import Services
from farcall.engine.packages import Runtimes, TaskPackages
from farcall.engine.shared import SharedValues
from farcall.engine.submitter import Submitter
from farcall.engine.worker_threads import WorkerThreads
from farcall.model.errors import ServiceError, SubmissionError, TaskTooLargeError
from farcall.payload.pickling import pack_calls, pack_function
from farcall_runtime import contract
from tests.unit.fakes import TIMING, ScriptedBatch

OPTIONS = {"image": "repo/image:1"}


class Account:
    """Batch and the bucket, with the interfaces that the submitter uses."""

    def __init__(self):
        self.log = []
        self.requests = []
        self.failure = None
        self.definitions = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def ensure_definition(self, definition):
        self.log.append(("definition", definition.name))
        return f"arn:{definition.name}:1"

    async def find_definition(self, name):
        return self.definitions.get(name)

    async def put(self, key, pieces, *, quick, on_sent):
        self.log.append(("put", key))
        assert sum(map(len, pieces)) > 0

    async def submit(self, request, ticket):
        self.log.append(("submit", request["jobName"]))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.log.append(("taken back", request["jobName"]))
            raise
        ticket.record_sent()
        if self.failure is not None:
            raise self.failure
        self.requests.append(request)
        return f"job-{len(self.requests)}"

    async def find_named(self, queue, name):
        raise ServiceError("searches are denied", code="AccessDenied", status=403)

    def delete_later(self, keys):
        self.log += [("delete", key) for key in keys]

    async def leave_one(self, job_id, reason):
        self.log.append(("terminate", [job_id]))

    async def end(self, job_ids, reason):
        self.log.append(("terminate", list(job_ids)))
        return {}

    def watch(self, job, indexes, *_): ...

    def is_watched(self, *_):
        return True


@pytest.fixture
async def account():
    return Account()


@pytest.fixture
async def submitter(account):
    access = SimpleNamespace(place=lambda bucket: place(bucket, "us-east-1"), timing=TIMING)
    backend = ScriptedBatch(None, account)
    shared = SharedValues(TIMING)
    services = Services(account, account, None, None, account, lambda: None)
    return Submitter(
        access,
        backend,
        services,
        account,
        "farcall/v1/run",
        shared,
        TaskPackages(WorkerThreads()),
        Runtimes(backend, access),
    )


def work(x):
    return x


FUNCTION = pack_function(work)
(ARGUMENTS,) = pack_calls([[((1,), {})]])


def send(submitter, name="work", **options):
    async def submit():
        settings = Settings(**{**OPTIONS, **options})
        group, index = await submitter.submit(settings, name, FUNCTION, ARGUMENTS)
        return group.submission, index

    return asyncio.ensure_future(submit())


async def test_one_task_is_a_plain_job(submitter, account, clock):
    submission, index = await send(submitter)
    assert (submission.job_id, submission.size, index) == ("job-1", 1, 0)
    assert "arrayProperties" not in account.requests[0]


async def test_bundle_is_uploaded_before_submission(submitter, account, clock):
    submission, _ = await send(submitter)
    assert [entry for entry in account.log if entry[0] != "definition"] == [
        ("put", submission.where.bundle_key),
        ("submit", submission.name),
    ]


async def test_job_environment_names_bundle(submitter, account, clock):
    submission, _ = await send(submitter)
    environment = account.requests[0]["containerOverrides"]["environment"]
    variables = {pair["name"]: pair["value"] for pair in environment}
    assert variables[contract.ENV_BUNDLE] == submission.where.url
    assert variables[contract.ENV_OUTCOME_KEY] == submission.key.hex()


async def test_concurrent_tasks_form_one_ordered_array(submitter, account, clock):
    found = await asyncio.gather(*(send(submitter) for _ in range(300)))
    assert [index for _, index in found] == list(range(300))
    assert {submission.job_id for submission, _ in found} == {"job-1"}
    assert account.requests[0]["arrayProperties"] == {"size": 300}


@pytest.mark.parametrize("options", [{"nodes": 2}, {"instance_type": "c5.large"}])
async def test_multi_node_tasks_form_no_array(submitter, account, clock, options):
    found = await asyncio.gather(*(send(submitter, **options) for _ in range(3)))
    assert [(one.size, one.nodes, index) for one, index in found] == [
        (1, options.get("nodes", 1), 0)
    ] * 3
    assert len({submission.job_id for submission, _ in found}) == 3
    assert not any("arrayProperties" in request for request in account.requests)


async def test_different_options_make_different_jobs(submitter, account, clock):
    found = await asyncio.gather(send(submitter), send(submitter, vcpu=8), send(submitter))
    ids = [submission.job_id for submission, _ in found]
    assert (ids[0] == ids[2], ids[0] == ids[1]) == (True, False)


async def test_submission_waits_at_most_linger(submitter, account, clock):
    begin = clock.now()
    await send(submitter, linger_s=0.5)
    assert clock.now() - begin == pytest.approx(0.5)
    await send(submitter, linger_s=0)
    assert clock.now() - begin == pytest.approx(0.5)


# From Python 3.12 on, the loop waits for its threads with a time limit, and time is virtual here.
@pytest.mark.filterwarnings("ignore:The executor did not:RuntimeWarning")
async def test_array_has_at_most_10000_tasks(submitter, account, clock):
    settings = Settings(**OPTIONS)
    tasks = (submitter.submit(settings, "work", FUNCTION, ARGUMENTS) for _ in range(10_001))
    found = await asyncio.gather(*tasks)
    sizes = [request.get("arrayProperties", {"size": 1})["size"] for request in account.requests]
    assert sorted(sizes) == [1, 10_000]
    assert len({group.submission.id_of(index) for group, index in found}) == 10_001


# --- failures ---------------------------------------------------------------------------------


async def test_rejection_reaches_every_task(submitter, account, clock):
    account.failure = ServiceError("no", code="ClientException", status=400, sent=False)
    found = await asyncio.gather(send(submitter), send(submitter), return_exceptions=True)
    assert [type(error) for error in found] == [SubmissionError] * 2
    (_, uploaded), *_, last = account.log[1:]
    assert last == ("delete", uploaded)


async def test_bundle_of_possible_job_is_kept(submitter, account, clock):
    account.failure = ServiceError("no answer")
    with pytest.raises(ServiceError):
        await send(submitter)
    assert [entry for entry in account.log if entry[0] == "delete"] == []


async def test_bundle_of_failed_upload_is_deleted(submitter, account, clock):
    account.put = lambda key, pieces, **options: asyncio.sleep(0, 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await send(submitter)
    assert [entry[0] for entry in account.log] == ["definition", "delete"]


async def test_oversized_request_uploads_nothing(submitter, account, clock):
    with pytest.raises(TaskTooLargeError):
        await send(
            submitter,
            tags={f"{n:0128d}": "v" * 256 for n in range(45)},
            prefix="p" * 400,
            share_identifier="s" * 255,
            queue="arn:" + "q" * 20_000,
        )
    assert [entry for entry in account.log if entry[0] == "put"] == []


async def test_missing_image_comes_from_named_definition(submitter, account, clock):
    account.definitions["mine"] = {"containerProperties": {"image": "repo/mine:1"}}
    one = send(submitter, image="", batch_job_definition_name="mine")
    two = send(submitter, image="repo/mine:1", batch_job_definition_name="mine")
    await asyncio.gather(one, two)
    assert len({name for kind, name in account.log if kind == "definition"}) == 1


# --- cancelled waits --------------------------------------------------------------------------


async def test_task_cancelled_early_is_not_submitted(submitter, account, clock):
    sent = [send(submitter) for _ in range(3)]
    await asyncio.sleep(0)
    sent[1].cancel()
    found = await asyncio.gather(*sent, return_exceptions=True)
    assert account.requests[0]["arrayProperties"] == {"size": 2}
    assert [found[0][1], found[2][1]] == [0, 1]


async def test_all_cancelled_early_submits_nothing(submitter, account, clock):
    sent = send(submitter)
    await asyncio.sleep(0)
    sent.cancel()
    await asyncio.sleep(5)
    assert account.log == []


async def test_task_cancelled_during_submission_is_terminated(submitter, account, clock):
    account.gate.clear()
    sent = [send(submitter) for _ in range(3)]
    await asyncio.sleep(1)
    sent[1].cancel()
    await asyncio.sleep(1)
    account.gate.set()
    await asyncio.sleep(1)
    assert account.log[-1] == ("terminate", ["job-1:1"])
    assert [(await task)[1] for task in (sent[0], sent[2])] == [0, 2]


async def test_all_cancelled_withdraws_request(submitter, account, clock):
    account.gate.clear()
    sent = [send(submitter) for _ in range(3)]
    await asyncio.sleep(1)
    for task in sent:
        assert account.log[-1][0] == "submit"
        task.cancel()
        await asyncio.sleep(1)
    (_, uploaded), (_, name), *rest = account.log[1:]
    assert sorted(rest) == [("delete", uploaded), ("taken back", name)]
    await submitter.close()
    assert account.requests == []


async def test_close_submits_waiting_tasks_at_once(submitter, account, clock):
    begin = clock.now()
    sent = send(submitter, linger_s=60)
    await asyncio.sleep(0)
    await submitter.close()
    assert (await sent)[0].job_id == "job-1"
    assert clock.now() - begin < 1
