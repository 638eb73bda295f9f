from __future__ import annotations

import math

import pytest

from farcall import SettingsError
from farcall.storage.stores import Stores
from tests.unit.fakes import access_in_memory


async def test_a_bucket_is_opened_once_and_when_it_is_asked_for():
    stores = Stores(access_in_memory())
    assert list(stores) == []
    one, other = stores.of("one"), stores.of("other")
    assert (one.bucket, other.bucket) == ("one", "other")
    assert stores.of("one") is one
    assert list(stores) == [one, other]


async def test_the_last_request_that_was_given_up_counts():
    stores = Stores(access_in_memory())
    assert stores.given_up_at == -math.inf
    stores.of("one")
    assert stores.given_up_at == -math.inf


def test_where_the_options_name_no_bucket_it_says_what_needs_one():
    with pytest.raises(SettingsError, match="s3_bucket_name is empty: functions are sent through"):
        Stores(access_in_memory()).of("")
