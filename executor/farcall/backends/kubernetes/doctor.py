"""Health checks of a cluster: permissions, namespace, quota and named objects.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/authorization-resources/self-subject-access-review-v1/
    https://kubernetes.io/docs/concepts/policy/resource-quotas/
    https://kubernetes.io/releases/version-skew-policy/
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from farcall.backends.base import JobSpec
from farcall.backends.kubernetes import pod_template, quantities
from farcall.backends.kubernetes.client import Kube
from farcall.backends.kubernetes.documents import KubernetesJob
from farcall.backends.kubernetes.error_translation import KubeError
from farcall.backends.kubernetes.preflight import FORBIDDEN, NamedObject, get_object, named_objects
from farcall.config.settings import Settings
from farcall.model.findings import FAILED, NOT_CHECKED, OK, WARNING, Finding

LEAST_VERSION = (1, 33)
"""First version in which every cluster supports attempts per index of a Job."""


class Right(NamedTuple):
    """A permission that the submitting user needs.

    Attributes:
        group: API group; empty for the core group.
        resource: Such as ``pods``; with a slash for a subresource.
        verbs: The required verbs.
        lost: Consequence if it is missing; empty if jobs are impossible without it.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    lost: str = ""

    @property
    def name(self) -> str:
        """Name of the resource in Kubernetes's roles and refusals."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


def checks(
    kube: Kube, settings: Settings, *, answers: bool
) -> dict[str, Awaitable[Iterable[Finding]]]:
    """Return all checks of a cluster, by name.

    Args:
        kube: The API server.
        settings: The options.
        answers: Whether the server responds; if not, no request is made.
    """
    checks_by_name: dict[str, Awaitable[Iterable[Finding]]] = {
        "resources": check_resources(settings)
    }
    if answers:
        checks_by_name |= {
            "version": version(kube),
            "namespace": namespace(kube),
            "rights": rights(kube, settings),
            "quota": quota(kube, settings),
        }
        for name, each in _named(kube, settings).items():
            checks_by_name[name] = thing(kube, name, each)
    return checks_by_name


def wanted(settings: Settings) -> list[Right]:
    """Return the permissions that the options need in the jobs' namespace."""
    needed = [
        Right("batch", "jobs", ("create", "get", "list", "patch")),
        Right("batch", "jobs", ("watch",), "the status of jobs is polled"),
        Right("batch", "jobs", ("delete",), "jobs are only deleted by their ttl"),
        Right("", "pods", ("list",)),
        Right("", "pods", ("watch",), "how a deleted pod ended is not known"),
        Right("", "pods", ("delete",), "single tasks of a map cannot be cancelled"),
        Right("", "pods/log", ("get",), "a job's output is only read from the bucket"),
        Right("", "events", ("list",), "the reason is not reported if no pods can be created"),
    ]
    if settings.nodes > 1:
        needed.append(Right("", "services", ("create", "get"), "jobs on several nodes"))
    if settings.scheduler == "volcano":
        groups = "scheduling.volcano.sh"
        needed += [
            Right("batch.volcano.sh", "jobs", ("create", "get", "list"), "Volcano's own jobs"),
            Right(
                "bus.volcano.sh", "commands", ("create",), "Volcano's own jobs cannot be cancelled"
            ),
            Right(
                groups,
                "podgroups",
                ("list",),
                "the reason is not reported if Volcano makes a job wait",
            ),
        ]
    if settings.scheduler == "kueue":
        group = "kueue.x-k8s.io"
        needed.append(
            Right(
                group,
                "workloads",
                ("list",),
                "the reason is not reported if Kueue makes a job wait",
            )
        )
    return needed


async def check_resources(settings: Settings) -> list[Finding]:
    """Check that the options result in a valid pod."""
    job = JobSpec("farcall-doctor", 1, {}, settings)
    KubernetesJob(job, "image").objects()  # raises if they are invalid
    limits = pod_template.resources(settings)
    text = f"{limits['cpu']} CPU and {limits['memory']} of memory"
    text += f", {settings.num_gpus} GPU" if settings.num_gpus else ""
    return [Finding("resources", OK, f"{text}, as requests and as limits")]


async def version(kube: Kube) -> list[Finding]:
    """Check the server's version, and report missing features of older ones."""
    answer = await kube.request("GET", "/version")
    text = str(answer.get("gitVersion") or f"{answer.get('major')}.{answer.get('minor')}")
    numbers = re.match(r"v?(\d+)\.(\d+)", text)
    if numbers is None:
        return [Finding("version", WARNING, f"the server reports its version as {text!r}", "")]
    if (int(numbers[1]), int(numbers[2])) >= LEAST_VERSION:
        return [Finding("version", OK, f"Kubernetes {text}")]
    least = ".".join(map(str, LEAST_VERSION))
    return [
        Finding(
            "version",
            WARNING,
            f"Kubernetes {text}: before {least}, some clusters do not support attempts for "
            "each task of a map (JobBackoffLimitPerIndex) and may reject such a Job",
            f"update the cluster to {least} or later, or enable this feature gate",
        )
    ]


async def namespace(kube: Kube) -> list[Finding]:
    """Check that the namespace exists and is active."""
    try:
        described = await kube.request("GET", f"/api/v1/namespaces/{kube.namespace}")
    except KubeError as error:
        if error.status != FORBIDDEN:
            raise
        text = f"cannot check {kube.namespace}: permission to get namespaces is missing"
        return [Finding("namespace", NOT_CHECKED, text)]
    phase = (described.get("status") or {}).get("phase") or "Active"
    if phase != "Active":
        return [
            Finding(
                "namespace",
                FAILED,
                f"{kube.namespace} is {phase}: nothing can be created in it",
                "set namespace to another one, or create it again after it was deleted",
            )
        ]
    return [Finding("namespace", OK, f"{kube.namespace} in {kube.place}")]


