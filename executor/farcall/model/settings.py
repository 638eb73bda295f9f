"""Options: their defaults, limits and sources.

An option is looked up in the constructor's arguments, then in the environment
(``FARCALL_<OPTION>``), then in the section ``[executors.awsbatch]`` of ``farcall.toml`` in the
working directory or else of ``~/.config/farcall/farcall.toml``, then in the table of defaults.
Zero, false and the empty string are values. What a file of the working directory decides counts
only once its user agreed; ``FARCALL_CONFIG`` names a file in the place of both.
"""

from __future__ import annotations

import contextlib
import difflib
import enum
import functools
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails

from farcall.model import config_trust, quantities, terminal
from farcall.model.commands import ENV_RUN
from farcall.model.config_trust import CONFIG_VARIABLE
from farcall.model.errors import SettingsError
from farcall_runtime.contract import JOB_ENVIRONMENT, is_key

if TYPE_CHECKING:
    from typing_extensions import Unpack

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # the same module, before it came into the standard library

SECTION = ("executors", "awsbatch")
_HEADING = f"[{'.'.join(SECTION)}]"
ENVIRONMENT_PREFIX = "FARCALL_"
WORKING_FILE = Path("farcall.toml")
_FILES = (WORKING_FILE, Path("~/.config/farcall/farcall.toml"))
DEFAULT_CACHE_DIR = "/tmp/covalent"  # noqa: S108  # the documented one; no such folder is made
FOREIGN_IMAGES = "public.ecr.aws/covalent/"
"""How images of Covalent's own plugin begin, in which no task of farcall's can run."""

_STOCK_IMAGE = "public.ecr.aws/docker/library/python"
"""Docker's official image of Python, as Amazon's registry has it for everybody.

https://docs.aws.amazon.com/AmazonECR/latest/public/public-registry-concepts.html
"""

_NAME = r"[A-Za-z0-9_-]{1,128}"
_ROLE = r"[A-Za-z0-9+=,.@_-]{1,64}"
_KMS_ARN = r"arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:(key|alias)/"
_ACCESS_POINT = r"arn:aws[a-z-]*:s3:[a-z0-9-]+:\d{12}:accesspoint[:/][a-z0-9-]{3,50}"


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a truth value is not a number")  # noqa: TRY004  # pydantic collects these
    return value


