"""Kubernetes documents of an app, for dry runs and submission."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from farcall.config.settings import Settings
from farcall.model.commands import ENV_RUN
from farcall.torchx.kubernetes.documents import amend, containers, marked, plain
from farcall.torchx.kubernetes.options import KubernetesOptions
from farcall.torchx.request import Request, chosen
from farcall.torchx.roles import Planned

SUBMISSION_OPTIONS = (
    *("kubeconfig", "context", "namespace", "scheduler", "queue"),
    *("region", "s3_bucket_name", "s3_secret", "service_account"),
)
_NAMESPACE = "default"
_RUN_LABEL = "farcall/run"


@dataclass
class KubernetesRequest(Request):
    """Submission, which may be edited before it is sent.

    Attributes:
        objects: The documents in the order of their creation. The last one is the job and has the
            job's name.
        validate: Whether the API server checks all documents before any object is created.
    """

    objects: list[dict[str, Any]]
    validate: bool = True

    @property
    def name(self) -> str:
        """Name of the job, unique in its namespace."""
        return str(self.objects[-1]["metadata"]["name"])

    @name.setter
    def name(self, name: str) -> None:
        # Host names and labels contain it.
        self.objects[:] = json.loads(
            json.dumps(self.objects).replace(json.dumps(self.name)[1:-1], json.dumps(name)[1:-1])
        )

    @property
    def namespace(self) -> str:
        """Namespace of the job."""
        given = self.objects[-1]["metadata"].get("namespace")
        return str(given or self.options.get("namespace") or _NAMESPACE)

    @namespace.setter
    def namespace(self, namespace: str) -> None:
        for each in self.objects:
            each["metadata"]["namespace"] = namespace

    @property
    def app_id(self) -> str:
        """The app's ID in TorchX's handles: ``namespace:name``."""
        return f"{self.namespace}:{self.name}"

    @property
    def requests(self) -> dict[str, Any]:
        """The documents in the format of `farcall.backends.base.Backend.plan`."""
        return {"objects": self.objects}

    def settings(self) -> Settings:
        """Return the settings for the submission.

        Raises:
            SettingsError: A setting is wrong.
        """
        return Settings(**{**self.options, "namespace": self.namespace})

    def commands(self) -> Iterator[list[str]]:
        """Yield the nodes' commands with single dollar signs.

        Changes to a command are written back when the next command is requested.
        """
        for document in self.objects:
            for container in containers(document):
                for field in ("command", "args"):
                    yield from _edited(container, field)

    def __str__(self) -> str:
        return str(yaml.dump_all(self.objects, sort_keys=False))


def _edited(container: dict[str, Any], field: str) -> Iterator[list[str]]:
    given = [plain(part) for part in container.get(field, ())]
    if not given:
        return
    edited = list(given)
    yield edited
    if edited != given:
        container[field] = [marked(part) for part in edited]


def of_documents(
    planned: Planned[KubernetesOptions], documents: list[dict[str, Any]]
) -> KubernetesRequest:
    """Return an app's request with all fields that its roles set.

    Args:
        planned: The app.
        documents: The documents of the app's node groups; they are changed in place.

    Raises:
        SettingsError: A role's overlay cannot be merged.
    """
    amend(documents, planned)
    for document in documents:
        _leave_out_run(document)
    options = chosen(planned.settings, SUBMISSION_OPTIONS)
    return KubernetesRequest(documents, planned.options.validate_spec, options=options)


def _leave_out_run(document: dict[str, Any]) -> None:
    """Remove the submitting session, which is not known yet."""
    spec = document.get("spec", {})
    templates = [each["template"] for each in (spec, *spec.get("tasks", ())) if "template" in each]
    for each in (document, *templates):
        each.get("metadata", {}).get("labels", {}).pop(_RUN_LABEL, None)
    for container in containers(document):
        container["env"] = [each for each in container["env"] if each["name"] != ENV_RUN]