async def rights(kube: Kube, settings: Settings) -> list[Finding]:
    """Check each permission; every user may check their own."""
    each = [(right, verb) for right in wanted(settings) for verb in right.verbs]
    allowed = await asyncio.gather(*(_may(kube, right, verb) for right, verb in each))
    lacking = [one for one, is_allowed in zip(each, allowed, strict=True) if not is_allowed]
    if not lacking:
        return [Finding("rights", OK, f"all {len(each)} permissions that the options require")]
    return [*_lacking(lacking, kube.namespace)]


def _lacking(lacking: list[tuple[Right, str]], where: str) -> Iterator[Finding]:
    for right in dict.fromkeys(right for right, _ in lacking):
        verbs = ", ".join(verb for one, verb in lacking if one is right)
        remedy = (
            f"add them to a Role in {where} for the submitting user, see "
            "`farcall policy kubernetes client`"
        )
        if right.lost:
            text = f"permission to {verbs} {right.name} is missing: {right.lost}"
            yield Finding("rights", WARNING, text, remedy)
        else:
            text = f"permission to {verbs} {right.name} is missing, without which no job can run"
            yield Finding("rights", FAILED, text, remedy)


async def _may(kube: Kube, right: Right, verb: str) -> bool:
    resource, _, part = right.resource.partition("/")
    attributes = {
        "namespace": kube.namespace,
        "group": right.group,
        "resource": resource,
        "subresource": part,
        "verb": verb,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {k: value for k, value in attributes.items() if value}},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = await kube.request("POST", path, body=body)
    return bool((answer.get("status") or {}).get("allowed"))


async def quota(kube: Kube, settings: Settings) -> list[Finding]:
    """Check whether a pod with these options fits into the namespace's quotas."""
    try:
        listed = await kube.request("GET", kube.path("resourcequotas"))
    except KubeError as error:
        if error.status != FORBIDDEN:
            raise
        text = "cannot list quotas: permission to list resourcequotas is missing"
        return [Finding("quota", NOT_CHECKED, text)]
    items = listed.get("items") or []
    if not items:
        return [Finding("quota", OK, f"{kube.namespace} has none")]
    return [_quota(item, settings) for item in items]


def _quota(item: Mapping[str, Any], settings: Settings) -> Finding:
    name = (item.get("metadata") or {}).get("name")
    status = item.get("status") or {}
    hard = status.get("hard") or (item.get("spec") or {}).get("hard") or {}
    used = status.get("used") or {}
    for resource, amount in _amounts(settings).items():
        if resource not in hard:
            continue
        limit, taken = quantities.quantity(hard[resource]), quantities.quantity(used.get(resource))
        said = f"{name}: {resource} {used.get(resource, 0)} of {hard[resource]} is used"
        if amount > limit:
            remedy = "request less (vcpu, memory, num_gpus), or ask for a higher quota"
            return Finding(
                "quota", FAILED, f"{said}, but one pod requests more than the quota", remedy
            )
        if amount > limit - taken:
            remedy = "wait for other jobs, request less, or ask for a higher quota"
            return Finding(
                "quota", WARNING, f"{said}, and a pod does not fit into the rest", remedy
            )
    return Finding("quota", OK, f"{name} has room for a pod")


def _amounts(settings: Settings) -> dict[str, float]:
    """Return one pod's share of a quota, by the quota's resource names."""
    amounts: dict[str, float] = {"pods": 1, "count/jobs.batch": 1}
    for name, value in pod_template.resources(settings).items():
        for key in (name, f"requests.{name}", f"limits.{name}"):
            amounts[key] = quantities.quantity(value)
    return amounts


def _named(kube: Kube, settings: Settings) -> dict[str, NamedObject]:
    """Return the objects that options name, by check."""
    objects = {each.option.replace("_", " "): each for each in named_objects(kube, settings)}
    if name := settings.s3_secret:
        objects["S3 secret"] = NamedObject(
            "s3_secret", name, kube.path("secrets", name), "secrets"
        )
    for name in settings.image_pull_secrets:
        path = kube.path("secrets", name)
        wanted = NamedObject("image_pull_secrets", name, path, "secrets")
        objects[f"image pull secret {name}"] = wanted
    return objects


async def thing(kube: Kube, check: str, wanted: NamedObject) -> list[Finding]:
    """Check that the object that an option names exists.

    Raises:
        SettingsError: It does not exist.
        KubeError: The server refused for another reason.
    """
    name = wanted.name
    existing = await get_object(kube, wanted)
    if existing is None:
        text = f"cannot check {name}: permission to get {wanted.kind} is missing"
        return [Finding(check, NOT_CHECKED, text)]
    is_secret = wanted.option == "s3_secret"
    return [_secret(check, name, existing) if is_secret else Finding(check, OK, name)]


def _secret(check: str, name: str, secret: Mapping[str, Any]) -> Finding:
    """Check that the Secret has the two keys; its values are not read."""
    there = {*(secret.get("data") or ()), *(secret.get("stringData") or ())}
    lacking = [key for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") if key not in there]
    if not lacking:
        return Finding(check, OK, f"{name} with {len(there)} variables")
    text = f"{name} has no {' and no '.join(lacking)}, so it gives pods no keys"
    return Finding(
        check, WARNING, text, "add them, unless the pods get permissions in another way"
    )