def _is_bare(text: str) -> bool:
    """Tell whether a text is a number without a unit."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _gib(value: object) -> object:
    """Return a size in GiB, which a number alone counts: "4GiB" is 4, and "4GB" is less."""
    if isinstance(value, str) and not _is_bare(value):
        return quantities.size_bytes(value) / 2**30
    return _no_bool(value)


def _seconds(value: object) -> object:
    """Return a time in seconds, which a number alone counts: "1h30m" is 5400."""
    if isinstance(value, str) and not _is_bare(value):
        return quantities.span_s(value)
    return _no_bool(value)


def _upper_case(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _requirements(value: Any) -> list[str]:
    """Check a list of requirements.

    https://packaging.python.org/en/latest/specifications/dependency-specifiers/
    """
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        raise ValueError("a list of requirements is allowed, such as ['numpy>=2']")
    for text in value:
        try:
            url = Requirement(text).url or ""
        except InvalidRequirement as error:
            said = str(error).partition("\n")[0]
            raise ValueError(
                f"{text!r} is no requirement such as numpy>=2 ({said}); a folder of yours travels "
                "by itself"
            ) from None
        if "@" in urlsplit(url).netloc:
            raise ValueError(
                "a URL with a password is not allowed; leave it to netrc, or to uv's settings"
            )
    return list(value)


def _packages(value: Any) -> str | list[str] | None:
    if value in (None, ""):
        return None
    if isinstance(value, str):
        if value != "local" and not value.endswith(_REQUIREMENT_FILES):
            raise ValueError(
                'None, "local", a list of requirements, or the path of a requirements.txt, '
                "pyproject.toml or uv.lock is allowed"
            )
        return value
    return _requirements(value)


_REQUIREMENT_FILES = (".txt", ".in", "pyproject.toml", "uv.lock")


def _names(value: Any) -> list[str]:
    is_list = isinstance(value, (list, tuple))
    if not is_list or not all(isinstance(each, str) and _NAMES.match(each) for each in value):
        raise ValueError("a list of distributions' names is allowed, such as ['ruff']")
    return list(value)


_NAMES = re.compile(r"(?i)[a-z0-9]([a-z0-9._-]*[a-z0-9])?\Z")
_Packages = BeforeValidator(_packages)
_Requirements = BeforeValidator(_requirements)
_Names = BeforeValidator(_names)
_Number = BeforeValidator(_no_bool)
_UpperCase = BeforeValidator(_upper_case)
_Gib = BeforeValidator(_gib)
_Seconds = BeforeValidator(_seconds)


class _Says(enum.Enum):
    """What an option says, which each has to choose.

    WHERE: Where things are, who one is, or what runs: whose pickles are read here, and who gets
        what is uploaded. From a file of the working directory it counts only once its user has
        agreed; see `farcall.model.config_trust`.
    HOW: How a job is run, which costs money at most.
    """

    WHERE = "where"
    HOW = "how"


_WHERE, _HOW = _Says.WHERE, _Says.HOW
_Where = Annotated[str, _WHERE]


_HALVES = re.compile("[\ud800-\udfff]")
"""Surrogates, which UTF-8 has no bytes for."""

_CONTROLS = re.compile(f"[\t{terminal.CONTROLS}]")


def _has(pattern: re.Pattern[str], value: object) -> bool:
    """Tell whether a pattern is found in a text, or in a document with texts in it."""
    if isinstance(value, dict):
        return any(_has(pattern, part) for item in value.items() for part in item)
    if isinstance(value, (list, tuple)):
        return any(_has(pattern, part) for part in value)
    return isinstance(value, str) and pattern.search(value) is not None


def _default_region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


class Place(NamedTuple):
    """What errors call the things that options are set in.

    Attributes:
        constructor: The class that takes them as arguments.
        file: The file that has the section.
    """

    constructor: str
    file: str


_HOME = Place("BatchExecutor", "farcall.toml")


class Options(TypedDict, total=False):
    """The options as keyword arguments, for type checkers; see `Settings` for what they mean."""

    backend: Literal["batch"]
    profile: str
    region: str
    credentials: str
    batch_queue: str
    s3_bucket_name: str
    batch_job_definition_name: str
    batch_execution_role_name: str
    batch_job_role_name: str
    batch_job_log_group_name: str
    vcpu: float
    memory: float | str
    num_gpus: int
    nodes: int
    instance_type: str
    retry_attempts: int
    time_limit: int | str
    poll_freq: float | str
    cache_dir: str
    container_image_uri: str
    stock_image_uri: str
    architecture: Literal["x86_64", "arm64"]
    packages: str | list[str] | None
    extra_packages: list[str]
    exclude_packages: list[str]
    packages_host_folder: str
    prefix: str
    linger_s: float | str
    retry_on: Literal["failure", "infrastructure"]
    stuck_timeout_s: float | str | None
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
    call_texts: bool
    workflow: str
    page_url: str


class Settings(BaseModel):
    """Every option, checked when made.

    A size may have its unit, and so may a time: ``"4GiB"``, ``"512MiB"`` or ``"4GB"``, ``"90s"``
    or ``"1h30m"``; see `farcall.model.quantities`.

    Attributes:
        backend: Where jobs run: ``batch`` is AWS Batch.
        profile: AWS profile. ``default`` leaves the choice to ``AWS_PROFILE``.
        region: AWS region. Where it is not given anywhere, ``AWS_REGION``,
            ``AWS_DEFAULT_REGION`` and the profile's region come before ``us-east-1``.
        credentials: Path of the AWS credentials file. The default leaves the choice to
            ``AWS_SHARED_CREDENTIALS_FILE``. Keys in the environment come before either, unless
            ``profile`` names one of the file.
        batch_queue: Name or ARN of the job queue.
        s3_bucket_name: Bucket for payloads, results and output of functions, or the ARN or alias
            of an access point of it; empty for none, where there are command jobs alone.
        batch_job_definition_name: Definition whose image is used where ``container_image_uri``
            is empty; where there is no such definition, the stock image is.
            farcall submits with definitions of its own, named by their content.
        batch_execution_role_name: Name or ARN of the role that pulls the image and writes the
            log; empty for none (EC2 only).
        batch_job_role_name: Name or ARN of the role the task has; empty for none.
        batch_job_log_group_name: CloudWatch log group; empty for AWS's ``/aws/batch/job``.
        vcpu: vCPUs of a task. On EC2 a whole number; on Fargate also 0.25 and 0.5.
        memory: Memory of a task, at least 4 MiB. A number counts GiB, which AWS's pages and
            Covalent's plugin call GB; ``"4GB"`` is 4 * 10^9 bytes, which Batch is told as
            3815 MiB.
        num_gpus: GPUs of a task.
        nodes: Instances of a task, up to 1000. On more than one it is a multi-node parallel job,
            which needs EC2, and whose nodes start together; ``vcpu``, ``memory`` and
            ``num_gpus`` are those of each. The value is then the list of the nodes' values, and
            `farcall_runtime.node` tells the function where it runs.
        instance_type: Such as ``p4d.24xlarge``, for tasks on several nodes; empty for whatever
            the queue's compute environment starts. On one node it makes it such a job, too.
        retry_attempts: Attempts in all, 1 to 10; 1 means that nothing is retried.
        time_limit: Seconds an attempt may run, at least 60. The function is told a tenth of it
            before, at most 30 s, and has half of that to clean up.
        poll_freq: The longest time in seconds between two looks at a job; they follow each other
            faster while something happens.
        cache_dir: Folder for arguments and values that would take half the memory that is left,
            and where values of more than 64 MiB lie on their way into Covalent's store. The
            default stands for the system's folder for temporary files (``TMPDIR``).
        container_image_uri: Image of the jobs, built from farcall's Dockerfile. Where it is empty
            jobs run in the stock image and fetch from the bucket what they need of farcall.
        stock_image_uri: Image that has Python, of this minor version, and nothing of farcall's;
            empty for ``public.ecr.aws/docker/library/python:3.X-slim-trixie``.
        architecture: Processor of the jobs, ``x86_64`` or ``arm64``: what is made here for them
            is made for it.
        packages: What the tasks import, beside what the image holds: ``"local"`` for what is
            installed here, a list of requirements, or the path of a requirements file, a
            ``pyproject.toml`` or a ``uv.lock``. None, or an empty text, where the image holds all.
        extra_packages: Requirements on top of these.
        exclude_packages: Names of distributions that no task needs.
        packages_host_folder: Folder of the instances, such as ``/var/cache/farcall``, where jobs
            leave the archives of packages for others on the same instance; empty for none (EC2
            only). The user of the jobs' image has to be able to write to it.
        prefix: Key prefix in the bucket.
        linger_s: How long a submission waits for others, in seconds, to become one array job.
        retry_on: ``infrastructure`` retries only lost hosts and failed starts, so that the
            function's own exceptions are final; ``failure`` whatever may end differently. What
            ran out of memory is not tried again by either.
        stuck_timeout_s: Seconds after which a job that cannot be placed fails; None never. They
            count only while Batch says why it cannot place it, which it does of the job at the
            head of the queue.
        log_level: The least level of what the function logs that is written to stderr, with time,
            level and name, as long as it configures ``logging`` in no other way; ``OFF`` leaves
            that as Python has it.
        output: Show what jobs print to who awaits their values, while they run; see
            `farcall.Task.map`.
        tags: Tags of every job, at most 45.
        priority: Scheduling priority, 0 to 9999, for queues with a fair-share policy.
        share_identifier: Share identifier for such queues; empty for none.
        job_definition_extra: Merged into the RegisterJobDefinition request: any field Batch has.
        s3_encryption: Encryption that client and jobs ask S3 for with every object they store:
            ``AES256``, ``aws:kms`` or ``aws:kms:dsse``; empty for what the bucket has by default.
            Where the bucket's policy demands the header.
        s3_kms_key_id: Key of AWS KMS for it, by ID, ARN or alias; empty for the account's own.
        endpoint_url: URL of all services in place of AWS's own.
        keep_artifacts: Keep a task's objects in the bucket after its result was delivered.
        call_texts: Keep a line of each call's arguments in the bucket, which lists show: plain
            values, shapes of arrays, names of classes, at most 200 characters. What is named like
            a password, token, secret or key is left out.
        workflow: Name under which the command line and the page show the jobs, up to 128
            characters; empty for the script's, and in Covalent for the lattice's.
        page_url: Address of the page that ``farcall ui`` serves. Covalent's own page shows it
            with an electron's executor.

    Raises:
        SettingsError: A value is wrong, or an option is unknown.

    Source:
        https://docs.aws.amazon.com/batch/latest/APIReference/API_RegisterJobDefinition.html
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    backend: Annotated[Literal["batch"], _WHERE] = "batch"
    profile: _Where = "default"
    region: _Where = Field(default_factory=_default_region, pattern=r"^[a-z0-9-]+$")
    credentials: _Where = "~/.aws/credentials"
    batch_queue: _Where = Field("covalent-batch-queue", pattern=rf"^({_NAME}|arn:.+)$")
    s3_bucket_name: _Where = Field(
        "covalent-batch-job-resources",
        pattern=rf"^([a-z0-9][a-z0-9._-]{{1,61}}[a-z0-9]|{_ACCESS_POINT}|)$",
    )
    batch_job_definition_name: _Where = Field(
        "covalent-batch-jobs", pattern=rf"^({_NAME}(:\d+)?|arn:.+|)$"
    )
    batch_execution_role_name: _Where = Field(
        "ecsTaskExecutionRole", pattern=rf"^({_ROLE}|arn:.+|)$"
    )
    batch_job_role_name: _Where = Field("CovalentBatchJobRole", pattern=rf"^({_ROLE}|arn:.+|)$")
    batch_job_log_group_name: _Where = Field(
        "covalent-batch-job-logs", pattern=r"^[A-Za-z0-9_/.#-]{0,512}$"
    )
    vcpu: Annotated[float, _Number, _HOW] = Field(2, gt=0, allow_inf_nan=False)
    memory: Annotated[float, _Gib, _HOW] = Field(3.75, ge=4 / 1024, allow_inf_nan=False)
    num_gpus: Annotated[int, _Number, _HOW] = Field(0, ge=0)
    nodes: Annotated[int, _Number, _HOW] = Field(1, ge=1, le=1000)
    instance_type: Annotated[str, _HOW] = Field("", pattern=r"^[a-z0-9.-]{0,64}$")
    retry_attempts: Annotated[int, _Number, _HOW] = Field(3, ge=1, le=10)
    time_limit: Annotated[int, _Seconds, _HOW] = Field(300, ge=60)
    poll_freq: Annotated[float, _Seconds, _HOW] = Field(10, ge=0, allow_inf_nan=False)
    cache_dir: _Where = DEFAULT_CACHE_DIR
    container_image_uri: _Where = Field("", max_length=255)
    stock_image_uri: _Where = Field("", max_length=255)
    architecture: Annotated[Literal["x86_64", "arm64"], _HOW] = "x86_64"
    packages: Annotated[str | list[str] | None, _Packages, _WHERE] = None
    extra_packages: Annotated[list[str], _Requirements, _WHERE] = []
    exclude_packages: Annotated[list[str], _Names, _HOW] = []
    packages_host_folder: _Where = Field(
        "", pattern=r"^((/[A-Za-z0-9_.@+-]*[A-Za-z0-9_@+-][A-Za-z0-9_.@+-]*)+|)$"
    )
    prefix: _Where = Field("farcall", pattern=r"^[A-Za-z0-9!_.*'()/-]*$", max_length=512)
    linger_s: Annotated[float, _Seconds, _HOW] = Field(0.1, ge=0, le=60)
    retry_on: Annotated[Literal["failure", "infrastructure"], _HOW] = "infrastructure"
    stuck_timeout_s: Annotated[float | None, _Seconds, _HOW] = Field(
        None, ge=0, allow_inf_nan=False
    )
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "OFF"], _UpperCase, _HOW
    ] = "INFO"
    output: Annotated[bool, _HOW] = False
    tags: Annotated[dict[str, str], _HOW] = Field({}, max_length=45)
    priority: Annotated[int | None, _Number, _HOW] = Field(None, ge=0, le=9999)
    share_identifier: Annotated[str, _HOW] = Field("", pattern=r"^[A-Za-z0-9]{0,255}$")
    job_definition_extra: Annotated[dict[str, Any], _WHERE] = Field(
        {}, repr=False
    )  # may hold secrets
    s3_encryption: Annotated[Literal["", "AES256", "aws:kms", "aws:kms:dsse"], _WHERE] = ""
    s3_kms_key_id: _Where = Field(
        "", pattern=rf"^((alias/)?[A-Za-z0-9/_-]{{1,256}}|{_KMS_ARN}[A-Za-z0-9/_-]{{1,256}}|)$"
    )
    endpoint_url: _Where = Field("", pattern=r"^(https?://[^\s]+|)$")
    keep_artifacts: Annotated[bool, _HOW] = False
    call_texts: Annotated[bool, _HOW] = True
    workflow: Annotated[str, _HOW] = Field("", max_length=128)
    page_url: _Where = Field("http://127.0.0.1:8750", pattern=r"^(https?://[^\s#]+|)$")

    def __init__(self, **options: Unpack[Options]) -> None:
        self._load(options, _HOME)

    def _load(
        self, options: Mapping[str, Any], place: Place, section: Mapping[str, Any] | None = None
    ) -> None:
        """Set the options that are given, and the others from the environment and the file.

        Args:
            options: Those given.
            place: What errors call things.
            section: Those in another program's file, in place of farcall.toml's.

        Raises:
            SettingsError: A value is wrong, or an option is unknown.
        """
        _refuse_unknown(options, place.constructor)
        environment = from_environment()
        _refuse_unknown(environment, "the environment", ENVIRONMENT_PREFIX)
        given = {**environment, **options}
        if section is None:
            section = _agreed_file(given.keys())
        try:
            super().__init__(**{**section, **given})
        except ValidationError as error:
            raise _explain(error, place) from None

    @field_validator("*", mode="before")
    @classmethod
    def _check_text(cls, value: object, field: ValidationInfo) -> object:
        """Refuse what AWS and the file system refuse later, in words that name no option."""
        is_document = field.field_name == "job_definition_extra"  # whose texts may have lines
        if _has(_HALVES if is_document else _CONTROLS, value):
            raise ValueError("text without control characters and lone surrogates is allowed")
        return value

    @field_validator("prefix")
    @classmethod
    def _trim_prefix(cls, prefix: str) -> str:
        prefix = prefix.strip("/")
        if prefix and not is_key(prefix):
            raise ValueError("no // is allowed, and no . or .. between slashes")
        return prefix

    @field_validator("endpoint_url", "page_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if "://" not in url:
            return url
        parts = urlsplit(url)  # its ValueError, and that of the port, say what is wrong
        if not parts.hostname or parts.port == 0:
            raise ValueError("a URL names a host, and a port from 1 on if any")
        return url

    @field_validator("s3_bucket_name")
    @classmethod
    def _spell_access_point(cls, name: str) -> str:
        """Take the spelling of an ARN that can stand where a bucket's name does in a URL."""
        return name.replace(":accesspoint/", ":accesspoint:")

    @field_validator("s3_kms_key_id")
    @classmethod
    def _check_kms_key(cls, key: str, field: ValidationInfo) -> str:
        encryption = field.data.get("s3_encryption", "aws:kms")  # not there: refused by itself
        if key and not encryption.startswith("aws:kms"):
            raise ValueError(
                "a key goes with s3_encryption aws:kms or aws:kms:dsse, and s3_encryption is "
                f"{encryption!r}"
            )
        return key

    @field_validator("endpoint_url")
    @classmethod
    def _trim_endpoint(cls, url: str) -> str:
        return url.rstrip("/")

    @property
    def stock_image(self) -> str:
        """Image that holds Python alone, of this process's minor version."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return self.stock_image_uri or f"{_STOCK_IMAGE}:{version}-slim-trixie"

    @functools.cached_property
    def fingerprint(self) -> str:
        """Text that is equal for settings with equal values."""
        return self.model_dump_json()

    @classmethod
    def within(cls, section: dict[str, Any], place: Place, **options: Any) -> Settings:
        """Return settings whose file is another program's.

        Args:
            section: Options from that file, which come after arguments and environment.
            place: What errors call things there.
            **options: Arguments.

        Raises:
            SettingsError: A value is wrong, or an option is unknown.
        """
        _refuse_unknown(section, f"{place.file}, section {_HEADING}")
        settings = cls.__new__(cls)
        settings._load(options, place, section)
        return settings

    def replace(self, **options: Unpack[Options]) -> Settings:
        """Return settings that differ in some options.

        Raises:
            SettingsError: A value is wrong, or an option is unknown.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**given, **options})

    def with_packages(self, requirements: Iterable[str]) -> Settings:
        """Return settings with more ``extra_packages``; nothing is read anew.

        Args:
            requirements: They have been parsed.
        """
        other = self.model_copy(update={"extra_packages": [*self.extra_packages, *requirements]})
        other.__dict__.pop("fingerprint", None)  # which is this one's
        return other


