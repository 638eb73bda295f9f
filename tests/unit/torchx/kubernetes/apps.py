"""TorchX apps for tests, and their Kubernetes documents."""

from __future__ import annotations

import json
from typing import Any

from torchx.specs import AppDef

from farcall.backends.kubernetes.documents import KubernetesJob
from farcall.engine.launcher import command_of
from farcall.torchx.kubernetes.mapping import job_of
from farcall.torchx.kubernetes.options import KubernetesOptions
from farcall.torchx.kubernetes.request import KubernetesRequest, of_documents
from farcall.torchx.roles import Planned


def planned(of: AppDef, **options: Any) -> Planned[KubernetesOptions]:
    """Return an app as a job."""
    return job_of(of, KubernetesOptions(**options), name="hello-1")


def request(of: AppDef, **options: Any) -> KubernetesRequest:
    """Return the request of an app."""
    found = planned(of, **options)
    spec = command_of(found.settings, found.groups, found.name, "run-1")
    return of_documents(found, json.loads(json.dumps(KubernetesJob(spec).objects())))


def templates(request: KubernetesRequest) -> list[dict[str, Any]]:
    """Return the pod templates of a request."""
    found = []
    for each in request.objects:
        spec = each["spec"]
        found += [spec["template"]] if "template" in spec else []
        found += [task["template"] for task in spec.get("tasks", ())]
    return found


def container(template: dict[str, Any]) -> dict[str, Any]:
    """Return the container that runs the role."""
    [found] = [each for each in template["spec"]["containers"] if each["name"] == "task"]
    return found


def env(template: dict[str, Any]) -> dict[str, Any]:
    """Return the variables of a template by name."""
    return {each["name"]: each.get("value", each) for each in container(template)["env"]}
