"""Options: their defaults, limits and sources.

An option is read from the constructor's arguments, then from the environment
(``FARCALL_<OPTION>``), then from the section ``[executors.awsbatch]``, or with ``backend``
kubernetes ``[executors.kubernetes]``, of ``farcall.toml`` in the working directory or else of
``~/.config/farcall/farcall.toml``, then from the defaults. Zero, false and the empty string are
values. A file in the working directory must not choose credentials, see `refuse_here`;
``FARCALL_CONFIG`` names a file that replaces both.

Some options exist on one platform only. With another backend they are rejected, except in the
environment, which may be set for both.
"""

from __future__ import annotations

import difflib
import enum
import functools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, Unpack
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails

from farcall.config.files import (
    CONFIG_VARIABLE,
    SECTIONS,
    WORKING_FILE,
    chosen,
    files,
    heading,
    refuse_here,
    tables,
)
from farcall.config.ladders import LADDERS, Ladders, split
from farcall.config.ladders import check as check_ladders
from farcall.config.option_values import (
    CONTROLS,
    DISTRIBUTION,
    HALVES,
    LABEL,
    LONGEST_NAME,
    MAX_TAGS,
    SUBDOMAIN,
    Cache,
    CompleteMount,
    Environment,
    Gib,
    Mount,
    Number,
    Packages,
    PathText,
    Requirements,
    Seconds,
    Sources,
    Tags,
    Toleration,
    Ttl,
    UpperCase,
    check_secret,
    has,
)
from farcall.model.commands import ENV_RUN
from farcall.model.errors import SettingsError
from farcall.model.names import BATCH, ENV_EMULATOR_PYTHON, KUBERNETES, PLATFORMS, BackendName
from farcall_runtime.contract import JOB_ENVIRONMENT, PLATFORM_ENVIRONMENT, is_key

ENVIRONMENT_PREFIX = "FARCALL_"
DEFAULT_CACHE_DIR = "/tmp/covalent"  # noqa: S108  # the documented default; no such folder is created
FOREIGN_IMAGES = "public.ecr.aws/covalent/"
"""Prefix of the images of Covalent's own plugin, in which farcall's tasks cannot run."""

_STOCK_IMAGE = "public.ecr.aws/docker/library/python"
"""Docker's official image of Python, in Amazon's public registry.

https://docs.aws.amazon.com/AmazonECR/latest/public/public-registry-concepts.html
"""

_NAME = r"[A-Za-z0-9_-]{1,128}"
_ROLE = r"[A-Za-z0-9+=,.@_-]{1,64}"
_KMS_ARN = r"arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:(key|alias)/"
_ACCESS_POINT = r"arn:aws[a-z-]*:s3:[a-z0-9-]+:\d{12}:accesspoint[:/][a-z0-9-]{3,50}"


class _On(enum.Enum):
    """Platform of an option that exists on one platform only; most exist on both."""

    BATCH = BATCH
    KUBERNETES = KUBERNETES


_ON_BATCH, _ON_KUBERNETES = _On.BATCH, _On.KUBERNETES
_Path = Annotated[str, PathText]
_OnBatch = Annotated[str, _ON_BATCH]
_OnKubernetes = Annotated[str, _ON_KUBERNETES]
_OBJECT = rf"^({SUBDOMAIN}|)$"


def _default_region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


_default_bucket = ""


def default_bucket() -> str:
    """Return the default of ``s3_bucket_name``: empty, except in a fake cloud."""
    return _default_bucket


def set_default_bucket(name: str) -> None:
    """Set the default of ``s3_bucket_name`` in this process."""
    global _default_bucket
    _default_bucket = name


DEFAULT_QUEUE = "farcall-ec2"
"""The queue on AWS Batch that ``farcall deploy`` creates first."""


_ARGUMENT = "an argument"


class OptionSource(NamedTuple):
    """Names of the places where options are set, for errors.

    Attributes:
        constructor: The class that takes them as arguments.
        file: The file with the section.
        names: Names of options there that differ from farcall's.
    """

    constructor: str
    file: str
    names: Mapping[str, str] = {}

    def argument(self, option: str) -> str:
        """Return the name of an argument for errors."""
        # farcall has several: executors, tasks, with_options.
        name = self.names.get(option, option)
        return _ARGUMENT if self is _HOME else f"{self.constructor}({name}=...)"


_HOME = OptionSource("BatchExecutor", "farcall.toml")