def from_environment() -> dict[str, Any]:
    """Return the options in the environment, unknown ones too.

    What else a job of ours finds in its environment is none.
    """
    found = {
        name[len(ENVIRONMENT_PREFIX) :].lower(): text
        for name, text in os.environ.items()
        if name.startswith(ENVIRONMENT_PREFIX) and name not in _NO_OPTIONS
    }
    return {name: from_text(name, text) for name, text in found.items()}


def from_text(option: str, text: str) -> Any:
    """Return an option's value: text as it is, everything else as JSON where it is."""
    field = Settings.model_fields.get(option)
    if field is None or field.annotation is str:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text  # which Settings reads, or refuses by the option's name


def files() -> list[Path]:
    """Return the files of options that there are; the first one is in force.

    Raises:
        SettingsError: FARCALL_CONFIG names none.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise SettingsError(f"{CONFIG_VARIABLE} is {named!r}, and there is no such file")
        return [path]
    found = []
    for path in _FILES:
        with contextlib.suppress(RuntimeError):  # nobody knows where home is
            there = path.expanduser()
            if there.is_file():
                found.append(there)
    return found


def from_file() -> dict[str, Any]:
    """Return the options of the file in force, whether agreed to or not.

    Raises:
        SettingsError: It cannot be read, or has an unknown option.
    """
    there = files()
    return read(there[0]) if there else {}


def read(path: Path) -> dict[str, Any]:
    """Return the options of a file.

    Raises:
        SettingsError: It cannot be read, or has an unknown option.
    """
    section = table(path)
    _refuse_unknown(section, f"{path}, section {_HEADING}")
    return section


def table(path: Path) -> dict[str, Any]:
    """Return the options of a file, unknown ones too.

    Raises:
        SettingsError: It cannot be read, or options stand where they are not read.
    """
    try:
        document: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from error
    return _section(path, document)


def _section(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of a file's options, and refuse what was meant for it.

    Other programs' tables may stand beside it.
    """
    outer, inner = SECTION
    executors = document.get(outer, {})
    section = executors.get(inner, {}) if isinstance(executors, dict) else None
    if not isinstance(section, dict):
        raise SettingsError(f"{path}: {_HEADING} must be a table of options")
    others = {name: found for name, found in document.items() if name != outer}
    others |= {f"{outer}.{name}": found for name, found in executors.items() if name != inner}
    loose = [name for name, found in others.items() if not isinstance(found, dict)]
    if loose:
        raise SettingsError(
            f"{path} has {', '.join(loose)} outside of any table that is read; options "
            f"stand below a line {_HEADING}"
        )
    for name, table in _tables(others):
        last = name.removeprefix(f"{outer}.")
        if last != name and last.partition(".")[0] in _COVALENTS:
            continue
        is_stray = not section and any(option in Settings.model_fields for option in table)
        if is_stray or difflib.get_close_matches(last.lower(), _MEANT, 1, _MEANT_RATIO):
            raise SettingsError(
                f"{path} has a table [{name}], where no option is read; did you mean {_HEADING}?"
            )
    return section


