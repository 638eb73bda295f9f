"""Documents of TorchX's own Kubernetes scheduler and of farcall for the same apps.

Starts nothing. The documents may differ only where ``DIFFERENCES`` lists it.
"""

from __future__ import annotations

import json
import warnings
from fnmatch import fnmatchcase

import pytest
from torchx.schedulers.kubernetes_scheduler import app_to_resource, sanitize_for_serialization
from torchx.specs import BindMount, DeviceMount, Resource, VolumeMount, macros
from torchx.specs.overlays import set_overlay

from tests.unit.torchx.kubernetes.apps import app, request, role

ITYPE = "node.kubernetes.io/instance-type"
EFA = "vpc.amazonaws.com/efa"

DIFFERENCES = {
    # --- of the job
    "metadata.labels.*": "farcall finds its jobs by labels",
    "metadata.annotations.*": "the tags, the wanted name",
    "spec.ttlSecondsAfterFinished": "ended jobs are deleted after a day, and not never",
    "spec.minAvailable": "as Volcano fills it in: all that are needed",
    "spec.maxRetry": "0 would be 3 by Volcano's admission; of several roles the most count, for "
    "the job is what is retried",
    "spec.policies": "the whole job is started again, also where a role's own policy has no "
    "event; what ran out of memory is not",
    # --- of a task
    "task.name": "by the node's number: a role's name need not be a label of DNS",
    "task.maxRetry": "the job is retried as a whole",
    "task.policies": "of the main node alone: with its end the job is complete",
    "task.minAvailable": "as Volcano fills it in",
    # --- of a pod
    "labels.app.kubernetes.io/managed-by": "who made it",
    "labels.farcall/*": "farcall finds its pods by labels",
    "annotations.scheduling.volcano.sh/*": "the queue, also for pods that are no task of a job",
    "spec.schedulerName": "as Volcano's controller fills it in",
    "spec.enableServiceLinks": "no variable for each service of the namespace",
    "spec.automountServiceAccountToken": "no token where no account is named",
    "spec.priorityClassName": "of each pod, by which the scheduler orders them",
    # --- of a container
    "container.name": "the same in each pod, so that logs are found",
    "env.FARCALL_*": "what farcall's jobs know of themselves",
    "env.TORCHX_ROLE_*": "as of TorchX's aws_batch: whose pod it is",
    "env.TORCHX_RANK0_HOST.*": "each replica has it, with the main node's name; it was the main "
    "one's alone",
    "command": "the main node's address is TORCHX_RANK0_HOST for all, and VC_..._HOSTS of none; "
    "dollar signs are doubled, which Kubernetes takes for one",
    "resources.limits.memory": "MiB, which is what other schedulers of TorchX take memMB for",
    "resources.limits.cpu": "the same, otherwise written; 0 is 1",
    "resources.requests.memory": "MiB; a role that is no whole node requests its limit, and never "
    "0; half of the limit is requested at least",
    "resources.requests.cpu": "likewise",
    f"resources.requests.{EFA}": "as the API server fills it in from the limit",
    "mounts./dev/shm": "as large as the role's memory, which it counts to anyway",
}
"""Where documents differ, and why."""


def lean(document):
    """Return a document without what is empty."""
    if isinstance(document, dict):
        found = {key: lean(value) for key, value in document.items()}
        return {key: value for key, value in found.items() if value not in (None, {}, [])}
    return document


def flat(prefix, document):
    """Yield what a document says, by path."""
    if not isinstance(document, dict):
        yield prefix, json.dumps(document, sort_keys=True)
        return
    for key, value in document.items():
        yield from flat(f"{prefix}.{key}" if prefix else key, value)


def told(task):
    """Return what a task's pod is told, by words that do not depend on the names of volumes."""
    template = task["template"]
    spec = dict(template["spec"])
    [container] = spec.pop("containers")
    sources = {each.pop("name"): each for each in spec.pop("volumes", ())}
    container = dict(container)
    mounts = {
        each["mountPath"]: [sources[each["name"]], each.get("readOnly", False)]
        for each in container.pop("volumeMounts", ())
    }
    return dict(
        flat(
            "",
            lean(
                {
                    "task": {key: task[key] for key in task.keys() - {"template"}},
                    "labels": template["metadata"]["labels"],
                    "annotations": template["metadata"].get("annotations"),
                    "spec": spec,
                    "command": container.pop("command", None),
                    "env": {each["name"]: each for each in container.pop("env")},
                    "ports": {each["name"]: each for each in container.pop("ports", None) or ()},
                    "resources": container.pop("resources"),
                    "security": container.pop("securityContext", None),
                    "mounts": mounts,
                    "container": container,
                }
            ),
        )
    )


def compared(of, **options):
    """Yield the paths in which both renderers' documents differ."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = sanitize_for_serialization(
            app_to_resource(of, "q", options.get("service_account"), options.get("priority_class"))
        )
    [ours] = request(of, queue="q", scheduler="volcano", **options).objects
    for one in (theirs, ours):
        name = one["metadata"].pop("name")
        one.update(json.loads(json.dumps(one).replace(name, "NAME")))
    pairs = list(zip(theirs["spec"].pop("tasks"), ours["spec"].pop("tasks"), strict=True))
    for before, after in [
        (dict(flat("", lean(theirs))), dict(flat("", lean(ours)))),
        *((told(one), told(other)) for one, other in pairs),
    ]:
        for path in before.keys() | after.keys():
            if before.get(path) != after.get(path):
                yield path


def overlaid():
    made = role("overlaid")
    set_overlay(made, "kubernetes", "V1Pod", {"spec": {"hostNetwork": True}})
    return made


EVERYTHING = role(
    num_replicas=2,
    args=["-c", f"echo $$HOME {macros.replica_id} {macros.app_id} {macros.rank0_env}"],
    env={"ME": macros.replica_id, "POD": "[FIELD_PATH]metadata.name"},
    port_map={"http": 80},
    mounts=[
        BindMount("/a", "/b", read_only=True),
        VolumeMount("data", "/c", read_only=False),
        DeviceMount("/dev/x", "/dev/y", "rwm"),
    ],
    resource=Resource(
        cpu=4, gpu=2, memMB=16000, capabilities={ITYPE: "p5.48xlarge"}, devices={EFA: 4}
    ),
)

APPS = {
    "everything a role has": (app(EVERYTHING, role("ps")), {}),
    "small roles": (app(role(num_replicas=3), role("ps")), {"service_account": "trainer"}),
    "a part of a CPU": (app(role(resource=Resource(0.1, 0, 512)), role("ps")), {}),
    "retries": (app(role(max_retries=2), role("ps", max_retries=1)), {"priority_class": "high"}),
    "fewer replicas": (app(role(num_replicas=3, min_replicas=2), role("ps")), {}),
    "an overlay": (app(overlaid(), role("ps")), {}),
}


@pytest.mark.parametrize("name", APPS)
def test_documents_differ_only_where_listed(name):
    of, options = APPS[name]
    unlisted = {
        path
        for path in compared(of, **options)
        if not any(fnmatchcase(path, each) for each in DIFFERENCES)
    }
    assert unlisted == set()


def test_no_difference_is_listed_that_is_none():
    seen = {path for of, options in APPS.values() for path in compared(of, **options)}
    assert [each for each in DIFFERENCES if not any(fnmatchcase(p, each) for p in seen)] == []