class CommandOptions(TypedDict, total=False):
    """Options as keyword arguments, without the arguments of commands."""

    backend: BackendName
    profile: str
    region: str
    credentials: str | os.PathLike[str]
    queue: str | Sequence[str]
    s3_bucket_name: str
    batch_job_definition_name: str
    batch_execution_role_name: str
    batch_job_role_name: str
    batch_job_log_group_name: str
    vcpu: float | Sequence[float]
    memory: float | str | Sequence[float | str]
    num_gpus: int
    nodes: int
    instance_type: str
    retry_attempts: int
    time_limit: int | str | timedelta
    poll_freq: float | str | timedelta
    cache_dir: str | os.PathLike[str]
    cache_key: str
    stock_image_uri: str
    architecture: Literal["x86_64", "arm64"]
    packages: str | os.PathLike[str] | list[str] | None
    extra_packages: list[str]
    exclude_packages: list[str]
    sources: Literal["auto"] | list[str] | None
    exclude_sources: list[str]
    environment: Mapping[str, str | None] | list[str]
    prefix: str
    linger_s: float | str | timedelta
    retry_on: Literal["failure", "infrastructure"]
    stuck_timeout_s: float | str | timedelta | None
    queue_patience: float | str | timedelta | None
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "OFF"]
    output: bool
    tags: dict[str, str]
    priority: int | None
    share_identifier: str
    job_definition_extra: dict[str, Any]
    s3_encryption: Literal["", "AES256", "aws:kms", "aws:kms:dsse"]
    s3_kms_key_id: str
    endpoint_url: str
    keep_artifacts: bool
    store_call_summaries: bool
    workflow: str
    ui_url: str
    vcpu_hour_price: float
    gb_hour_price: float
    kubeconfig: str | os.PathLike[str]
    context: str
    namespace: str
    service_account: str
    scheduler: Literal["default", "volcano", "kueue"]
    priority_class: str
    image_pull_secrets: list[str]
    node_selector: dict[str, str]
    tolerations: list[dict[str, Any]]
    s3_secret: str
    max_parallel: int | None
    ttl: int | str | timedelta | None
    pod_overlay: dict[str, Any]


class Options(CommandOptions, total=False):
    """Options as keyword arguments, for type checkers; `Settings` documents them."""

    cache: bool | str
    image: str
    workers: int
    workers_idle: float | str | timedelta
    mounts: list[dict[str, Any]]
    secrets: dict[str, str]
    shm_size: float | str | None


