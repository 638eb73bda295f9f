"""Platform of the jobs: Linux on a processor, with this interpreter's minor version of Python."""

from __future__ import annotations

import functools
import platform
import sys
import sysconfig
from typing import NamedTuple

from packaging.requirements import Requirement

GLIBC = "2_36"
"""glibc of Debian 12, which the images of jobs have at least. Wheels for newer ones are hardly
made, and with an older one some would be missing: numpy's ask for 2.27."""

_MACHINES = {"x86_64": "x86_64", "arm64": "aarch64"}


class Target(NamedTuple):
    """What a job runs on.

    Attributes:
        architecture: ``x86_64`` or ``arm64``.
        python: Minor version of its Python, such as ``3.11``: this interpreter's.
    """

    architecture: str
    python: str = f"{sys.version_info.major}.{sys.version_info.minor}"

    @property
    def machine(self) -> str:
        """What Linux calls the processor."""
        return _MACHINES[self.architecture]

    @property
    def platform(self) -> str:
        """What uv calls it."""
        return f"{self.machine}-manylinux_{GLIBC}"

    @property
    def is_here(self) -> bool:
        """Whether what is compiled for this interpreter runs there."""
        return (
            sys.platform == "linux"
            and _libc() == "glibc"
            and platform.machine() == self.machine
            and sys.implementation.name == "cpython"
            and not sysconfig.get_config_var("Py_GIL_DISABLED")
        )

    def needs(self, requirement: Requirement, extra: str = "") -> bool:
        """Return whether a requirement's marker is true there.

        Args:
            requirement: The requirement.
            extra: Which extra of what requires it is wanted.
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
