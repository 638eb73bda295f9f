"""Emulated AWS services that farcall needs only in tests.

`start` adds them to `farcall_local`: CloudFormation, IAM permissions, EC2, ECR.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from farcall_local.launch import LocalAWS, spawn

ROOT = Path(__file__).parents[2]


class TestAWS(LocalAWS):
    """The local AWS emulator with the extension `tests.emulators.account`."""

    __test__ = False

    def resources(self) -> dict[str, list[str]]:
        """Return the names of the account's resources, by kind such as ``buckets``.

        Kinds without resources are omitted, as are resources that AWS creates in every account,
        such as the default network, deleted stacks and deregistered job definitions.
        """
        found: dict[str, list[str]] = self._call("resources", {})
        return found

    def set_registry(self, host: str) -> None:
        """Set the registry for which ECR returns a password, as ``host:port``; empty for none."""
        self._call("registry", {"host": host})


def start(*, enforce_iam: bool = False, empty: bool = False, **options: Any) -> TestAWS:
    """Start the local AWS emulator with the services of this package.

    Args:
        enforce_iam: Whether IAM policies are enforced. The key in the environment is the root
            user's, which has all permissions.
        empty: Whether the account starts without bucket, queue, roles and log groups.
        options: Other options of `farcall_local.start`.
    """
    extension = {
        "name": "tests.emulators.account:Account",
        "options": {"enforces_permissions": enforce_iam, "is_empty": empty},
    }
    found = spawn({**options, "extension": extension}, paths=[str(ROOT)])
    return TestAWS(*found)
