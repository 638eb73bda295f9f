import os
import platform
import sys

import pytest
from packaging.requirements import Requirement

from farcall.packages import target
from farcall.packages.target import Target

MACHINE = os.uname().machine
HERE = {"aarch64": "arm64"}.get(MACHINE, MACHINE)


def needs(marker, **options):
    return Target("arm64").needs(Requirement(f"a; {marker}"), **options)


def test_markers_are_evaluated_for_job_platform(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert needs("sys_platform == 'linux' and os_name == 'posix' and platform_system == 'Linux'")
    assert needs("platform_machine == 'aarch64'")
    assert not needs("sys_platform == 'win32'")
    assert not needs("platform_machine in 'x86_64 amd64'")
    minor = ".".join(map(str, sys.version_info[:2]))
    assert needs(f"python_version == '{minor}'")
    assert not needs("python_full_version < '3.11'")
    assert not needs("extra == 'x'")
    assert needs("extra == 'x'", extra="x")
    assert Target("x86_64").needs(Requirement("a"))


def test_uv_target_is_linux_of_image():
    assert Target("x86_64").platform == "x86_64-manylinux_2_36"
    assert Target("arm64").platform == "aarch64-manylinux_2_36"


@pytest.mark.skipif(sys.platform != "linux", reason="jobs run Linux")
def test_same_platform_requires_processor_and_system(monkeypatch):
    assert Target(HERE).is_here
    assert not Target({"x86_64": "arm64", "arm64": "x86_64"}[HERE]).is_here
    for module, name, value in (
        (sys, "platform", "darwin"),
        (platform, "machine", lambda: "riscv64"),
        (target, "_libc", lambda: ""),  # musl
        (target.sysconfig, "get_config_var", lambda _: 1),  # free-threaded Python
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert not Target(HERE).is_here
