"""Run options of the TorchX scheduler, and the settings they make with those of farcall.

Region, credentials, roles, log group, bucket, prefix and tags of ``farcall.toml`` and the
environment serve where an option is not given. What else stands there, such as memory or attempts,
is of functions and not of apps.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml
from torchx.schedulers.api import StructuredOpts
from torchx.specs import CfgVal, runopt, runopts

from farcall.model import terminal
from farcall.model.commands import Ulimit
from farcall.model.errors import SettingsError
from farcall.model.settings import Settings

EC2, FARGATE = "ec2", "fargate"

_SPELLED = {
    "queue": "batch_queue",
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
"""Which option of farcall each run option is."""

_NONE_UNLESS_SET = (
    "batch_job_role_name",
    "batch_execution_role_name",
    "batch_job_log_group_name",
)
"""What nobody chose counts as none here: an account that ran TorchX need not have them."""

_WHOLE = re.compile(r"-?\d+")

_TAKEN = {
    bool: "true and false are allowed",
    int: "a whole number is allowed",
    dict[str, str]: "NAME:VALUE is allowed, several separated by semicolons",
}


@dataclass
class _Named(runopt):
    """A run option that knows its name.

    Attributes:
        name: Its name.
    """

    name: str

    def cast_to_type(self, value: str) -> CfgVal:
        """Read a value of the command line or ``.torchxconfig``.

        Raises:
            SettingsError: It is of another type.
        """
        try:
            return super().cast_to_type(value)
        except (ValueError, IndexError):
            kind: Any = self.opt_type
            raise wrong_option(self.name, value, _TAKEN.get(kind, "no such text")) from None


@dataclass
class BatchOptions(StructuredOpts):
    """What ``-cfg`` takes; the text below each field is what ``torchx runopts`` shows."""

    queue: str
    """Job queue, by its name or ARN."""

    user: str | None = None
    """User that the job's tag names; your login if not given."""

    privileged: bool = False
    """Whether containers have the instance's root. Not on Fargate."""

    job_role_arn: str | None = None
    """Role that the command has, by its ARN or name; none if not given here or in farcall.toml."""

    execution_role_arn: str | None = None
    """Role that pulls the image and writes the log, by its ARN or name; Fargate needs one."""

    ulimits: list[str] | None = None
    """Limits of processes, each as name:soft:hard, such as nofile:65536:65536; -1 is no limit."""

    share_id: str | None = None
    """Share identifier, for queues with a fair-share policy; other queues refuse it."""

    priority: int = 0
    """Scheduling priority within share_id, 0 to 9999; the highest first."""

    timeout_s: int | None = None
    """Seconds that an attempt may run, at least 60; without limit if not given."""

    retry_on: str = "failure"
    """What max_retries is for: failure (whatever fails) or infrastructure (lost hosts, images)."""

    platform: str = EC2
    """Where the queue's jobs run: ec2 or fargate. Fargate takes one role of one replica."""

    shm_size: int | None = None
    """MiB of /dev/shm; all of the role's memory if not given, docker's own 64 MiB if 0."""

    secrets: dict[str, str] | None = None
    """Variables from Secrets Manager or SSM, as NAME:ARN, several separated by semicolons."""

    log_group: str | None = None
    """CloudWatch log group, which has to exist; Batch's own /aws/batch/job if not given."""

    propagate_tags: bool = True
    """Whether the tasks of ECS get the job's tags, too."""

    job_definition_extra: str | None = None
    """More of the job definition: a JSON object, or the path of a JSON or YAML file with one."""

    region: str | None = None
    """AWS region; that of farcall.toml, the environment or the profile if not given."""

    profile: str | None = None
    """AWS profile."""

    bucket: str | None = None
    """Bucket for workspaces."""

    @property
    def is_fargate(self) -> bool:
        """Whether jobs run on Fargate."""
        return self.platform == FARGATE

    @classmethod
    def as_runopts(cls) -> runopts:
        """Return what TorchX knows of the options."""
        found = runopts()
        for name, option in super().as_runopts():
            given = {each.name: getattr(option, each.name) for each in fields(option)}
            found._opts[name] = _Named(name=name, **given)  # it has no other way in
        return found

    def limits(self) -> tuple[Ulimit, ...]:
        """Return the limits of processes.

        Raises:
            SettingsError: One is not written as name:soft:hard.
        """
        return tuple(map(_limit, self.ulimits or ()))

    def settings(self, *, attempts: int = 1, instance_type: str = "", name: str = "") -> Settings:
        """Return farcall's settings for an app.

        Args:
            attempts: Attempts of the job, 1 to 10.
            instance_type: Instance type of its nodes; empty for any.
            name: Name of the app: its workflow where the settings name none.

        Raises:
            SettingsError: An option has a wrong value, in words of TorchX where it is one of its.
        """
        if self.platform not in (EC2, FARGATE):
            raise wrong_option("platform", self.platform, f"{EC2} and {FARGATE} are allowed")
        wanted = {ours: getattr(self, theirs) for theirs, ours in _SPELLED.items()}
        wanted["job_definition_extra"] = self._extra()
        wanted["priority"] = self.priority if self.share_id else None
        given = {ours: value for ours, value in wanted.items() if value is not None}
        app: dict[str, Any] = {
            # Those of functions, in farcall.toml, say nothing of apps.
            "priority": None,
            "share_identifier": "",
            "nodes": 1,
            "retry_attempts": attempts,
            "instance_type": instance_type,
        }
        found = _settings({**app, **given}, given.keys())
        chosen = found.model_fields_set
        more: dict[str, Any] = {option: "" for option in _NONE_UNLESS_SET if option not in chosen}
        if not found.workflow:
            more["workflow"] = terminal.in_a_line(name)[:128]
        return found.replace(**more)

    def _extra(self) -> dict[str, Any]:
        given = self.job_definition_extra
        found: Any = {}
        if given:
            found = _document(given)
        if not isinstance(found, dict):
            allowed = "a JSON object, or the path of a file with one, is allowed"
            raise wrong_option("job_definition_extra", given, allowed)
        if self.is_fargate:
            found.setdefault("platformCapabilities", ["FARGATE"])
        return found


