"""Archives of packages in a folder of the host, which tasks share and nobody believes."""

from __future__ import annotations

import os
import re

import pytest

from farcall import SettingsError
from farcall_runtime.contract import ENV_PACKAGES_FOLDER, PACKAGES, ExitCode
from tests.service.attempt import value_of
from tests.support.distributions import distribution, fact, manifest, stop_archives
from tests.support.patience import until
from tests.support.wheels import Index

pytestmark = pytest.mark.usefixtures("module_travels")

NAMES = [f"part{number}" for number in range(12)]


@pytest.fixture
def mounted(tmp_path):
    path = tmp_path / "host"
    path.mkdir()
    return path


@pytest.fixture
def home(tmp_path):
    made = tmp_path / "tmp"
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def distributions():
    return [distribution(name, {f"{name}.py": f"NAME = {name!r}"}) for name in NAMES]


@pytest.fixture
def start(attempt, distributions, mounted, home):
    """Return a function that starts a task with the packages on this host."""

    def task():
        import importlib

        return [importlib.import_module(f"part{number}").NAME for number in range(12)]

    def begin(changed=None):
        document = manifest(*distributions)
        made = attempt(task, facts={PACKAGES: fact(document)})
        made.put(made.where.package_key(fact(document)[0]), document)
        for each in distributions:
            made.put(made.where.package_key(each.sha256), each.data)
        if changed is not None:
            made.put(made.where.package_key(changed.sha256), bytes(len(changed.data)))
        told = {ENV_PACKAGES_FOLDER: str(mounted), "TMPDIR": str(home)}
        return made.start(environment=told)

    return begin


def end(made):
    code, stderr = made.end()
    assert code == 0, (stderr, made.outcome().meta)
    assert value_of(made.outcome()) == NAMES
    return stderr


def own(mounted):
    return mounted / str(os.geteuid())


def kept(mounted):
    return {each.name for each in own(mounted).iterdir()}


def test_the_second_task_on_a_host_fetches_no_archive(start, mounted, home, distributions, proxy):
    assert end(start()) == ""
    assert proxy.counts["s3 GET packages"] == 1 + len(NAMES)  # and the manifest
    assert kept(mounted) == {each.sha256 for each in distributions}
    assert end(start()) == ""
    assert proxy.counts["s3 GET packages"] == 2 + len(NAMES)
    assert [*home.iterdir()] == []


def test_tasks_that_start_together_fetch_each_archive_once(start, mounted, distributions, proxy):
    for made in [start() for _ in range(4)]:
        assert end(made) == ""
    assert proxy.counts["s3 GET packages"] == 4 + len(NAMES)
    assert kept(mounted) == {each.sha256 for each in distributions}


def test_what_was_changed_there_is_fetched_anew_and_said(start, mounted, distributions, proxy):
    end(start())
    wrong, short, link, gone = distributions[:4]
    folder = own(mounted)
    (folder / wrong.sha256).write_bytes(bytes(len(wrong.data)))
    (folder / short.sha256).write_bytes(b"")
    (folder / link.sha256).unlink()
    (folder / link.sha256).symlink_to("/etc/passwd")
    (folder / gone.sha256).unlink()
    proxy.counts.clear()
    said = end(start())
    assert "part0 1.0 in packages_host_folder was changed" in said
    assert proxy.counts["s3 GET packages"] == 1 + 4
    assert (folder / wrong.sha256).read_bytes() == wrong.data
    proxy.counts.clear()
    assert end(start()) == ""
    assert proxy.counts["s3 GET packages"] == 1


def test_a_task_that_is_killed_while_it_fetches_holds_nobody_up(
    start, mounted, distributions, proxy
):
    is_stopped = stop_archives(proxy, "hang")
    first = start()
    until(is_stopped)
    second = start()
    until(lambda: proxy.counts["s3 GET packages"] > 2)
    proxy.rule = lambda request: ""
    first.process.kill()
    first.end()
    end(second)
    assert kept(mounted) == {each.sha256 for each in distributions}


def test_what_was_changed_in_the_bucket_is_not_kept(start, mounted, distributions):
    bad = distributions[5]
    code, _ = start(changed=bad).end()
    assert ExitCode.INTEGRITY == code
    assert not {name for name in kept(mounted) if name.startswith(bad.sha256)}
    end(start())


def test_a_folder_that_cannot_be_used_is_said_and_the_task_runs(start, mounted, proxy):
    mounted.rmdir()
    said = end(start())
    assert re.search(r"packages_host_folder cannot be used \(.+No such file.+1777", said)
    assert proxy.counts["s3 GET packages"] == 1 + len(NAMES)


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


async def test_fargate_has_no_host(make_executor, index: Index):
    index.add("same")
    async with make_executor(
        packages=["same"],
        packages_host_folder="/var/cache/farcall",
        job_definition_extra={"platformCapabilities": ["FARGATE"]},
    ) as executor:
        with pytest.raises(SettingsError, match="packages_host_folder is .* on Fargate"):
            await executor.task(abs)(1)
