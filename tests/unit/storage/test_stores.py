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


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "s3_bucket_name is empty, .* Run `farcall deploy`"),
        ({"FARCALL_BUNDLE": "s3://bucket/v1/run/bundles/b"}, "a job, which cannot submit jobs"),
    ],
)
def test_missing_bucket_option_is_explained(monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=message):
        Stores(access_in_memory()).of("")