class Settings(BaseModel):
    """All options, validated.

    A size or a duration may have a unit: ``"4GiB"``, ``"512MiB"`` or ``"4GB"``, ``"90s"`` or
    ``"1h30m"``; see `farcall.model.quantities`. A duration may also be a `datetime.timedelta`, and
    a path any `os.PathLike`.

    Attributes:
        backend: Where jobs run: ``batch`` is AWS Batch, ``kubernetes`` a cluster. By default
            Kubernetes if the file only has the section ``[executors.kubernetes]``, otherwise AWS
            Batch.
        profile: AWS profile. ``default`` uses ``AWS_PROFILE``.
        region: AWS region. By default ``AWS_REGION``, ``AWS_DEFAULT_REGION``, the profile's
            region, or ``us-east-1``, in this order.
        credentials: Path of the AWS credentials file. The default uses
            ``AWS_SHARED_CREDENTIALS_FILE``. Keys in the environment take precedence over either,
            unless ``profile`` names a profile of the file.
        queue: On AWS Batch name or ARN of the job queue, by default ``farcall-ec2``, which
            ``farcall deploy`` creates. On Kubernetes Kueue's LocalQueue or Volcano's queue; empty
            for none.
        s3_bucket_name: Bucket for payloads, results and output of functions, or the ARN or alias
            of its access point; empty for none, if there are only command jobs.
        batch_job_definition_name: Job definition whose image is used if ``image`` is empty; if it
            does not exist, the stock image is used. farcall submits with its own definitions,
            named by their content.
        batch_execution_role_name: Name or ARN of the role that pulls the image and writes the log;
            empty for none (EC2 only).
        batch_job_role_name: Name or ARN of the task's role; empty for none.
        batch_job_log_group_name: CloudWatch log group; empty for AWS's ``/aws/batch/job``.
        vcpu: vCPUs of a task. On EC2 a whole number; on Fargate also 0.25 and 0.5. A list has one
            value for each value of ``memory``.
        memory: Memory of a task, at least 4 MiB. A number is in GiB, which AWS's pages and
            Covalent's plugin call GB; ``"4GB"`` is 4 * 10^9 bytes, or 3815 MiB in Batch. A task
            that runs out of memory runs again with the next value of a list, such as
            ``[2, 8, 32]``.
        num_gpus: GPUs of a task.
        nodes: Instances of a task, up to 1000. With more than one, the task is a multi-node
            parallel job, which needs EC2, and whose nodes start together; ``vcpu``, ``memory`` and
            ``num_gpus`` apply to each node. The result is then the list of the nodes' results, and
            `farcall_runtime.node` returns the function's node.
        instance_type: Instance type of multi-node jobs, such as ``p4d.24xlarge``; empty for any
            type of the queue's compute environment. With one node, it makes the task a multi-node
            job, too.
        retry_attempts: Total number of attempts, 1 to 10; 1 disables retries.
        time_limit: Maximum duration of an attempt in seconds, at least 60. The function is
            interrupted before the limit by a tenth of it, at most 30 s, and has half of that time
            to clean up.
        poll_freq: Maximum interval between two polls of a job in seconds; polls are more frequent
            while its status changes.
        cache_dir: Folder for arguments and results that would take half of the free memory, and
            for results of more than 64 MiB on their way into Covalent's store. The default means
            the system's folder for temporary files (``TMPDIR``).
        cache: Do not run a call again whose function, modules of the project, arguments, packages
            and Python version are unchanged, and take its result from the bucket. A text, such as
            ``v2``, stands for the version of the code, whose changes then do not count.
        cache_key: Secret with which these results are signed, at least 16 characters, to share
            them in a team; empty for a key in ``~/.config/farcall``.
        image: Image of the jobs, built from farcall's Dockerfile. If empty, jobs run in the stock
            image and fetch farcall's runtime from the bucket.
        stock_image_uri: Image with Python of this minor version, without farcall; empty for
            ``public.ecr.aws/docker/library/python:3.X-slim-trixie``.
        architecture: Processor of the jobs, ``x86_64`` or ``arm64``; packages are prepared for it.
        packages: Packages that tasks import in addition to those in the image: ``"auto"`` for the
            packages that your code imports, ``"local"`` for all locally installed packages, a list
            of requirements, or the path of a requirements file, a ``pyproject.toml`` or a
            ``uv.lock``. None, or an empty text, if the image has all.
        extra_packages: Requirements in addition to these.
        exclude_packages: Names of distributions that no task needs.
        sources: Files of your project that are sent to jobs: ``"auto"`` for the folders on
            ``sys.path`` without installed packages, or a list of folders. With None no files are
            sent, and functions are pickled together with the objects that they refer to.
        exclude_sources: Patterns of files in these folders that are not sent, in the syntax of
            ``.dockerignore``.
        environment: Environment variables of the jobs: a table of names and values, or a list of
            ``NAME`` and ``NAME=value``. A name without a value takes it from your environment when
            the job is submitted.
        secrets: Environment variables whose values the platform reads from a store: names, and on
            AWS Batch the ARN of a secret of Secrets Manager or of an SSM parameter, on Kubernetes
            ``secret/key``.
        prefix: Key prefix in the bucket.
        linger_s: Seconds to wait for further calls, so that they share one array job.
        retry_on: ``infrastructure`` retries only lost hosts and failed starts, so that the
            function's own exceptions are final; ``failure`` retries every failure that may not
            recur. Neither retries a task that ran out of memory.
        stuck_timeout_s: Seconds after which a job that cannot be placed fails; None for never.
            They count only while the platform reports why it cannot place the job; Batch reports
            it for the job at the head of the queue.
        queue_patience: Seconds for which a task waits for an instance, before it moves to the next
            queue of a list; None for never. They count while a client follows the job.
        log_level: Minimum level of the function's log records that are written to stderr, with
            time, level and name, unless the function configures ``logging`` itself; ``OFF`` keeps
            Python's default.
        output: Show the output of running jobs to the caller that awaits their results; see
            `farcall.Task.map`.
        tags: Tags of every job, at most 45. Keys have up to 128 characters and values up to 256:
            letters, digits, spaces and ``_ . : / = + - @``.
        priority: Scheduling priority, 0 to 9999, for queues with a fair-share policy.
        share_identifier: Share identifier for such queues; empty for none.
        job_definition_extra: Merged into the RegisterJobDefinition request: any of Batch's fields.
        s3_encryption: Encryption header of all objects that client and jobs store: ``AES256``,
            ``aws:kms`` or ``aws:kms:dsse``; empty for the bucket's default. Needed if the bucket's
            policy requires the header.
        s3_kms_key_id: AWS KMS key for it, as ID, ARN or alias; empty for the account's default
            key.
        endpoint_url: URL that replaces AWS's endpoints for all services.
        keep_artifacts: Keep a task's objects in the bucket after its result was delivered.
        store_call_summaries: Store a summary of each call's arguments in the bucket, which lists
            show: plain values, shapes of arrays, names of classes, at most 200 characters.
            Arguments named like a password, token, secret or key are left out.
        workflow: Name under which the command line and the web UI show the jobs, up to 128
            characters; empty for the script's, and in Covalent for the lattice's.
        ui_url: Address of the web UI that ``farcall ui`` serves. Covalent's own UI shows it with
            an electron's executor.
        vcpu_hour_price: Price of a vCPU-hour in dollars, at least 0, with which ``farcall
            describe`` and the web UI show the cost of jobs; 0 for none.
        gb_hour_price: Price of a GB-hour of memory for it, at least 0.
        kubeconfig: Path of the kubeconfig; empty for ``KUBECONFIG``, else ``~/.kube/config``, else
            the pod's service account.
        context: Context of the kubeconfig; empty for its current one.
        namespace: Namespace of the jobs; empty for the context's, else ``default``.
        service_account: Service account of the pods, whose permissions their tasks have; empty for
            none, so that no token is mounted either.
        scheduler: Scheduler of the pods: ``default`` is the cluster's own, ``volcano`` is Volcano;
            with ``kueue``, jobs are created suspended, and Kueue admits them.
        priority_class: PriorityClass of the pods; empty for the cluster's default.
        image_pull_secrets: Names of the Secrets for pulling the image.
        node_selector: Labels that a pod's node must have.
        tolerations: Taints of nodes that pods tolerate, tables in Kubernetes's format, with key,
            operator, value, effect and tolerationSeconds.
        s3_secret: Secret with environment variables for the pods, such as AWS_ACCESS_KEY_ID and
            AWS_SECRET_ACCESS_KEY; empty if the service account or the node has the permissions.
        max_parallel: Maximum number of a job's running pods, at most 100,000; None for as many as
            it has tasks.
        ttl: Seconds after which an ended job is deleted with its pods and their logs, at least 60;
            None for never, written as ``never`` in a file and the environment.
        pod_overlay: Merged into the pods' template: any field of its metadata and its spec.
        workers: Number of warm workers, which run calls one after another within a second instead
            of a job for each call; 0 for none.
        workers_idle: Seconds without a call after which a warm worker ends, at least 10.
        mounts: Mounts of the pods, tables with type, src, dst, readonly and perm. A ``volume`` is
            a claim, ``bind`` a path of the node, ``device`` a device of the node.
        shm_size: Size of ``/dev/shm``, which counts as memory; a number is in GiB. None for the
            node's default of 64 MiB.

    Raises:
        SettingsError: A value is invalid, an option is unknown, or it belongs to another platform.

    Source:
        https://docs.aws.amazon.com/batch/latest/APIReference/API_RegisterJobDefinition.html
        https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    _ladders: Ladders = PrivateAttr(default=Ladders())

    backend: BackendName = "batch"
    profile: str = "default"
    region: str = Field(default_factory=_default_region, pattern=r"^[a-z0-9-]+$")
    credentials: _Path = "~/.aws/credentials"
    queue: str = ""
    s3_bucket_name: str = Field(
        default_factory=default_bucket,
        pattern=rf"^([a-z0-9][a-z0-9._-]{{1,61}}[a-z0-9]|{_ACCESS_POINT}|)$",
    )
    batch_job_definition_name: _OnBatch = Field("", pattern=rf"^({_NAME}(:\d+)?|arn:.+|)$")
    batch_execution_role_name: _OnBatch = Field("", pattern=rf"^({_ROLE}|arn:.+|)$")
    batch_job_role_name: _OnBatch = Field("", pattern=rf"^({_ROLE}|arn:.+|)$")
    batch_job_log_group_name: _OnBatch = Field("", pattern=r"^[A-Za-z0-9_/.#-]{0,512}$")
    vcpu: Annotated[float, Number] = Field(2, gt=0, allow_inf_nan=False)
    memory: Annotated[float, Gib] = Field(3.75, ge=4 / 1024, allow_inf_nan=False)
    num_gpus: Annotated[int, Number] = Field(0, ge=0)
    nodes: Annotated[int, Number] = Field(1, ge=1, le=1000)
    instance_type: str = Field("", pattern=r"^[a-z0-9.-]{0,64}$")
    retry_attempts: Annotated[int, Number] = Field(3, ge=1, le=10)
    time_limit: Annotated[int, Seconds] = Field(300, ge=60)
    poll_freq: Annotated[float, Seconds] = Field(10, ge=0, allow_inf_nan=False)
    cache_dir: _Path = DEFAULT_CACHE_DIR
    cache_key: str = Field("", pattern=r"^(.{16,1024}|)$", repr=False)
    stock_image_uri: str = Field("", max_length=255)
    architecture: Literal["x86_64", "arm64"] = "x86_64"
    packages: Annotated[str | list[str] | None, Packages] = None
    extra_packages: Annotated[list[str], Requirements] = []
    exclude_packages: list[Annotated[str, Field(pattern=DISTRIBUTION)]] = []
    sources: Annotated[Literal["auto"] | list[str] | None, Sources] = "auto"
    exclude_sources: list[str] = []
    environment: Annotated[dict[str, str | None], Environment] = Field({}, repr=False)
    prefix: str = Field("farcall", pattern=r"^[A-Za-z0-9!_.*'()/-]*$", max_length=512)
    linger_s: Annotated[float, Seconds] = Field(0.1, ge=0, le=60)
    retry_on: Literal["failure", "infrastructure"] = "infrastructure"
    stuck_timeout_s: Annotated[float | None, Seconds] = Field(None, ge=0, allow_inf_nan=False)
    queue_patience: Annotated[float | None, Seconds] = Field(None, ge=0, allow_inf_nan=False)
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "OFF"], UpperCase
    ] = "INFO"
    output: bool = False
    tags: Annotated[dict[str, str], Tags] = Field({}, max_length=MAX_TAGS)
    priority: Annotated[int | None, Number, _ON_BATCH] = Field(None, ge=0, le=9999)
    share_identifier: Annotated[str, _ON_BATCH] = Field("", pattern=r"^[A-Za-z0-9]{0,255}$")
    job_definition_extra: Annotated[dict[str, Any], _ON_BATCH] = Field(
        {}, repr=False
    )  # may hold secrets
    s3_encryption: Literal["", "AES256", "aws:kms", "aws:kms:dsse"] = ""
    s3_kms_key_id: str = Field(
        "", pattern=rf"^((alias/)?[A-Za-z0-9/_-]{{1,256}}|{_KMS_ARN}[A-Za-z0-9/_-]{{1,256}}|)$"
    )
    endpoint_url: str = Field("", pattern=r"^(https?://[^\s]+|)$")
    keep_artifacts: bool = False
    store_call_summaries: bool = True
    workflow: str = Field("", max_length=128)
    ui_url: str = Field("http://127.0.0.1:8750", pattern=r"^(https?://[^\s#]+|)$")
    vcpu_hour_price: Annotated[float, Number] = Field(0, ge=0, allow_inf_nan=False)
    gb_hour_price: Annotated[float, Number] = Field(0, ge=0, allow_inf_nan=False)
    kubeconfig: Annotated[_OnKubernetes, PathText] = ""
    context: _OnKubernetes = ""
    namespace: _OnKubernetes = Field("", pattern=rf"^({LABEL}|)$")
    service_account: _OnKubernetes = Field("", pattern=_OBJECT, max_length=LONGEST_NAME)
    scheduler: Annotated[Literal["default", "volcano", "kueue"], _ON_KUBERNETES] = "default"
    priority_class: Annotated[str, _ON_KUBERNETES] = Field(
        "", pattern=_OBJECT, max_length=LONGEST_NAME
    )
    image_pull_secrets: Annotated[
        list[Annotated[str, Field(pattern=rf"^{SUBDOMAIN}$", max_length=LONGEST_NAME)]],
        _ON_KUBERNETES,
    ] = []
    node_selector: Annotated[dict[str, str], _ON_KUBERNETES] = {}
    tolerations: Annotated[list[Toleration], _ON_KUBERNETES] = []
    s3_secret: _OnKubernetes = Field("", pattern=_OBJECT, max_length=LONGEST_NAME)
    max_parallel: Annotated[int | None, Number, _ON_KUBERNETES] = Field(None, ge=1, le=100_000)
    ttl: Annotated[int | None, Ttl, _ON_KUBERNETES] = Field(86_400, ge=60, le=2**31 - 1)
    pod_overlay: Annotated[dict[str, Any], _ON_KUBERNETES] = Field(
        {}, repr=False
    )  # may hold secrets
    cache: Annotated[bool | str, Cache] = False
    image: str = Field("", pattern=r"^\S*$", max_length=255)
    workers: Annotated[int, Number] = Field(0, ge=0, le=1000)
    workers_idle: Annotated[float, Seconds] = Field(300, ge=10, le=86_400)
    mounts: Annotated[list[Annotated[Mount, CompleteMount]], _ON_KUBERNETES] = []
    secrets: dict[str, str] = {}
    shm_size: Annotated[float | None, Gib, _ON_KUBERNETES] = Field(None, gt=0, allow_inf_nan=False)

    def __init__(self, **options: Unpack[Options]) -> None:
        self._load(options, _HOME)

    def _load(
        self,
        options: Mapping[str, Any],
        place: OptionSource,
        section: Mapping[str, Any] | None = None,
    ) -> None:
        """Set the given options, and the others from the environment and the file.

        Args:
            options: The given options.
            place: Names for errors.
            section: Options of Batch from another program's file, which replace farcall.toml's.

        Raises:
            SettingsError: A value is invalid, or an option is unknown.
        """
        _refuse_unknown(options, place.constructor)
        environment = from_environment()
        _refuse_unknown(environment, "the environment", ENVIRONMENT_PREFIX)
        file = place.file
        if section is None:
            given = {**environment, **options}
            backend, section = in_force(given)
            if files()[:1] == [WORKING_FILE]:
                refuse_here(section)
            file = str(files()[0]) if section else file
        else:
            environment.pop("backend", None)  # that file is for one platform
            backend = BATCH
            _refuse_other_backend({**section, **options}, place)
        _refuse_foreign(options, backend, place.constructor)
        own = options_of(backend)
        environment = {name: value for name, value in environment.items() if name in own}
        try:
            values, lists = split(_merged(section, environment, options))
            super().__init__(**values)
            self._ladders = self._with_ladders(values, lists)
        except ValidationError as error:
            in_file = f"{heading(backend)} of {file}"
            sources = {
                **dict.fromkeys(section, in_file),
                **{name: f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in environment},
                **{name: place.argument(name) for name in options},
            }
            raise _explain(error, sources, place.names) from None

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            steps = getattr(self._ladders, name, ()) if name in LADDERS else ()
            yield name, list(steps) or value

    def _with_ladders(
        self, values: Mapping[str, Any], lists: Mapping[str, Sequence[Any]]
    ) -> Ladders:
        """Validate each value of the options that were given as lists."""
        ladders = Ladders()
        for name, steps in lists.items():
            parsed = [getattr(self, name)]
            for step in steps[1:]:
                other = type(self).__new__(type(self))
                BaseModel.__init__(other, **{**values, name: step})
                parsed.append(getattr(other, name))
            ladders = ladders._replace(**{name: tuple(parsed)})
        check_ladders(ladders, self.queue_patience)
        return ladders

    @property
    def ladders(self) -> Ladders:
        """All values of ``memory``, ``vcpu`` and ``queue`` if they were given as lists."""
        return self._ladders

    @field_validator("*", mode="before")
    @classmethod
    def _check_text(cls, value: object, field: ValidationInfo) -> object:
        """Reject values that AWS or the file system would reject with an unclear error."""
        is_document = field.field_name in _SECRET  # texts of documents may contain line ends
        if has(HALVES if is_document else CONTROLS, value):
            raise ValueError("remove control characters and lone surrogates")
        return value

    @field_validator("prefix")
    @classmethod
    def _trim_prefix(cls, prefix: str) -> str:
        prefix = prefix.strip("/")
        if prefix and not is_key(prefix):
            raise ValueError("remove // and path segments that are . or ..")
        return prefix

    @field_validator("queue")
    @classmethod
    def _check_queue(cls, queue: str, field: ValidationInfo) -> str:
        if field.data.get("backend") == KUBERNETES:
            if len(queue) > LONGEST_NAME or not re.fullmatch(_OBJECT, queue):
                raise ValueError(_OBJECT_NAME)
            return queue
        if queue and not re.fullmatch(rf"{_NAME}|arn:.+", queue):
            raise ValueError("use a queue's name (up to 128 letters, digits, - and _) or its ARN")
        return queue or DEFAULT_QUEUE

    @field_validator("endpoint_url", "ui_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if "://" not in url:
            return url
        parts = urlsplit(url)  # a ValueError, also of `parts.port`, is informative
        if not parts.hostname or parts.port == 0:
            raise ValueError("use a URL with a host and, if it has a port, a port of at least 1")
        return url

    @field_validator("secrets")
    @classmethod
    def _check_secrets(cls, secrets: dict[str, str], field: ValidationInfo) -> dict[str, str]:
        for name, place in secrets.items():
            check_secret(name, place, is_batch=field.data.get("backend") != KUBERNETES)
            if name in field.data.get("environment", {}):
                raise ValueError(
                    f"the variable {name} is also in environment; remove it from one of the two "
                    "options"
                )
        return secrets

    @field_validator("s3_bucket_name")
    @classmethod
    def _spell_access_point(cls, name: str) -> str:
        """Use the spelling of an ARN that can replace a bucket's name in a URL."""
        return name.replace(":accesspoint/", ":accesspoint:")

    @field_validator("s3_kms_key_id")
    @classmethod
    def _check_kms_key(cls, key: str, field: ValidationInfo) -> str:
        encryption = field.data.get("s3_encryption", "aws:kms")  # missing if it was rejected
        if key and not encryption.startswith("aws:kms"):
            raise ValueError(
                "a key requires s3_encryption aws:kms or aws:kms:dsse, but s3_encryption is "
                f"{encryption!r}"
            )
        return key

    @field_validator("endpoint_url")
    @classmethod
    def _trim_endpoint(cls, url: str) -> str:
        return url.rstrip("/")

    @property
    def stock_image(self) -> str:
        """Image that contains only Python, in this process's minor version."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return self.stock_image_uri or f"{_STOCK_IMAGE}:{version}-slim-trixie"

    @property
    def variables(self) -> dict[str, str]:
        """Variables of ``environment`` that have a value; see `with_environment`."""
        return {name: value for name, value in self.environment.items() if value is not None}

    @property
    def attempts(self) -> int:
        """Total number of a task's attempts; Kubernetes never restarts several nodes."""
        is_multi_node = self.backend == KUBERNETES and self.nodes > 1
        return 1 if is_multi_node and self.scheduler != "volcano" else self.retry_attempts

    @property
    def workflow_name(self) -> str:
        """Name of the workflow: the option, or the running script's name."""
        return self.workflow or _script()

    @functools.cached_property
    def fingerprint(self) -> str:
        """Text that is equal for settings with equal values."""
        return f"{self.model_dump_json()}{self._ladders if any(self._ladders) else ''}"

    @classmethod
    def within(cls, section: dict[str, Any], place: OptionSource, **options: Any) -> Settings:
        """Return settings for Batch from another program's file.

        Args:
            section: Options from that file; arguments and environment take precedence.
            place: Names for errors.
            **options: Arguments.

        Raises:
            SettingsError: A value is invalid, or an option is unknown.
        """
        where = f"{place.file}, section {heading(BATCH)}"
        _refuse_unknown(section, where)
        _refuse_foreign(section, BATCH, where)
        settings = cls.__new__(cls)
        settings._load(options, place, section)
        return settings

    def replace(self, **options: Unpack[Options]) -> Settings:
        """Return settings that differ in some options.

        With another backend, the former backend's own options are dropped.

        Raises:
            SettingsError: A value is invalid, or an option is unknown or for another platform.
        """
        backend = options.get("backend", self.backend)
        kept = self.model_fields_set & options_of(backend if backend in SECTIONS else self.backend)
        if backend != self.backend:
            kept -= {"queue", "image"}  # a Batch queue is no Kueue queue
        ladders = self._ladders
        if "memory" in options:  # the former sizes no longer apply
            ladders = ladders._replace(memory=(), vcpu=())
        if _has_one_queue(options):
            kept -= {"queue_patience"}
        given = {name: getattr(ladders, name, ()) or getattr(self, name) for name in kept}
        other = type(self)(**{**given, **options})
        places = {
            name: getattr(self, name)
            for name, steps in ladders._asdict().items()
            if steps and name not in options
        }
        return other.with_options(**places) if places else other

    def with_packages(self, requirements: Iterable[str]) -> Settings:
        """Return settings with more ``extra_packages``, without reading sources again."""
        return self.with_options(extra_packages=[*self.extra_packages, *requirements])

    def with_environment(self) -> Settings:
        """Return settings in which each variable of ``environment`` has a value.

        Raises:
            SettingsError: A variable is not set in this process.
        """
        missing = [name for name, value in self.environment.items() if value is None]
        if not missing:
            return self
        for name in missing:
            if name not in os.environ:
                raise SettingsError(
                    f"environment has {name!r} without a value, but the variable {name} is not "
                    f"set here. Set it (export {name}=...), or give it a value: "
                    f'environment = {{{name} = "value"}}',
                    option="environment",
                )
        taken = {name: os.environ[name] for name in missing}
        return self.with_options(environment={**self.environment, **taken})

    def later(self) -> list[Settings]:
        """Return the settings of possible second chances, each with one other value."""
        steps: list[dict[str, Any]] = []
        more = self._ladders.more_memory(self.memory)
        while more:
            steps.append(dict(more))
            more = self._ladders.more_memory(more["memory"])
        queue = self._ladders.next_queue(self.queue)
        while queue:
            steps.append(dict(queue))
            queue = self._ladders.next_queue(queue["queue"])
        return [self.with_options(**step) for step in steps]

    def with_ladders_of(self, settings: Settings) -> Settings:
        """Return settings with other settings' ladders, and this object's place on them."""
        other = self.with_options(queue_patience=settings.queue_patience)
        other._ladders = settings.ladders
        return other

    def with_options(self, **options: Any) -> Settings:
        """Return settings with other options, whose values are already validated."""
        other = self.model_copy(update=options)
        other.__dict__.pop("fingerprint", None)  # cached for this object
        return other


