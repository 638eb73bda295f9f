"""Emulated AWS services that farcall needs only in tests.

`start` adds them to `farcall_local`: CloudFormation, IAM permissions, EC2, ECR, Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from farcall_local.launch import LocalAWS, spawn

ROOT = Path(__file__).parents[2]


class KubernetesControls:
    """Development calls of the local Kubernetes emulator, such as ``evict("my-job")``.

    Each is a method of that name, described in `tests.emulators.kubernetes.cluster` or in
    `tests.emulators.kubernetes.server.Faults`.

    Args:
        send: Sends the document of a call to the server.
    """

    def __init__(self, send: Callable[[dict[str, Any]], Any]) -> None:
        self._send = send

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any, **options: Any) -> Any:
            return self._send({"call": name, "arguments": arguments, "options": options})

        return call


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

    @property
    def kubernetes(self) -> KubernetesControls:
        """Development calls of the Kubernetes emulator, if it was started."""
        return KubernetesControls(lambda document: self._call("kubernetes", document)["answer"])

    def set_registry(self, host: str) -> None:
        """Set the registry for which ECR returns a password, as ``host:port``; empty for none."""
        self._call("registry", {"host": host})


def start(
    *,
    enforce_iam: bool = False,
    empty: bool = False,
    kubernetes: bool = False,
    **options: Any,
) -> TestAWS:
    """Start the local AWS emulator with the services of this package.

    Args:
        enforce_iam: Whether IAM policies are enforced. The key in the environment is the root
            user's, which has all permissions.
        empty: Whether the account starts without bucket, queue, roles and log groups.
        kubernetes: Whether to start a Kubernetes emulator, whose pods share the processors with
            Batch's jobs. The environment then contains ``KUBECONFIG``, and selects Kubernetes.
        options: Other options of `farcall_local.start`.
    """
    extension = {
        "name": "tests.emulators.account:Account",
        "options": {
            "enforces_permissions": enforce_iam,
            "is_empty": empty,
            "has_kubernetes": kubernetes,
        },
    }
    found = spawn({**options, "extension": extension}, paths=[str(ROOT)])
    return TestAWS(*found)
