"""Documents of an app: what a dry run shows, and what is submitted, also after an edit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from farcall.model.commands import ENV_RUN
from farcall.model.settings import Settings
from farcall.torchx.kubernetes.mapping import Planned, amend, containers, marked, plain
from farcall.torchx.kubernetes.options import KubernetesOptions
from farcall.torchx.request import Request, chosen, write

_HOW = (
    *("kubeconfig", "context", "namespace", "scheduler", "queue"),
    *("region", "s3_bucket_name", "s3_secret", "service_account"),
)
_NAMESPACE = "default"
_RUN_LABEL = "farcall/run"


@dataclass
class KubernetesRequest(Request):
    """What is submitted. All of it may be edited before.

    Attributes:
        objects: The documents, in the order in which they are made. The last one is the job's,
            and bears its name.
        validate: Whether the API server checks all of them before any is made.
    """

    objects: list[dict[str, Any]]
    validate: bool = True

    @property
    def name(self) -> str:
        """Name of the job, which no other job of its namespace may have."""
        return str(self.objects[-1]["metadata"]["name"])

    @name.setter
    def name(self, name: str) -> None:
        # Host names and labels are made of it.
        self.objects[:] = json.loads(
            json.dumps(self.objects).replace(json.dumps(self.name)[1:-1], json.dumps(name)[1:-1])
        )

    @property
    def namespace(self) -> str:
        """Namespace of the job."""
        found = self.objects[-1]["metadata"].get("namespace")
        return str(found or self.options.get("namespace") or _NAMESPACE)

    @namespace.setter
    def namespace(self, namespace: str) -> None:
        for each in self.objects:
            each["metadata"]["namespace"] = namespace

    @property
    def app_id(self) -> str:
        """What TorchX's handles call the app: ``namespace:name``."""
        return f"{self.namespace}:{self.name}"

    @property
    def requests(self) -> dict[str, Any]:
        """The documents, as `farcall.backends.base.Backend.plan` gives them."""
        return {"objects": self.objects}

    def settings(self) -> Settings:
        """Return the settings to submit with.

        Raises:
            SettingsError: One is wrong.
        """
        return Settings(**{**self.options, "namespace": self.namespace})

    def commands(self) -> Iterator[list[str]]:
        """Yield the commands of the nodes, as they are meant: dollar signs stand once.

        What was changed in one is written back when the next is asked for.
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


async def plan(planned: Planned) -> KubernetesRequest:
    """Write the documents of an app. No cluster is asked for anything.

    Raises:
        SettingsError: Kubernetes would refuse the job.
        TaskTooLargeError: Commands and variables exceed a limit.
    """
    settings = planned.settings
    with KubernetesOptions.in_words():
        found = await write(planned.name, planned.groups, settings)
    return of_documents(planned, found["objects"])


def of_documents(planned: Planned, documents: list[dict[str, Any]]) -> KubernetesRequest:
    """Return the request of an app, with all that its roles ask for.

    Args:
        planned: The app.
        documents: What its groups of nodes make; they are changed.

    Raises:
        SettingsError: A role's overlay cannot be merged.
    """
    amend(documents, planned)
    for document in documents:
        _leave_out_run(document)
    options = chosen(planned.settings, _HOW)
    return KubernetesRequest(documents, planned.validate, options=options)


def read_back(requests: dict[str, Any], settings: Settings) -> KubernetesRequest:
    """Return the request that would submit an app which there is."""
    return KubernetesRequest(requests["objects"], options=chosen(settings, _HOW))


def _leave_out_run(document: dict[str, Any]) -> None:
    """Take out who submits, which nobody knows yet."""
    spec = document.get("spec", {})
    templates = [each["template"] for each in (spec, *spec.get("tasks", ())) if "template" in each]
    for each in (document, *templates):
        each.get("metadata", {}).get("labels", {}).pop(_RUN_LABEL, None)
    for container in containers(document):
        container["env"] = [each for each in container["env"] if each["name"] != ENV_RUN]