def _merged(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of sources, of which later ones take precedence."""
    values: dict[str, Any] = {}
    for source in sources:
        if _has_one_queue(source):  # the patience was for the former list of queues
            values.pop("queue_patience", None)
        values |= source
    return values


def _has_one_queue(options: Mapping[str, Any]) -> bool:
    return "queue" in options and not split({"queue": options["queue"]})[1]


def _script() -> str:
    """Return the running program's name for its author."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m
        name = str(spec.name).removesuffix(".__main__")
        return "notebook" if name == "ipykernel_launcher" else name
    path = getattr(main, "__file__", None)
    return Path(path).name if path else "interactive"


def from_environment() -> dict[str, Any]:
    """Return the options in the environment, including unknown ones.

    Other variables in a farcall job are not options.
    """
    texts = {
        name[len(ENVIRONMENT_PREFIX) :].lower(): text
        for name, text in os.environ.items()
        if name.startswith(ENVIRONMENT_PREFIX) and name not in _NO_OPTIONS
    }
    return {name: from_text(name, text) for name, text in texts.items()}


def from_text(option: str, text: str) -> Any:
    """Return an option's value: text unchanged, others parsed as JSON if possible."""
    field = Settings.model_fields.get(option)
    if field is None or field.annotation is str:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text  # Settings parses it, or rejects it with the option's name


def options_of(backend: BackendName) -> frozenset[str]:
    """Return the names of a backend's options."""
    other = {each for each in _On if each.value != backend}
    fields = Settings.model_fields.items()
    return frozenset(name for name, field in fields if not other.intersection(field.metadata))


def in_force(given: Mapping[str, Any] | None = None) -> tuple[BackendName, dict[str, Any]]:
    """Return the selected backend, and its options in the file in use.

    Args:
        given: Options that take precedence; by default the environment's.

    Raises:
        SettingsError: The file cannot be read, or has an invalid option.
    """
    there = files()
    sections = read(there[0]) if there else {}
    backend = chosen(from_environment() if given is None else given, sections)
    return backend, sections.get(backend, {})


def read(path: Path) -> dict[BackendName, dict[str, Any]]:
    """Return the options of a file, for each backend whose section it has.

    Raises:
        SettingsError: The file cannot be read, or has an invalid option.
    """
    sections = tables(path)
    for backend, section in sections.items():
        where = f"{path}, section {heading(backend)}"
        _refuse_unknown(section, where)
        _refuse_foreign(section, backend, where)
        if section.get("backend", backend) != backend:
            raise SettingsError(
                f"{where} has backend = {section['backend']!r}; put another backend's options "
                f"into its own section: {' or '.join(map(heading, SECTIONS))}",
                option="backend",
            )
    if KUBERNETES in sections and BATCH not in sections:
        sections[KUBERNETES]["backend"] = KUBERNETES  # implied by the section
    return sections


_USUAL_NAMES = {
    **dict.fromkeys(("timeout", "time_limit_s", "walltime"), "time_limit"),
    **dict.fromkeys(("gpu", "gpus", "n_gpus"), "num_gpus"),
    **dict.fromkeys(("cpu", "cpus", "n_cpus", "cores"), "vcpu"),
    **dict.fromkeys(("mem", "ram", "memory_gb"), "memory"),
    **dict.fromkeys(("env", "envs", "environ"), "environment"),
    **dict.fromkeys(("bucket", "s3_bucket"), "s3_bucket_name"),
    **dict.fromkeys(("retries", "max_retries"), "retry_attempts"),
}
"""Names of options in similar libraries."""


def _refuse_unknown(options: Mapping[str, Any], where: str, prefix: str = "") -> None:
    known = Settings.model_fields
    for name in options:
        if name in known:
            continue
        usual = _USUAL_NAMES.get(name)
        close = [usual] if usual else difflib.get_close_matches(name, known, 1)
        unknown, *meant = (f"{prefix}{n.upper()}" if prefix else n for n in (name, *close))
        hint = f"did you mean {meant[0]}?" if meant else "help(farcall.Settings) lists all options"
        raise SettingsError(f"{where} has an unknown option {unknown!r}; {hint}", option=name)


def _refuse_foreign(options: Iterable[str], backend: BackendName, where: str) -> None:
    """Reject another platform's options; all given options are known."""
    own = options_of(backend)
    for name in options:
        if name in own:
            continue
        (other,) = (each for each in SECTIONS if each != backend)
        if name in _COUNTERPARTS:
            instead = f"use {_COUNTERPARTS[name]}, its counterpart on {PLATFORMS[backend]}"
        else:
            instead = "leave it out"
        raise SettingsError(
            f"{where} has {name}, an option for {PLATFORMS[other]}, but backend is {backend!r}; "
            f'{instead}, or set backend="{other}"',
            option=name,
        )


def _refuse_other_backend(given: Mapping[str, Any], place: OptionSource) -> None:
    """Reject another backend than Batch in another program's executor."""
    if given.get("backend") in SECTIONS.keys() - {BATCH}:
        raise SettingsError(
            f"backend is {given['backend']!r}, but {place.constructor} runs tasks only on "
            f"{PLATFORMS[BATCH]}; leave it out, or run the function with BatchExecutor",
            option="backend",
        )


_PAIRS = {
    "batch_job_role_name": "service_account",
    "priority": "priority_class",
    "job_definition_extra": "pod_overlay",
}
_COUNTERPARTS = {**_PAIRS, **{name: other for other, name in _PAIRS.items()}}
"""The other platform's option for the same purpose."""


def _explain(
    error: ValidationError, sources: Mapping[str, str], names: Mapping[str, str]
) -> SettingsError:
    problems = error.errors()
    lines = [_explain_one(problem, sources, names) for problem in problems]
    option = str(problems[0]["loc"][0])
    return SettingsError("\n".join(lines), option=names.get(option, option))


def _explain_one(
    problem: ErrorDetails, sources: Mapping[str, str], names: Mapping[str, str]
) -> str:
    option, *inside = map(str, problem["loc"])
    given = problem["input"]
    is_secret = option in _SECRET
    shown = f"a {type(given).__name__}" if is_secret else _PASSWORD.sub("", repr(given))
    source = sources.get(option, "AWS_REGION or AWS_DEFAULT_REGION")  # other defaults are valid
    where = "" if source == _ARGUMENT else f". The value comes from {source}"
    name = ".".join((names.get(option, option), *inside))
    return f"{name} is {shown}: {_allowed(option, problem)}{where}"


def _allowed(option: str, problem: ErrorDetails) -> str:
    kind = problem["type"]
    if kind == "string_pattern_mismatch":
        return PATTERNS.get(option, "it has invalid characters")
    if kind in _ACCEPTED:
        limits = {"ge": "4 MiB"} if option == "memory" else problem.get("ctx", {})
        return _ACCEPTED[kind].format(**limits) + _UNITS.get(option, "")
    text = problem["msg"].removeprefix("Value error, ")
    return text[0].lower() + text[1:]


_NUMBER = "use a number"
_WHOLE = "use a whole number"
_ACCEPTED = {
    "bool_parsing": "use true or false",
    "bool_type": "use true or false",
    "dict_type": "use a table (JSON in the environment and on the command line)",
    "extra_forbidden": "remove it (unknown key)",
    "finite_number": "use a finite number",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "greater_than": "use more than {gt}",
    "greater_than_equal": "use at least {ge}",
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "less_than_equal": "use at most {le}",
    "list_type": "use a list of strings",
    "literal_error": "use {expected}",
    "missing": "add it",
    "string_too_long": "use at most {max_length} characters",
    "string_type": 'use a string, such as "1"',
    "too_long": "use at most {max_length} entries",
}
"""Accepted values by pydantic's type of an error; `format` fills in the limits."""

_UNITS = {
    "memory": '; a number is in GiB, 2 or "512MiB" for example',
    "time_limit": ' s; a number is in seconds, 600 or "10m" for example',
    "vcpu": ", such as 1, 2 or 4 (on Fargate also 0.25 and 0.5)",
}
"""Unit and examples of an option's numbers."""

_SECRET = ("cache_key", "environment", "job_definition_extra", "pod_overlay")
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")

_NO_OPTIONS = {
    CONFIG_VARIABLE,
    ENV_EMULATOR_PYTHON,
    ENV_RUN,
    *JOB_ENVIRONMENT,
    *PLATFORM_ENVIRONMENT,
} - {f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in Settings.model_fields}
"""farcall's own variables; a job's region and workflow are also options for its submissions."""

_OBJECT_NAME = "use an object's name (up to 253 lower-case letters, digits, - and .)"
PATTERNS = {
    "region": "use a region's name, such as eu-west-1",
    "namespace": "use a namespace's name (up to 63 lower-case letters, digits and -)",
    **dict.fromkeys(
        ("service_account", "priority_class", "s3_secret", "image_pull_secrets"), _OBJECT_NAME
    ),
    "cache_key": "use at least 16 characters in one line, such as those of openssl rand -hex 32",
    "exclude_packages": "use a distribution's name, such as ruff",
    "image": "use an image such as registry.example/mine:1, without whitespace",
    "s3_bucket_name": "use 3 to 63 lower-case letters, digits, dots and hyphens, "
    "the ARN of an access point in one region, or an empty string for none",
    "batch_job_definition_name": "use a definition's name, name:revision or ARN",
    "batch_execution_role_name": "use a role's name (up to 64 characters) or its ARN",
    "batch_job_role_name": "use a role's name (up to 64 characters) or its ARN",
    "batch_job_log_group_name": "use up to 512 letters, digits and _ / . # -",
    "s3_kms_key_id": "use a key's ID, its ARN, or an alias such as alias/mine or its ARN",
    "prefix": "use letters, digits and ! _ . * ' ( ) / -",
    "instance_type": "use an instance type such as p4d.24xlarge",
    "share_identifier": "use up to 255 letters and digits",
    "endpoint_url": "use a URL that begins with http:// or https://",
    "ui_url": "use a URL that begins with http:// or https://, without the # and the token "
    "after it, because Covalent's page shows the URL",
}
