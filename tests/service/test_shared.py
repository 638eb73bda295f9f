"""Shared values of several calls and clients.

Starts the local AWS emulator, because values are stored once and deleted after their last use.
"""

from __future__ import annotations

import itertools
import os
import pickle
from typing import Any

import boto3
import numpy as np
import pytest

from farcall.payload.sources import Archive


def stored() -> list[str]:
    """Return the keys of shared values."""
    pages = boto3.client("s3").get_paginator("list_objects_v2")
    bucket = os.environ["FARCALL_S3_BUCKET_NAME"]
    found = (
        each["Key"] for page in pages.paginate(Bucket=bucket) for each in page.get("Contents", [])
    )
    return [key for key in found if "/shared/" in key]


@pytest.fixture
def array():
    """An array that no other test uses."""
    return np.frombuffer(os.urandom(2 * 1024 * 1024), np.uint8)


@pytest.fixture(autouse=True)
def before(aws):
    """Return the keys that other tests have left."""
    return stored()


def total(array: Any, factor: int = 1) -> int:
    return int(array.sum()) * factor


async def test_small_project_archive_is_shared(executor):
    archive = Archive(os.urandom(Archive.LEAST_BYTES))
    assert await executor.task(len)(pickle.PickleBuffer(archive)) == len(archive)


@pytest.mark.core
async def test_array_is_stored_once(make_executor, array, before):
    expected = int(array.sum())
    closed_over = {"array": array}
    async with make_executor() as executor:
        task = executor.task(total)
        for _ in range(2):
            assert await task.map(itertools.repeat(array), range(3)) == [0, expected, 2 * expected]
        assert await task(array.copy()) == expected  # equal bytes are the same value
        by_closure = await executor.submit(lambda: int(closed_over["array"].sum()))
        assert await by_closure.result() == expected
        shared = await executor.put([array, "and more"])
        assert await executor.task(lambda pair: int(pair[0].sum()))(shared) == expected
        assert len(set(stored()) - set(before)) == 1
    assert set(stored()) <= set(before)
