"""An AWS to test: the embedded one, or with ``pytest tests/local --aws`` a real account.

A real account is described by environment variables: FARCALL_TEST_AWS_QUEUE (an EC2 queue, not of
Spot instances, on which multi-node parallel jobs do not run), FARCALL_TEST_AWS_IMAGE (any image
with a POSIX shell), and the usual AWS variables for credentials and region. Tests of the embedded
AWS itself are skipped there.

So it is with a Kubernetes: ``pytest tests/local --kubeconfig FILE`` takes the namespace of that
file's context, and FARCALL_TEST_KUBERNETES_IMAGE names an image with a POSIX shell.
"""

from __future__ import annotations

import contextlib

import pytest

from farcall_local import start
from tests.local.account import Account
from tests.local.cluster import Cluster

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
    """The local AWS emulator's development calls; a real account has none."""
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
        start(cpus=8, kubernetes=True) as local,
        contextlib.closing(Cluster(local.environment["KUBECONFIG"], local)) as embedded,
    ):
        yield embedded


@pytest.fixture
def cluster(any_cluster):
    """A Kubernetes: the embedded one, or with ``--kubeconfig`` a real one."""
    return any_cluster


@pytest.fixture
def hooks(cluster):
    """What the local Kubernetes emulator does on request; a real one has nothing of that."""
    if cluster.local is None:
        pytest.skip("needs the local Kubernetes emulator")
    return cluster.local.kubernetes


@pytest.fixture
def gate(cluster, tmp_path):
    """What a shell script waits with, and what ends that; on a real cluster it ends by itself."""
    if cluster.local is None:
        yield "sleep 30", lambda: None
        return
    marker = tmp_path / "open"
    yield f"until [ -e {marker} ]; do sleep 0.03; done", marker.touch
    marker.touch()
