"""Rules that the Kubernetes API server checks of Jobs.

Sources:
    https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/
    https://github.com/kubernetes/kubernetes, pkg/apis/batch/validation/validation.go
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from farcall_local.kubernetes import causes, pod_validation
from farcall_local.kubernetes.errors import Cause
from farcall_local.kubernetes.syntax import annotation_names, label_name, labels

Document = dict[str, Any]

MAX_PARALLELISM = 100_000
#: Completions above which failures of indexes have to be limited, and that limit.
MANY_COMPLETIONS = 100_000
MAX_FAILED_INDEXES = 10_000
MAX_RULES = 20
MAX_PATTERNS = 20
MAX_EXIT_CODES = 255

_MODES = ("Indexed", "NonIndexed")
_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_REPLACEMENTS = ("Failed", "TerminatingOrFailed")
_MANY = (
    "must be less than or equal to 10000 when completions are above 100000 and used with backoff "
    "limit per index"
)
#: Of a template: what may be changed while the Job is suspended.
_SCHEDULING = ("nodeSelector", "affinity", "tolerations", "schedulingGates")
_NUMBERS = (
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "backoffLimitPerIndex",
    "maxFailedIndexes",
    "ttlSecondsAfterFinished",
)


def check(job: Document) -> list[Cause]:
    """Return what is wrong with a Job."""
    spec = job["spec"]
    return [
        *_host_names(job),
        *causes.at_least_zero(spec, "spec", *_NUMBERS),
        *causes.one_of(spec, "spec", "completionMode", _MODES),
        *_indexes(spec),
        *_limits_per_index(spec),
        *_many_completions(spec),
        *_failure_policy(spec),
        *_success_policy(spec),
        *_template(spec),
    ]


def changed(job: Document, there: Document) -> list[Cause]:
    """Return what is wrong with the changes of a Job."""
    spec, old = job["spec"], there["spec"]
    found = [
        causes.immutable(f"spec.{name}", spec.get(name))
        for name in (
            "selector",
            "completionMode",
            "podFailurePolicy",
            "backoffLimitPerIndex",
            "managedBy",
            "successPolicy",
        )
        if spec.get(name) != old.get(name)
    ]
    return [*found, *_completions_change(spec, old), *_template_change(spec, there)]


def _completions_change(spec: Document, old: Document) -> Iterator[Cause]:
    if spec.get("completions") == old.get("completions"):
        return
    if old.get("completionMode") != "Indexed" or spec.get("completions") is None:
        yield causes.immutable("spec.completions", spec.get("completions"))
    elif spec["completions"] != spec["parallelism"]:
        why = "can only be modified in tandem with parallelism"
        yield causes.invalid("spec.completions", spec["completions"], why)


def _template_change(spec: Document, there: Document) -> Iterator[Cause]:
    old = there["spec"]
    if spec["template"] == old["template"]:
        return
    waits = old.get("suspend") and not (there.get("status") or {}).get("startTime")
    if not waits or _fixed(spec["template"]) != _fixed(old["template"]):
        yield causes.immutable("spec.template", spec["template"])


def _fixed(template: Document) -> Document:
    """Return what of a template may not be changed either while its Job is suspended."""
    spec = {name: value for name, value in template["spec"].items() if name not in _SCHEDULING}
    spec["containers"] = [{**each, "resources": {}} for each in spec.get("containers", ())]
    return spec


def _host_names(job: Document) -> Iterator[Cause]:
    """Check that the name of the last index's pod can be that of a host."""
    spec, name = job["spec"], job["metadata"].get("name", "")
    if spec.get("completionMode") == "Indexed" and spec.get("completions", 0) > 0:
        last = f"{name}-{spec['completions'] - 1}"
        if label_name(last, "metadata.name"):
            why = f"will not able to create pod with invalid DNS label: {last}"
            yield causes.invalid("metadata.name", name, why)


def _indexes(spec: Document) -> Iterator[Cause]:
    if spec.get("completionMode") != "Indexed":
        return
    if "completions" not in spec:
        yield causes.required("spec.completions", "when completion mode is Indexed")
    if spec["parallelism"] > MAX_PARALLELISM:
        why = f"must be less than or equal to {MAX_PARALLELISM} when completion mode is Indexed"
        yield causes.invalid("spec.parallelism", spec["parallelism"], why)


def _limits_per_index(spec: Document) -> Iterator[Cause]:
    limit, most = spec.get("backoffLimitPerIndex"), spec.get("maxFailedIndexes")
    if limit is not None and spec.get("completionMode") != "Indexed":
        why = "requires indexed completion mode"
        yield causes.invalid("spec.backoffLimitPerIndex", limit, why)
    if most is None:
        return
    if limit is None:
        yield causes.required("spec.backoffLimitPerIndex", "when maxFailedIndexes is specified")
    if most > spec.get("completions", most):
        why = "must be less than or equal to completions"
        yield causes.invalid("spec.maxFailedIndexes", most, why)


def _many_completions(spec: Document) -> Iterator[Cause]:
    if spec.get("completions", 0) <= MANY_COMPLETIONS or "backoffLimitPerIndex" not in spec:
        return
    most = spec.get("maxFailedIndexes")
    if most is None:
        why = f"must be specified when completions is above {MANY_COMPLETIONS}"
        yield causes.required("spec.maxFailedIndexes", why)
    elif most > MAX_FAILED_INDEXES:
        yield causes.invalid("spec.maxFailedIndexes", most, _MANY)
    if spec["parallelism"] > MAX_FAILED_INDEXES:
        yield causes.invalid("spec.parallelism", spec["parallelism"], _MANY)


