import math

import pytest

from farcall import SettingsError
from farcall.storage.store import Stores
from tests.unit.fakes import access_in_memory


async def test_bucket_is_opened_once_when_needed():
    stores = Stores(access_in_memory())
    assert list(stores) == []
    one, other = stores.of("one"), stores.of("other")
    assert (one.bucket, other.bucket) == ("one", "other")
    assert stores.of("one") is one
    assert list(stores) == [one, other]


async def test_last_abandoned_request_counts():
    stores = Stores(access_in_memory())
    assert stores.given_up_at == -math.inf
    stores.of("one")
    assert stores.given_up_at == -math.inf


def test_missing_bucket_option_is_explained():
    with pytest.raises(SettingsError, match="s3_bucket_name is empty: functions are sent through"):
        Stores(access_in_memory()).of("")
