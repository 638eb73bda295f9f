"""Run options of ``kubernetes_job``.

If an option is not given, its value comes from the section ``[executors.kubernetes]`` of
``farcall.toml`` and from the environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from farcall.config.settings import Settings
from farcall.model.names import KUBERNETES
from farcall.torchx.options import FarcallOptions, wrong_option

SCHEDULER = "kubernetes_job"
DEFAULT, VOLCANO, KUEUE = "default", "volcano", "kueue"

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TAINT = re.compile(r"(?P<key>[^=:\s]+)(=(?P<value>[^=:\s]*))?(:(?P<effect>[A-Za-z]+))?")
_NEVER = -1


@dataclass
class KubernetesOptions(FarcallOptions):
    """Options for ``-cfg``; ``torchx runopts`` shows the text below each field."""

    SPELLED: ClassVar[Mapping[str, str]] = {
        "queue": "queue",
        "scheduler": "scheduler",
        "namespace": "namespace",
        "service_account": "service_account",
        "priority_class": "priority_class",
        "image_pull_secrets": "image_pull_secrets",
        "node_selector": "node_selector",
        "kubeconfig": "kubeconfig",
        "context": "context",
        "ttl": "ttl",
        "timeout_s": "time_limit",
        "retry_on": "retry_on",
        "s3_secret": "s3_secret",
        "bucket": "s3_bucket_name",
    }

    queue: str | None = None
    """Volcano queue, or Kueue LocalQueue; not used with scheduler=default."""

    scheduler: str | None = None
    """Scheduler of the pods: default (the cluster's own), volcano or kueue."""

    namespace: str | None = None
    """Namespace of the job; by default the context's, otherwise default."""

    service_account: str | None = None
    """Service account of the pods; without one they get no token."""

    priority_class: str | None = None
    """PriorityClass of the job's pods."""

    image_pull_secrets: list[str] | None = None
    """Names of the Secrets for pulling images."""

    node_selector: dict[str, str] | None = None
    """Required labels of a pod's node as LABEL:VALUE, separated by semicolons."""

    tolerations: list[str] | None = None
    """Tolerated taints of nodes as key=value:effect, key:effect or key."""

    validate_spec: bool = True
    """Whether the API server checks all objects before it creates any; not in a dry run."""

    reserved_millicpu: int = 100
    """Thousandths of a CPU by which a pod's request is below its limit, because the node needs
    them itself; not applied if that is half of the limit or more."""

    reserved_memmb: int = 1024
    """MiB of memory by which a pod's request is below its limit, because the node needs them
    itself; not applied if that is half of the limit or more."""

    efa_device_count: int | None = None
    """Number of EFA devices of each pod; by default the resource's, 0 for none."""

    shm_size: int | None = None
    """Size of /dev/shm in MiB; by default all of the role's memory, 0 for the node's 64 MiB."""

    timeout_s: int | None = None
    """Maximum duration of an attempt in seconds, at least 60; by default no limit."""

    retry_on: str = "failure"
    """Failures to retry: failure (any) or infrastructure (lost nodes)."""

    ttl: int | None = None
    """Seconds after which a finished job is deleted, at least 60; -1 for never; default: a day."""

    user: str | None = None
    """User in the job's tag; by default your login."""

    kubeconfig: str | None = None
    """Path of the kubeconfig; by default KUBECONFIG, ~/.kube/config or the pod's own access."""

    context: str | None = None
    """Context of the kubeconfig; by default its current one."""

    s3_secret: str | None = None
    """Secret with AWS_ACCESS_KEY_ID and so on, for pods that download a workspace from S3."""

    bucket: str | None = None
    """Bucket for workspaces."""

    def settings(self, *, attempts: int = 1, name: str = "") -> Settings:
        """Return farcall's settings for an app.

        Args:
            attempts: Attempts of the job, 1 to 10.
            name: Name of the app: its workflow if the settings name none.

        Raises:
            SettingsError: An option has a wrong value; run options are named as in TorchX.
        """
        app: dict[str, Any] = {
            "backend": KUBERNETES,
            # farcall.toml sets these options for functions; they do not apply to apps.
            "nodes": 1,
            "retry_attempts": attempts,
            "instance_type": "",
            "image": "",
            "mounts": [],
            "shm_size": None,
            "max_parallel": None,
        }
        tolerations = None if self.tolerations is None else [*map(_toleration, self.tolerations)]
        more = {"ttl": "never" if self.ttl == _NEVER else self.ttl, "tolerations": tolerations}
        app_settings = self._settings(app, more, name)
        if app_settings.scheduler != DEFAULT and not app_settings.queue:
            raise wrong_option(
                "queue",
                self.queue,
                f"scheduler={app_settings.scheduler} requires the name of a queue",
            )
        return app_settings

    def unfetchable(self, settings: Settings) -> str:
        """Return why a job cannot download its workspace from the bucket; empty if it can."""
        if settings.s3_secret or settings.service_account:
            return ""
        return "the pods have no credentials to download it with (s3_secret or service_account)"


def _toleration(taint: str) -> dict[str, str]:
    """Parse a toleration in kubectl's notation for taints."""
    match = _TAINT.fullmatch(taint.strip())
    if match is None or (match["effect"] or _EFFECTS[0]) not in _EFFECTS:
        allowed = f"use key=value:effect, key:effect or key; effects: {', '.join(_EFFECTS)}"
        raise wrong_option("tolerations", taint, allowed)
    toleration = {"key": match["key"], "operator": "Exists"}
    if match["value"] is not None:
        toleration |= {"operator": "Equal", "value": match["value"]}
    return toleration | ({"effect": match["effect"]} if match["effect"] else {})
