"""Request pacing, in virtual time."""

import asyncio
import random
from itertools import pairwise

import pytest

from farcall.aws.paced_client import PacedClient, Tries
from farcall.model.errors import ServiceError
from farcall.model.pacing import Limiter
from farcall_local.batch.limits import Bucket
from tests.unit.fakes import TIMING, Client, refusal

THROTTLED = refusal("TooManyRequestsException", 429, "Too Many Requests")


async def turns(limiter, clock, count):
    """Let callers arrive at once; return when each had its turn."""
    begin, moments = clock.now(), []

    async def one():
        await limiter.turn()
        moments.append(clock.now() - begin)

    await asyncio.gather(*(one() for _ in range(count)))
    return moments


async def test_turns_are_evenly_spaced_in_order(clock):
    assert await turns(Limiter(10), clock, 5) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


async def test_idle_time_allows_no_burst(clock):
    limiter = Limiter(10)
    await turns(limiter, clock, 3)
    await asyncio.sleep(60)
    assert await turns(limiter, clock, 3) == pytest.approx([0, 0.1, 0.2])


async def test_stalled_event_loop_allows_no_burst(clock, monkeypatch):
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda wait_s: sleep(wait_s + 5))
    moments = await turns(Limiter(10), clock, 3)
    assert moments == pytest.approx([0, 5.1, 10.19], abs=0.001)


async def test_throttling_reduces_pace_by_share(clock):
    limiter = Limiter(40)
    limiter.throttled(40)
    assert limiter.pace == pytest.approx(34)
    limiter.throttled(34)
    assert limiter.pace == pytest.approx(28.9)


async def test_simultaneous_throttling_counts_once(clock):
    limiter = Limiter(40)
    for _ in range(10):
        limiter.throttled(40)
    assert limiter.pace == pytest.approx(34)


async def test_pace_has_a_floor(clock):
    limiter = Limiter(40)
    for _ in range(50):
        limiter.throttled(limiter.pace)
    assert limiter.pace == 0.5


async def test_pace_recovers_by_one_per_second(clock):
    limiter = Limiter(40)
    limiter.throttled(10)
    for second in range(1, 4):
        await asyncio.sleep(1)
        assert limiter.pace == pytest.approx(8.5 + second, rel=0.02)


async def test_pace_recovers_to_its_maximum(clock):
    limiter = Limiter(40)
    limiter.throttled(1)
    await asyncio.sleep(6)
    assert limiter.pace < 10
    await asyncio.sleep(6)
    assert limiter.pace == 40
    await asyncio.sleep(3600)
    assert limiter.pace == 40


async def test_throttling_is_followed_by_pause(clock):
    limiter = Limiter(10)
    limiter.throttled(10)
    (moment,) = await turns(limiter, clock, 1)
    assert 0.5 / 8.5 <= moment <= 1 / 8.5  # half to one interval of the new pace


async def test_throttling_slows_waiting_callers(clock):
    limiter = Limiter(10)
    waiting = asyncio.ensure_future(turns(limiter, clock, 5))
    await asyncio.sleep(0.05)  # one had its turn, four wait
    limiter.throttled(2)
    moments = await waiting
    gaps = [after - before for before, after in pairwise(moments)]
    assert all(0.3 < gap < 0.7 for gap in gaps)


async def test_throttling_keeps_the_waiting_order(clock):
    limiter = Limiter(10)
    order = []

    async def one(name):
        await limiter.turn()
        order.append(name)

    tasks = [asyncio.ensure_future(one(n)) for n in range(10)]
    await asyncio.sleep(0.05)
    limiter.throttled(10)
    tasks.append(asyncio.ensure_future(one("late")))
    await asyncio.gather(*tasks)
    assert order == [*range(10), "late"]


async def test_cancelled_caller_loses_only_own_turn(clock):
    limiter = Limiter(10)
    tasks = [asyncio.ensure_future(limiter.turn()) for _ in range(5)]
    await asyncio.sleep(0.05)
    tasks[2].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(item, asyncio.CancelledError) for item in done] == [0, 0, 1, 0, 0]


# --- several clients, one limit ---------------------------------------------------------------


