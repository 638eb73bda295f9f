"""Platform of the jobs: Linux, an architecture, and this Python's minor version."""

from __future__ import annotations

import functools
import platform
import sys
import sysconfig
from typing import NamedTuple

from packaging.requirements import Requirement

GLIBC = "2_36"
"""glibc version of Debian 12, the minimum for jobs' images. Few wheels need a newer version, and
an older one would exclude some wheels: numpy's require 2.27."""

_MACHINES = {"x86_64": "x86_64", "arm64": "aarch64"}


class Target(NamedTuple):
    """Platform of a job.

    Attributes:
        architecture: ``x86_64`` or ``arm64``.
        python: Minor version of Python, such as ``3.11``: this interpreter's.
    """

    architecture: str
    python: str = f"{sys.version_info.major}.{sys.version_info.minor}"

    @property
    def machine(self) -> str:
        """Linux's name of the architecture."""
        return _MACHINES[self.architecture]

    @property
    def platform(self) -> str:
        """Name of the platform for uv."""
        return f"{self.machine}-manylinux_{GLIBC}"

    @property
    def is_here(self) -> bool:
        """Whether code that is compiled for this interpreter runs on the platform."""
        return (
            sys.platform == "linux"
            and _libc() == "glibc"
            and platform.machine() == self.machine
            and sys.implementation.name == "cpython"
            and not sysconfig.get_config_var("Py_GIL_DISABLED")
        )

    def needs(self, requirement: Requirement, extra: str = "") -> bool:
        """Return whether a requirement's marker is true on the platform.

        Args:
            requirement: The requirement.
            extra: Requested extra of the distribution that has the requirement.
        """
        if requirement.marker is None:
            return True
        return requirement.marker.evaluate(
            {
                "implementation_name": "cpython",
                "implementation_version": platform.python_version(),
                "os_name": "posix",
                "platform_machine": self.machine,
                "platform_python_implementation": "CPython",
                "platform_release": "",
                "platform_system": "Linux",
                "platform_version": "",
                "python_full_version": platform.python_version(),
                "python_version": self.python,
                "sys_platform": "linux",
                "extra": extra,
            }
        )

    def __str__(self) -> str:
        return f"Linux on {self.architecture} with Python {self.python}"


@functools.cache
def _libc() -> str:
    return platform.libc_ver()[0]