def _failure_policy(spec: Document) -> Iterator[Cause]:
    policy, replacement = spec.get("podFailurePolicy"), spec.get("podReplacementPolicy")
    known = _REPLACEMENTS if policy is None else ("Failed",)
    if replacement is not None and replacement not in known:
        yield causes.unsupported("spec.podReplacementPolicy", replacement, known)
    if policy is None:
        return
    path, rules = "spec.podFailurePolicy.rules", policy.get("rules", [])
    if len(rules) > MAX_RULES:
        yield causes.too_many(path, len(rules), MAX_RULES)
    template = spec.get("template", {}).get("spec", {})
    names = [
        each.get("name")
        for field in ("containers", "initContainers")
        for each in template.get(field, ())
    ]
    for at, rule in enumerate(rules):
        yield from _rule(rule, f"{path}[{at}]", spec, names)


def _rule(rule: Document, path: str, spec: Document, names: list[Any]) -> Iterator[Cause]:
    action = rule.get("action", "")
    if not action:
        yield causes.required(f"{path}.action", f"valid values: {_listed(_ACTIONS)}")
    elif action == "FailIndex" and "backoffLimitPerIndex" not in spec:
        why = "requires the backoffLimitPerIndex to be set"
        yield causes.invalid(f"{path}.action", action, why)
    yield from causes.one_of(rule, path, "action", _ACTIONS)
    codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions")
    if codes is not None:
        yield from _exit_codes(codes, f"{path}.onExitCodes", names)
    if conditions:
        yield from _conditions(conditions, f"{path}.onPodConditions")
    if codes is not None and conditions:
        why = "specifying both OnExitCodes and OnPodConditions is not supported"
        yield Cause("FieldValueInvalid", f"Invalid value: {why}", path)
    if codes is None and not conditions:
        why = "specifying one of OnExitCodes and OnPodConditions is required"
        yield Cause("FieldValueInvalid", f"Invalid value: {why}", path)


def _exit_codes(codes: Document, path: str, names: list[Any]) -> Iterator[Cause]:
    operator, values = codes.get("operator", ""), codes.get("values", [])
    if not operator:
        yield causes.required(f"{path}.operator", f"valid values: {_listed(('In', 'NotIn'))}")
    elif operator not in ("In", "NotIn"):
        yield causes.unsupported(f"{path}.operator", operator, ("In", "NotIn"))
    name = codes.get("containerName")
    if name is not None and name not in names:
        why = "must be one of the container or initContainer names in the pod template"
        yield causes.invalid(f"{path}.containerName", name, why)
    yield from _values(values, operator, f"{path}.values")


def _values(values: list[int], operator: str, where: str) -> Iterator[Cause]:
    if not values:
        yield causes.invalid(where, values, "at least one value is required")
    if len(values) > MAX_EXIT_CODES:
        yield causes.too_many(where, len(values), MAX_EXIT_CODES)
    for at, value in enumerate(values):
        if value == 0 and operator == "In":
            yield causes.invalid(f"{where}[{at}]", value, "must not be 0 for the In operator")
        if value in values[:at]:
            yield causes.duplicate(f"{where}[{at}]", value)
    if values != sorted(values):
        yield causes.invalid(where, values, "must be ordered")


def _conditions(conditions: list[Document], path: str) -> Iterator[Cause]:
    if len(conditions) > MAX_PATTERNS:
        yield causes.too_many(path, len(conditions), MAX_PATTERNS)
    for at, each in enumerate(conditions):
        if not each.get("type"):
            yield causes.required(f"{path}[{at}].type")
        yield from causes.one_of(each, f"{path}[{at}]", "status", ("True", "False", "Unknown"))


def _success_policy(spec: Document) -> Iterator[Cause]:
    policy = spec.get("successPolicy")
    if policy is None:
        return
    if spec.get("completionMode") != "Indexed":
        why = "requires indexed completion mode"
        yield Cause("FieldValueInvalid", f"Invalid value: {why}", "spec.successPolicy")
    path, rules = "spec.successPolicy.rules", policy.get("rules", [])
    if not rules:
        why = "at least one rules must be specified when the successPolicy is specified"
        yield causes.required(path, why)
    if len(rules) > MAX_RULES:
        yield causes.too_many(path, len(rules), MAX_RULES)
    for at, rule in enumerate(rules):
        if not rule.keys() & {"succeededCount", "succeededIndexes"}:
            why = "must specify at least one of `succeededCount` or `succeededIndexes`"
            yield causes.required(f"{path}[{at}]", why)
        if rule.get("succeededCount", 1) < 1:
            why = "must be greater than or equal to 1"
            yield causes.invalid(f"{path}[{at}].succeededCount", rule["succeededCount"], why)


def _template(spec: Document) -> Iterator[Cause]:
    template = spec["template"]
    metadata, of, path = template.get("metadata", {}), template["spec"], "spec.template"
    yield from labels(metadata.get("labels", {}), f"{path}.metadata.labels")
    yield from annotation_names(metadata.get("annotations", {}), f"{path}.metadata.annotations")
    wanted = spec.get("selector", {}).get("matchLabels", {})
    if not wanted.items() <= metadata.get("labels", {}).items():
        why = "`selector` does not match template `labels`"
        yield causes.invalid(f"{path}.metadata.labels", metadata.get("labels", {}), why)
    yield from pod_validation.spec(of, f"{path}.spec")
    yield from _restarts(spec, of.get("restartPolicy"), f"{path}.spec.restartPolicy")


def _restarts(spec: Document, policy: str | None, path: str) -> Iterator[Cause]:
    if policy not in ("Never", "OnFailure"):
        yield causes.required(path, f"valid values: {_listed(('OnFailure', 'Never'))}")
    if "podFailurePolicy" in spec and policy != "Never":
        why = 'only "Never" is supported when podFailurePolicy is specified'
        yield causes.invalid(path, policy or "", why)


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(f'"{each}"' for each in values)
