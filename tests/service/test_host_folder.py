"""Package archives in a folder of the host.

Starts the local AWS emulator, because several containers of one array share the folder.
"""

from __future__ import annotations

import os

import pytest

from tests.support.wheels import Index

pytestmark = pytest.mark.usefixtures("module_travels")


@pytest.fixture
def mounted(tmp_path):
    path = tmp_path / "host"
    path.mkdir()
    return path


def own(mounted):
    return mounted / str(os.geteuid())


def kept(mounted):
    return {each.name for each in own(mounted).iterdir()}


async def test_an_array_s_children_on_one_host_fetch_each_archive_once(
    make_executor, proxy, mounted, index: Index
):
    def which(_):
        import os

        import travelled

        return travelled.VERSION, [name for name in os.environ if "PACKAGES" in name]

    index.add("travelled", files={"travelled.py": "VERSION = '1.0'"})
    index.add("same")
    told = [{"name": "AWS_ENDPOINT_URL", "value": proxy.url}]
    async with make_executor(
        packages=["travelled", "same"],
        packages_host_folder=str(mounted),
        job_definition_extra={"containerProperties": {"environment": told}},
    ) as executor:
        task = executor.task(which)
        assert await task.map(range(4)) == [("1.0", [])] * 4
        assert proxy.counts["s3 GET packages"] == 4 + 2  # a manifest each, and the archives
        assert await task(1) == ("1.0", [])
        assert proxy.counts["s3 GET packages"] == 5 + 2
    assert len(kept(mounted)) == 2