class Account:
    """Clients that always have calls to submit, and the account's limit.

    Attributes:
        accepted: Times of each client's accepted calls.
        refused: Times of each client's throttled calls.
    """

    def __init__(self, clock, calls_per_s):
        self._clock = clock
        self._bucket = Bucket(calls_per_s, clock.now)
        self._begin = clock.now()
        self._random = random.Random(1)
        self.accepted = []
        self.refused = []

    def add(self, begin=0, end=1000):
        """Return a client's calls, to await together with those of others."""
        number = len(self.accepted)
        self.accepted.append([])
        self.refused.append([])
        return self._submit(number, begin, end)

    def during(self, begin, end, moments):
        """Return each client's number of calls within a period."""
        return [sum(begin <= moment < end for moment in own) for own in moments]

    async def _submit(self, number, begin, end):
        limiter = Limiter(45)
        await asyncio.sleep(begin)
        calls = set()
        while self._now() < end:
            calls.add(asyncio.ensure_future(self._call(number, limiter, await limiter.turn())))
        await asyncio.gather(*calls)

    async def _call(self, number, limiter, pace):
        way_s = self._random.uniform(0.01, 0.1)
        await asyncio.sleep(way_s)
        passes = self._bucket.take()
        (self.accepted if passes else self.refused)[number].append(self._now())
        await asyncio.sleep(way_s)
        if not passes:
            limiter.throttled(pace)

    def _now(self):
        return self._clock.now() - self._begin


def jain(shares):
    """Return Jain's index: 1 if all have the same share, 1/n if one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


@pytest.fixture(autouse=True)
def _fixed_seed():
    random.seed(1)


async def test_single_client_is_never_throttled(clock):
    account = Account(clock, 50)
    await account.add(end=60)
    assert account.refused == [[]]
    assert account.during(10, 60, account.accepted) == [pytest.approx(45 * 50, rel=0.01)]


@pytest.mark.parametrize(
    ("clients", "calls_per_s", "most_refused"),
    [(2, 50, 0.03), (4, 50, 0.07), (8, 50, 0.2), (4, 10, 0.6)],
)
async def test_many_clients_share_the_limit(clock, clients, calls_per_s, most_refused):
    account = Account(clock, calls_per_s)
    await asyncio.gather(*(account.add(end=70) for _ in range(clients)))
    accepted = account.during(10, 70, account.accepted)
    refused = account.during(10, 70, account.refused)
    assert jain(accepted) > 0.95
    for begin in range(10, 70, 10):
        assert jain(account.during(begin, begin + 10, account.accepted)) > 0.8
    assert sum(accepted) > 0.97 * 60 * calls_per_s
    assert sum(refused) < most_refused * (sum(accepted) + sum(refused))


async def test_late_client_gets_fair_share(clock):
    account = Account(clock, 50)
    await asyncio.gather(*(account.add(begin, end=60) for begin in (0, 0, 0, 30)))
    assert jain(account.during(30, 40, account.accepted)) > 0.85
    assert jain(account.during(40, 60, account.accepted)) > 0.9


async def test_last_client_recovers_full_speed(clock):
    account = Account(clock, 50)
    await asyncio.gather(*(account.add(end=end) for end in (60, 30, 30, 30)))
    assert account.during(45, 60, account.accepted)[0] == pytest.approx(45 * 15, rel=0.02)


# --- lanes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["another error", "a cancel"])
async def test_idle_hour_is_no_throttled_hour(end, clock):
    answers = [THROTTLED, refusal("ClientException", 400)]
    if end == "a cancel":
        answers = [THROTTLED] * 3
    client = Client(describe_jobs=[*answers, THROTTLED, {"jobs": []}])
    lane = PacedClient(client, 5.0, TIMING)
    asking = asyncio.ensure_future(lane.once("describe_jobs", jobs=["j"]))
    while len(client.calls) < len(answers):
        await asyncio.sleep(0.1)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await asyncio.sleep(4000)
    assert await lane.once("describe_jobs", jobs=["j"]) == {"jobs": []}


async def test_lasting_failure_is_logged_meanwhile(clock, caplog):
    tries = Tries(60.0)
    error = ServiceError("SubmitJob: no route")
    with pytest.raises(ServiceError, match="no route; tried .* times in 6"):
        while True:
            await tries.wait_after(error)
    assert 2 <= len(caplog.messages) <= 4  # within a minute
    assert "retrying for" in caplog.messages[0]
