"""Emulated AWS services that farcall needs in tests and does not ship.

`start` adds them to `farcall_local`: CloudFormation, IAM permissions, EC2, ECR.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from farcall_local.launch import LocalAWS, spawn

ROOT = Path(__file__).parents[2]


class TestAWS(LocalAWS):
    """The local AWS emulator with what `tests.emulators.account` adds."""

    __test__ = False

    def resources(self) -> dict[str, list[str]]:
        """Return the names of what is in the account, by kind such as ``buckets``.

        Kinds of which nothing exists are left out. So is what AWS puts into every account, such
        as its network, and what no longer exists: deleted stacks, deregistered definitions.
        """
        found: dict[str, list[str]] = self._call("resources", {})
        return found

    def set_registry(self, host: str) -> None:
        """Name the registry for which ECR gives a password, as ``host:port``; empty for none."""
        self._call("registry", {"host": host})


def start(*, enforce_iam: bool = False, empty: bool = False, **options: Any) -> TestAWS:
    """Start the local AWS emulator with the services of this package.

    Args:
        enforce_iam: Whether the policies of IAM are enforced. The key in the environment is the
            root user's, who may do everything.
        empty: Whether the account begins without bucket, queue, roles and log groups.
        options: Others of `farcall_local.start`.
    """
    extension = {
        "name": "tests.emulators.account:Account",
        "options": {"enforces_permissions": enforce_iam, "is_empty": empty},
    }
    found = spawn({**options, "extension": extension}, paths=[str(ROOT)])
    return TestAWS(*found)
