"""Which objects of a task are of no more use once its outcome is there."""

from __future__ import annotations

from farcall.model.submission import Submission
from farcall.storage.outcomes import spent_keys
from farcall_runtime.contract import STREAMS, VALUE_PART_BYTES
from tests.contract import make_golden as golden
from tests.unit.fakes import store_in_memory


async def test_a_value_s_parts_are_of_no_more_use_and_those_of_earlier_attempts():
    store = store_in_memory()
    where = golden.WHERE
    array = Submission("job", "work", where, golden.KEY, 10)
    left = [where.value_key(8, attempt, part) for attempt in (1, 2) for part in range(3)]
    for key in left:  # the first attempt left none: its host was lost
        await store.put(key, [b"x"])
    said = {"attempt": 1, "value": {"size": 2 * VALUE_PART_BYTES + 1}}
    said |= {stream: {"chunks": 0} for stream in STREAMS}

    outcome = where.outcome_key(8)
    assert set(await spent_keys(store, array, 8, said)) == {outcome, *left[:3]}
    said["attempt"] = 2
    assert {outcome, *left} < set(await spent_keys(store, array, 8, said))


async def test_another_node_s_outcomes_are_of_no_more_use_those_of_each_attempt():
    where = golden.WHERE
    gang = Submission("job", "work", where, golden.KEY, 1, nodes=4)
    said = {"attempt": 2, "value": {"size": 1}, **{stream: {"chunks": 0} for stream in STREAMS}}

    assert await spent_keys(store_in_memory(), gang, 3, said) == [
        where.node_key(2, 3),
        where.value_key(3, 2, 0),
        where.node_key(1, 3),
    ]
