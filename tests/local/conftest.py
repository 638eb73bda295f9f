"""An AWS to test: the embedded one, or with ``pytest tests/local --aws`` a real account.

A real account is described by environment variables: FARCALL_TEST_AWS_QUEUE (an EC2 queue, not of
Spot instances, on which multi-node parallel jobs do not run), FARCALL_TEST_AWS_IMAGE (any image
with a POSIX shell), and the usual AWS variables for credentials and region. Tests of the embedded
AWS itself are skipped there.
"""

from __future__ import annotations

import pytest

from farcall.local import start
from tests.local.account import Account

#: What `Account.tune` goes back to.
DEFAULTS = {
    "delays": {},
    "stop_grace_s": 30.0,
    "timeout_scale": 1.0,
    "submit_rate": 50.0,
    "api_rate": 50.0,
}


@pytest.fixture(scope="session")
def account(pytestconfig):
    if pytestconfig.getoption("--aws"):
        real = Account(None)
        yield real
        real.close()
        return
    with start(cpus=4) as local:
        embedded = Account(local)
        yield embedded
        embedded.close()


@pytest.fixture
def batch(account):
    """The account, as it was at first."""
    yield account
    account.tune(**DEFAULTS)


@pytest.fixture
def knobs(batch):
    """The embedded AWS's development calls; a real account has none."""
    if batch.local is None:
        pytest.skip("needs the embedded AWS")
    return batch.local