_MEANT, _MEANT_RATIO = (".".join(SECTION), *SECTION, "farcall"), 0.8
"""What a misspelt table is near to."""

_COVALENTS = {
    *("awsbraket", "awsecs", "awslambda", "azurebatch", "base", "braket", "dask", "ec2"),
    *("gcpbatch", "local", "remote_executor", "slurm", "ssh"),
}
"""Covalent's other executors: their tables have options of the same names, such as cache_dir."""


def _tables(tables: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield tables with their names, and for those of nothing but tables the inner ones."""
    for name, found in tables.items():
        if found and all(isinstance(value, dict) for value in found.values()):
            yield from ((f"{name}.{key}", value) for key, value in found.items())
        else:
            yield name, found


def decided(path: Path, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return which of a file's options count only once its user agreed, with their values."""
    is_own = config_trust.is_own(path)
    return {name: value for name, value in section.items() if not is_own or _says_where(name)}


def _says_where(option: str) -> bool:
    return _HOW not in Settings.model_fields[option].metadata


def _agreed_file(given: Collection[str]) -> dict[str, Any]:
    """Return the options of the file in force, once its user agreed to what it decides.

    Args:
        given: Options that come from elsewhere, before it.

    Raises:
        SettingsError: That is not so, or it cannot be read, or has an unknown option.
    """
    section = from_file()
    if not os.environ.get(CONFIG_VARIABLE) and files()[:1] == [WORKING_FILE]:
        decides = decided(WORKING_FILE, section)
        if not decides.keys() <= set(given):
            config_trust.check(WORKING_FILE, decides)
    return section


def _refuse_unknown(options: Mapping[str, Any], where: str, prefix: str = "") -> None:
    known = Settings.model_fields
    for name in options:
        if name in known:
            continue
        spelled = [f"{prefix}{n.upper()}" if prefix else n for n in known]
        found = f"{prefix}{name.upper()}" if prefix else name
        close = difflib.get_close_matches(found, spelled, 1)
        hint = f"did you mean {close[0]}?" if close else f"options are: {', '.join(spelled)}"
        raise SettingsError(f"{where} has an unknown option {found!r}; {hint}", option=name)


def _explain(error: ValidationError, place: Place) -> SettingsError:
    problems = error.errors()
    lines = [_explain_one(problem, place) for problem in problems]
    return SettingsError("\n".join(lines), option=str(problems[0]["loc"][0]))


def _explain_one(problem: ErrorDetails, place: Place) -> str:
    option = str(problem["loc"][0])
    found = problem["input"]
    kind = type(found).__name__
    shown = f"a {kind}" if option in _SECRET else f"{_PASSWORD.sub('', repr(found))} ({kind})"
    return (
        f"{option} is {shown}: {_allowed(option, problem)}. "
        f"Set {option} in {place.constructor}({option}=...), in {_HEADING} of "
        f"{place.file} or in {ENVIRONMENT_PREFIX}{option.upper()}"
    )


def _allowed(option: str, problem: ErrorDetails) -> str:
    if problem["type"] == "string_pattern_mismatch":
        return PATTERNS.get(option, "it has characters that are not allowed")
    if problem["type"] == "dict_type":
        return "a table is allowed, which is JSON in the environment and on the command line"
    text = problem["msg"].removeprefix("Value error, ")
    return text[0].lower() + text[1:]


_SECRET = ("job_definition_extra",)
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+@")

_NO_OPTIONS = {CONFIG_VARIABLE, ENV_RUN, *JOB_ENVIRONMENT} - {
    f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in Settings.model_fields
}
"""Variables that are ours; a job's region and workflow are options of what it submits, too."""

PATTERNS = {
    "region": "a region's name, such as eu-west-1, is allowed",
    "batch_queue": "a queue's name (up to 128 letters, digits, - and _) or its ARN is allowed",
    "s3_bucket_name": "3 to 63 lower-case letters, digits, dots and hyphens are allowed, "
    "or the ARN of an access point in one region, or an empty text for none",
    "batch_job_definition_name": "a definition's name, name:revision or ARN is allowed",
    "batch_execution_role_name": "a role's name (up to 64 characters) or its ARN is allowed",
    "batch_job_role_name": "a role's name (up to 64 characters) or its ARN is allowed",
    "batch_job_log_group_name": "up to 512 letters, digits and _ / . # - are allowed",
    "s3_kms_key_id": "a key's ID, its ARN, or an alias such as alias/mine or its ARN is allowed",
    "packages_host_folder": "a path on the instances, such as /var/cache/farcall, is allowed",
    "prefix": "letters, digits and ! _ . * ' ( ) / - are allowed",
    "instance_type": "an instance type such as p4d.24xlarge is allowed",
    "share_identifier": "up to 255 letters and digits are allowed",
    "endpoint_url": "a URL that begins with http:// or https:// is allowed",
    "page_url": "a URL that begins with http:// or https:// is allowed, without a # and the token "
    "behind it, for Covalent's page shows it",
}
