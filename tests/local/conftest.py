"""The AWS under test: the local emulator, or with ``pytest tests/local --aws`` a real account.

A real account is configured with environment variables: FARCALL_TEST_AWS_QUEUE (an EC2 queue
without Spot instances, which do not run multi-node parallel jobs), FARCALL_TEST_AWS_IMAGE (any
image with a POSIX shell), and the usual AWS variables for credentials and region. Tests of the
emulator itself are skipped there.

Kubernetes works the same: ``pytest tests/local --kubeconfig FILE`` uses the namespace of that
file's context, and FARCALL_TEST_KUBERNETES_IMAGE names an image with a POSIX shell.
"""

from __future__ import annotations

import contextlib

import pytest

from farcall_local import start
from tests import emulators
from tests.local.account import Account
from tests.local.cluster import Cluster

#: Options to which `Account.tune` is reset after each test.
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
    """The account; its options are reset after the test."""
    yield account
    account.tune(**DEFAULTS)


@pytest.fixture
def knobs(batch):
    """The local AWS emulator's development calls; skips the test on a real account."""
    if batch.local is None:
        pytest.skip("needs the local AWS emulator")
    return batch.local


@pytest.fixture(scope="session")
def any_cluster(pytestconfig):
    kubeconfig = pytestconfig.getoption("--kubeconfig")
    if kubeconfig:
        with contextlib.closing(Cluster(kubeconfig)) as real:
            yield real
        return
    with (
        emulators.start(cpus=8, kubernetes=True) as local,
        contextlib.closing(Cluster(local.environment["KUBECONFIG"], local)) as embedded,
    ):
        yield embedded


@pytest.fixture
def cluster(any_cluster):
    """The local Kubernetes emulator, or with ``--kubeconfig`` a real cluster."""
    return any_cluster


@pytest.fixture
def gate(cluster, tmp_path):
    """A shell command that waits, and a function that ends it; a real cluster waits 30 s."""
    if cluster.local is None:
        yield "sleep 30", lambda: None
        return
    marker = tmp_path / "open"
    yield f"until [ -e {marker} ]; do sleep 0.03; done", marker.touch
    marker.touch()
