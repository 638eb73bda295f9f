"""Synced packages from the client to the job's import.

Starts the local AWS emulator, because client, bucket and container each take part.

Slow, because jobs unpack packages. The refusal of changed packages runs in CI as well.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import boto3
import pytest

import farcall_local
from farcall import (
    PackagesMissingError,
)
from farcall.packages import installed
from tests.support.proxy import Proxy
from tests.support.wheels import make_wheel
from tests.unit.packages.test_installed import install

pytestmark = [pytest.mark.usefixtures("module_travels"), pytest.mark.slow]

ENTRY_POINTS = "[console_scripts]\ntravelled-tool = travelled:main\n"
FILES = {
    "travelled/__init__.py": "VERSION = '1.0'\ndef main():\n    print('ran', VERSION)\n",
    "travelled/data.txt": "data",
    "travelled.pth": "import sys; sys.travelled = True\n",
    "travelled-1.0.data/data/share/travelled/page": "page",
}


@pytest.fixture(scope="module")
def own_aws():
    with farcall_local.start() as aws:
        yield aws


@pytest.fixture
def aws(own_aws, monkeypatch, request):
    """Use this module's own emulator, with a separate prefix for each test."""
    for name, value in own_aws.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FARCALL_PREFIX", request.node.name.partition("[")[0])
    return own_aws


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Replace this interpreter's site folder, which takes long to pack, with an empty one."""
    site = tmp_path / "env" / installed.SITE
    site.mkdir(parents=True)
    scan = installed.scan
    monkeypatch.setattr(
        installed, "scan", lambda path=None: scan([str(site)] if path is None else path)
    )
    return site


def add(site: Path, *args: Any, **more: Any) -> None:
    install(site.parents[2], make_wheel(site.parents[3] / "wheels", *args, **more))


def stored() -> dict[str, Any]:
    """Return key to storage time and size of each package in the bucket."""
    bucket, prefix = os.environ["FARCALL_S3_BUCKET_NAME"], os.environ["FARCALL_PREFIX"]
    folder = f"{prefix}/v1/packages/"
    found = boto3.client("s3").list_objects_v2(Bucket=bucket, Prefix=folder).get("Contents", [])
    return {item["Key"]: (item["LastModified"], item["Size"]) for item in found}


def delete(key: str) -> None:
    boto3.client("s3").delete_object(Bucket=os.environ["FARCALL_S3_BUCKET_NAME"], Key=key)


def look() -> dict[str, Any]:
    """Return what a job sees of the synced package."""
    import subprocess
    import sys
    from importlib import metadata
    from importlib.resources import files
    from pathlib import Path

    import travelled

    tool = subprocess.run(["travelled-tool"], capture_output=True, text=True, check=True)
    return {
        "version": metadata.version("travelled"),
        "data": (files("travelled") / "data.txt").read_text(),
        "tool": tool.stdout.strip(),
        "pth": getattr(sys, "travelled", False),
        "page": (Path(travelled.__file__).parents[4] / "share/travelled/page").read_text(),
        "compiled": Path(travelled.__cached__).exists(),
    }


def version_of(name: str) -> str:
    from importlib import metadata

    return metadata.version(name)


SEEN = {
    "version": "1.0",
    "data": "data",
    "tool": "ran 1.0",
    "pth": True,
    "page": "page",
    "compiled": True,
}


async def test_listed_package_is_synced(make_executor, aws, index):
    index.add("travelled", files=FILES, entry_points=ENTRY_POINTS)
    async with make_executor(packages=["travelled"]) as executor:
        assert await executor.task(look)() == SEEN
        assert await executor.task(version_of).map(["travelled"] * 3) == ["1.0"] * 3


async def test_second_session_uploads_no_packages(make_executor, aws, site):
    add(site, "same")
    async with make_executor(packages="local") as executor:
        await executor.task(version_of)("same")
    first = stored()
    with Proxy(aws.endpoint_url) as proxy:
        async with make_executor(packages="local", endpoint_url=proxy.url) as executor:
            for _ in range(3):
                assert await executor.task(version_of)("same") == "1.0"
    assert stored() == first
    assert proxy.counts["s3 LIST packages"] == 1
    assert not proxy.counts["s3 PUT packages"]


async def test_deleted_package_is_uploaded_again(make_executor, aws, site):
    add(site, "same")
    async with make_executor(packages="local") as executor:
        assert await executor.task(version_of)("same") == "1.0"
        archive = max(stored(), key=lambda key: stored()[key][1])
        delete(archive)
        with pytest.raises(PackagesMissingError):
            await executor.task(version_of)("same")
        assert archive not in stored()
        assert await executor.task(version_of)("same") == "1.0"
        assert archive in stored()