def wrong_option(option: str, found: object, allowed: str) -> SettingsError:
    """Say that a run option has a wrong value."""
    is_secret = option == "job_definition_extra" and str(found).lstrip().startswith("{")
    shown = "a text" if is_secret else repr(found)
    return SettingsError(
        f"run option {option} is {shown}: {allowed}; `torchx runopts aws_batch` tells of each",
        option=option,
    )


@contextlib.contextmanager
def in_words() -> Iterator[None]:
    """Have errors name run options, and not what they are in farcall.toml."""
    try:
        yield
    except SettingsError as error:
        text, option = str(error), error.option
        for theirs, ours in _SPELLED.items():
            text = text.replace(ours, theirs) if len(ours) > len(theirs) else text
            option = theirs if option == ours else option
        raise SettingsError(text, option=option) from None


def _settings(options: Mapping[str, Any], given: object) -> Settings:
    """Make settings; what is wrong with a run option is said by its name in TorchX."""
    try:
        return Settings(**options)
    except SettingsError as error:
        names = {ours: theirs for theirs, ours in _SPELLED.items()}
        if error.option not in options or error.option not in names:
            raise
        allowed = str(error).partition(": ")[2].partition(". Set ")[0]
        raise wrong_option(names[error.option], options[error.option], allowed) from None


def _document(given: str) -> object:
    text = given
    if not given.lstrip().startswith("{"):
        try:
            text = Path(given).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise wrong_option(
                "job_definition_extra",
                given,
                f"it is no JSON object, and no file that can be read ({why})",
            ) from None
    try:
        return yaml.safe_load(text)  # which reads JSON, too
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", from line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise wrong_option(
            "job_definition_extra", given, f"it is neither JSON nor YAML{where}"
        ) from None


def _limit(text: str) -> Ulimit:
    name, _, rest = text.strip().partition(":")
    soft, _, hard = rest.partition(":")
    if not name or not _WHOLE.fullmatch(soft) or not _WHOLE.fullmatch(hard):
        raise wrong_option("ulimits", text, "name:soft:hard is allowed, such as nofile:1024:4096")
    return Ulimit(name, int(soft), int(hard))
