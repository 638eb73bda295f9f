"""Which objects of a task are of no more use once its outcome is there."""

from __future__ import annotations

from farcall.storage.outcomes import spent_keys
from farcall_runtime.contract import STREAMS, VALUE_PART_BYTES
from tests.contract import make_golden as golden
from tests.unit.fakes import store_in_memory


async def test_a_value_s_parts_are_of_no_more_use_and_those_of_earlier_attempts():
    store = store_in_memory()
    where = golden.WHERE
    left = [where.value_key(8, attempt, part) for attempt in (1, 2) for part in range(3)]
    for key in left:  # of the first attempt nobody told: its host went away
        await store.put(key, [b"x"])
    said = {"attempt": 1, "value": {"size": 2 * VALUE_PART_BYTES + 1}}
    said |= {stream: {"chunks": 0} for stream in STREAMS}

    outcome = where.outcome_key(8)
    assert set(await spent_keys(store, where, 8, said)) == {outcome, *left[:3]}
    said["attempt"] = 2
    assert {outcome, *left} < set(await spent_keys(store, where, 8, said))
