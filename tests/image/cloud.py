"""The local AWS emulator with containers for jobs, and executors on it."""

from __future__ import annotations

from typing import Any

import pytest

from farcall import BatchExecutor
from tests import emulators
from tests.local.account import Account
from tests.local.conftest import DEFAULTS
from tests.support.proxy import Proxy


@pytest.fixture(scope="session")
def embedded(image):
    with emulators.start(cpus=4, docker=True) as aws:
        yield aws


@pytest.fixture
def knobs(embedded):
    """The local AWS emulator's development calls; its options are reset after the test."""
    yield embedded
    embedded.configure(**DEFAULTS, credential_lifetime_s=6 * 3600.0)


@pytest.fixture(scope="session")
def account(embedded, base_image):
    opened = Account(embedded, base_image)
    yield opened
    opened.close()


@pytest.fixture
def batch(account, knobs):
    """Batch clients; jobs run in the base image, which has a shell."""
    return account


@pytest.fixture
def aws(knobs, image, monkeypatch):
    """Use the local AWS emulator via the environment; jobs run in farcall's image."""
    for name, value in knobs.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FARCALL_IMAGE", image)
    return knobs


@pytest.fixture
def options(aws):
    """Options of small jobs without retries and with a short linger time."""
    return {"vcpu": 1, "memory": 0.5, "retry_attempts": 1, "linger_s": 0.02}


@pytest.fixture
def make_executor(options):
    """Return a function that creates executors with additional containerProperties."""

    def make(container: dict[str, Any] | None = None, **more: Any) -> BatchExecutor:
        if container:
            more["job_definition_extra"] = {"containerProperties": container}
        return BatchExecutor(**{**options, **more})

    return make


@pytest.fixture
def proxy(aws):
    """A proxy between the containers and S3, used with `through`."""
    with Proxy(aws.endpoint_url) as running:
        yield running


def through(proxy: Proxy) -> dict[str, Any]:
    """Return containerProperties that route a container's S3 requests through a proxy."""
    return {"environment": [{"name": "AWS_ENDPOINT_URL_S3", "value": proxy.url}]}
