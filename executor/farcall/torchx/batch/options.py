"""Run options of ``aws_batch``.

If an option is not given, region, credentials, roles, log group, bucket, prefix and tags come from
``farcall.toml`` and the environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from farcall.config.settings import Settings
from farcall.model.commands import Ulimit
from farcall.model.errors import SettingsError
from farcall.model.names import BATCH
from farcall.torchx.options import FarcallOptions, wrong_option

EC2, FARGATE = "ec2", "fargate"

_WHOLE = re.compile(r"-?\d+")


@dataclass
class BatchOptions(FarcallOptions):
    """Options for ``-cfg``; ``torchx runopts`` shows the text below each field."""

    SPELLED: ClassVar[Mapping[str, str]] = {
        "queue": "queue",
        "region": "region",
        "profile": "profile",
        "job_role_arn": "batch_job_role_name",
        "execution_role_arn": "batch_execution_role_name",
        "log_group": "batch_job_log_group_name",
        "bucket": "s3_bucket_name",
        "share_id": "share_identifier",
        "priority": "priority",
        "timeout_s": "time_limit",
        "retry_on": "retry_on",
        "job_definition_extra": "job_definition_extra",
    }
    SECRET: ClassVar[tuple[str, ...]] = ("job_definition_extra",)

    queue: str
    """Job queue, by its name or ARN."""

    user: str | None = None
    """User in the job's tag; by default your login."""

    privileged: bool = False
    """Whether containers have root rights on the instance. Not on Fargate."""

    job_role_arn: str | None = None
    """ARN or name of the command's role; by default the one in farcall.toml, or none."""

    execution_role_arn: str | None = None
    """ARN or name of the role that pulls the image and writes the log; required on Fargate."""

    ulimits: list[str] | None = None
    """Process limits as name:soft:hard, such as nofile:65536:65536; -1 for no limit."""

    share_id: str | None = None
    """Share identifier for queues with a fair-share policy; other queues reject it."""

    priority: int = 0
    """Scheduling priority within share_id, 0 to 9999; higher values first."""

    timeout_s: int | None = None
    """Maximum duration of an attempt in seconds, at least 60; by default no limit."""

    retry_on: str = "failure"
    """Failures to retry: failure (any) or infrastructure (lost hosts, failed image pulls)."""

    platform: str = EC2
    """Platform of the queue: ec2 or fargate. Fargate supports one role with one replica."""

    shm_size: int | None = None
    """Size of /dev/shm in MiB; by default all of the role's memory, 0 for Docker's 64 MiB."""

    secrets: dict[str, str] | None = None
    """Variables from Secrets Manager or SSM as NAME:ARN, separated by semicolons."""

    log_group: str | None = None
    """Existing CloudWatch log group; by default Batch's /aws/batch/job."""

    propagate_tags: bool = True
    """Whether ECS tasks also get the job's tags."""

    job_definition_extra: str | None = None
    """Further job definition fields: a JSON object, or the path of a JSON or YAML file."""

    region: str | None = None
    """AWS region; by default from farcall.toml, the environment or the profile."""

    profile: str | None = None
    """AWS profile."""

    bucket: str | None = None
    """Bucket for workspaces."""

    @property
    def is_fargate(self) -> bool:
        """Whether jobs run on Fargate."""
        return self.platform == FARGATE

    def limits(self) -> tuple[Ulimit, ...]:
        """Return the process limits.

        Raises:
            SettingsError: A limit does not have the form name:soft:hard.
        """
        return tuple(map(_limit, self.ulimits or ()))

    def settings(self, *, attempts: int = 1, instance_type: str = "", name: str = "") -> Settings:
        """Return farcall's settings for an app.

        Args:
            attempts: Attempts of the job, 1 to 10.
            instance_type: Instance type of the job's nodes; empty for any.
            name: Name of the app: its workflow if the settings name none.

        Raises:
            SettingsError: An option has a wrong value; run options are named as in TorchX.
        """
        if self.platform not in (EC2, FARGATE):
            raise wrong_option("platform", self.platform, f"use {EC2} or {FARGATE}")
        app: dict[str, Any] = {
            "backend": BATCH,
            # farcall.toml sets these options for functions; they do not apply to apps.
            "priority": None,
            "share_identifier": "",
            "nodes": 1,
            "retry_attempts": attempts,
            "instance_type": instance_type,
        }
        more = {
            "job_definition_extra": self._extra(),
            "priority": self.priority if self.share_id else None,
        }
        return self._settings(app, more, name)

    def unfetchable(self, settings: Settings) -> str:
        """Return why a job cannot download its workspace from the bucket; empty if it can."""
        if settings.batch_job_role_name:
            return ""
        return "the job has no role to download it with (job_role_arn)"

    def _extra(self) -> dict[str, Any]:
        given = self.job_definition_extra
        extra: Any = {}
        if given:
            extra = _document(given)
        if not isinstance(extra, dict):
            allowed = "use a JSON object, or the path of a file with one"
            raise _wrong_extra(given, allowed)
        if self.is_fargate:
            extra.setdefault("platformCapabilities", ["FARGATE"])
        return extra


def _wrong_extra(given: str | None, allowed: str) -> SettingsError:
    # If the value is not a path, it may contain secrets.
    shown = ... if str(given).lstrip().startswith("{") else given
    return wrong_option("job_definition_extra", shown, allowed)


def _document(given: str) -> object:
    text = given
    if not given.lstrip().startswith("{"):
        try:
            text = Path(given).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            allowed = f"it is neither a JSON object nor a readable file ({why})"
            raise _wrong_extra(given, allowed) from None
    try:
        return yaml.safe_load(text)  # YAML includes JSON
    except yaml.YAMLError:
        raise _wrong_extra(given, "it is neither JSON nor YAML") from None


def _limit(text: str) -> Ulimit:
    name, _, rest = text.strip().partition(":")
    soft, _, hard = rest.partition(":")
    if not name or not _WHOLE.fullmatch(soft) or not _WHOLE.fullmatch(hard):
        raise wrong_option("ulimits", text, "use name:soft:hard, for example nofile:1024:4096")
    return Ulimit(name, int(soft), int(hard))
