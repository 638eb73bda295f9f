"""Contract of client and container: environment, object keys, exit codes. No I/O."""

from __future__ import annotations

import enum
from typing import NamedTuple

PROTOCOL_VERSION = 1
"""Version of keys, envelopes and environment, which is part of every key and every header."""

ENV_BUNDLE = "FARCALL_BUNDLE"
"""``s3://bucket/prefix/v1/<run>/bundles/<bundle>``; every other key derives from it."""

ENV_DIGEST = "FARCALL_DIGEST"
"""SHA-256 of the bundle's index, 64 lower-case hexadecimal digits."""

ENV_OUTCOME_KEY = "FARCALL_OUTCOME_KEY"
"""Random key of the bundle, 64 hexadecimal digits: the container signs outcomes with it."""

ENV_BUCKET_URL = "FARCALL_BUCKET_URL"
"""URL of the bucket, if it differs from `bucket_url`. ``file:///...`` is a folder, for tests."""

ENV_REGION = "FARCALL_REGION"
"""Region of the bucket, if the job cannot determine it."""

ENV_ENCRYPTION = "FARCALL_S3_ENCRYPTION"
"""Encryption of every object, unless the bucket decides. Jobs that the job submits inherit it."""

ENV_KMS_KEY = "FARCALL_S3_KMS_KEY_ID"
"""AWS KMS key of that encryption."""

ENV_PROJECTS = "FARCALL_PROJECTS"
"""Folder in which the project's files are unpacked, if it is not TMPDIR; set by the emulator."""

ENV_WORKFLOW = "FARCALL_WORKFLOW"
"""Name of the job's workflow, for lists. Jobs that the job submits inherit it."""

ENV_DISPATCH = "FARCALL_DISPATCH"
"""Covalent's ID of the job's dispatch, if it has one."""

ENV_RETRY_OF = "FARCALL_RETRY_OF"
"""ID of the job whose failed tasks this job runs again, for lists."""

ENV_RUNGS = "FARCALL_RUNGS"
"""Positions of the job's memory and queue in the options' lists, such as ``memory=2/3``."""

ENV_STREAM_S = "FARCALL_STREAM_S"
"""Interval between two output chunks in seconds. Only set by the local AWS emulator, for tests."""

ENV_LOG_LEVEL = "FARCALL_LOG_LEVEL"
"""Minimum level of the function's log messages, if it differs from `LOG_LEVEL`."""

LOG_LEVEL = "INFO"

ENV_THREADS = "FARCALL_THREADS"
"""Number of threads for numerical libraries: the job's vCPUs.

A library would count the host's processors, of which the job may have a part.
"""

THREAD_COUNTS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "NUMBA_NUM_THREADS",
)
"""Variables with which numerical libraries set their number of threads."""

ENV_WORKER_IDLE_S = "FARCALL_WORKER_IDLE_S"
"""Makes the container a warm worker, which ends after this number of seconds without a call.

`ENV_BUNDLE` then names the pool, and `ENV_OUTCOME_KEY` is the pool's key.
"""

JOB_ENVIRONMENT = (
    ENV_BUNDLE,
    ENV_DIGEST,
    ENV_OUTCOME_KEY,
    ENV_BUCKET_URL,
    ENV_REGION,
    ENV_ENCRYPTION,
    ENV_KMS_KEY,
    ENV_WORKFLOW,
    ENV_DISPATCH,
    ENV_LOG_LEVEL,
    ENV_THREADS,
    ENV_RETRY_OF,
    ENV_RUNGS,
    ENV_WORKER_IDLE_S,
)

ENV_OWN_INDEX = "FARCALL_INDEX"
"""Index of the array task.

This variable and the following ones up to `ENV_OWN_MAIN_ADDRESS` are for platforms without
Batch's own variables.
"""

ENV_OWN_ATTEMPT = "FARCALL_ATTEMPT"
"""Number of the attempt, from 1, if the platform knows it."""

ENV_FAILED_ATTEMPTS = "FARCALL_FAILED_ATTEMPTS"
"""Number of failed attempts that count; may be empty."""

ENV_IGNORED_ATTEMPTS = "FARCALL_IGNORED_ATTEMPTS"
"""Number of failed attempts that do not count, because they were disrupted; may be empty."""

ENV_OWN_JOB_ID = "FARCALL_JOB_ID"
"""ID of the job, without the index of an array task."""

ENV_OWN_NODE_INDEX = "FARCALL_NODE_INDEX"
ENV_OWN_NODES = "FARCALL_NODE_COUNT"
"""Not ``FARCALL_NODES``, which is an option of jobs that the job submits."""

ENV_OWN_MAIN_ADDRESS = "FARCALL_MAIN_ADDRESS"
"""Host name or IP address of node 0, on all nodes."""

ENV_CANCELLABLE = "FARCALL_CANCELLABLE"
"""``1`` if a task can be cancelled before its first attempt.

The container then checks for the cancel marker (`Location.cancelled_key`) first.
"""

PLATFORM_ENVIRONMENT = (
    ENV_OWN_INDEX,
    ENV_OWN_ATTEMPT,
    ENV_FAILED_ATTEMPTS,
    ENV_IGNORED_ATTEMPTS,
    ENV_OWN_JOB_ID,
    ENV_OWN_NODE_INDEX,
    ENV_OWN_NODES,
    ENV_OWN_MAIN_ADDRESS,
    ENV_CANCELLABLE,
)

ENV_ARRAY_INDEX = "AWS_BATCH_JOB_ARRAY_INDEX"
ENV_ATTEMPT = "AWS_BATCH_JOB_ATTEMPT"
ENV_JOB_ID = "AWS_BATCH_JOB_ID"

ENV_NODE_INDEX = "AWS_BATCH_JOB_NODE_INDEX"
ENV_NODES = "AWS_BATCH_JOB_NUM_NODES"
ENV_MAIN_NODE = "AWS_BATCH_JOB_MAIN_NODE_INDEX"
ENV_MAIN_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
"""Batch sets the last variable on all nodes except the main node, which is always node 0.
https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html
"""

RECEIPTS = ".delivered/"
"""Suffix of a bundle's key in the keys of its receipts; bundle names contain no dot."""

RETRIES = ".retried/"
"""Suffix in the keys of the notes on retries of its tasks."""

CANCELLED = ".cancelled/"
"""Suffix in the keys of the cancel markers of its tasks."""

STDOUT = "stdout"
STDERR = "stderr"
STREAMS = (STDOUT, STDERR)

VALUE_PART_BYTES = 16 * 1024 * 1024
"""Size in bytes of the parts of a result that is too large for its outcome.

The last part can be smaller. S3's multipart uploads could leave parts that no list of objects
shows.
"""

SHARED_LEAST_BYTES = 1024 * 1024
"""Minimum size of a value that is stored as a shared object: 1 MiB.

All bundles below a prefix share the object.
"""

SHARED = "shared"
"""Folder of these objects, next to the runs, and name of the bundle's entry for them.

The entry names the referenced values: ``{"<sha256>": ["<generation>", <bytes>]}``.
"""

PACKAGES = "packages"
"""Folder of packages, next to the runs, and name of the bundle's entry for them.

The entry names the manifest of the packages that the tasks import: ``["<sha256>", <bytes>]``.
"""

RUNTIME = "runtime"
"""Folder of archives of this package, for images without it."""

SOON_CHUNKS = 150
"""Number of chunks of a stream after which the container uploads less often.

This is five minutes of steady output. It does not apply while a client follows the output.
"""

FOLLOWED_S = 150.0
"""Time in seconds for which a new follow marker counts.

A client that follows the output stores the marker more than twice in that time.
"""

RETRY_ON_FAILURE = "failure"
"""Value of a bundle's ``retry_on`` with which Batch also retries exceptions of the function."""


TERMINATED_TYPE = "farcall_runtime.task.TaskTerminated"
"""Type name of the exception that the function gets when its job is stopped."""


class OutcomeStatus(enum.StrEnum):
    """How an attempt ended; the value of ``status`` in its outcome."""

    DONE = "done"
    """The child process finished; each of its calls has a `CallStatus`."""
    EXITED = "exited"
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    TERMINATED = "terminated"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"
    """The task did not run; ``code`` and ``detail`` give the reason."""
    PEER_FAILED = "peer_failed"
    """On the main node of a multi-node job: another node failed, and ``peer`` is its outcome."""


class CallStatus(enum.StrEnum):
    """How one call ended; the value of ``status`` in a record of ``results``."""

    RETURNED = "returned"
    RAISED = "raised"
    UNPICKLABLE = "unpicklable"
    """The function returned, but its result cannot be pickled."""
    UNREADABLE = "unreadable"
    """The function or its arguments could not be unpickled, so nothing was called."""


class ExitCode(enum.IntEnum):
    """Exit codes of the container.

    59 to 69 are final, because another attempt would fail in the same way. The job's retry rules
    exclude them, Batch's with the single pattern ``6*``. After 70 to 79, another attempt can
    succeed.
    """

    RETURNED = 0
    RAISED = 1
    CANCELLED = 59
    """The array task was cancelled with a marker in the bucket, and did not run. Only on platforms
    that cannot terminate a single array task, unlike Batch.
    """
    OUT_OF_MEMORY = 60
    """The kernel killed the task's process for its memory; another attempt has no more."""
    SHARED_MISSING = 61
    """A shared value that the function or its arguments reference is not in the bucket."""
    STORE_UNFIT = 62
    """The bucket's store lacks a feature of S3."""
    OUTCOME_OCCUPIED = 63
    """Another writer's object has the key of the outcome, which is written once."""
    BAD_ENVIRONMENT = 64
    BUNDLE_MISSING = 65
    INTEGRITY = 66
    VERSION_MISMATCH = 67
    TIMED_OUT = 68
    UNREADABLE = 69
    """The function or its arguments could not be unpickled: usually a package is missing."""
    OUTCOME_NOT_STORED = 70
    """The function returned or raised, but its outcome is lost: the bucket was unreachable."""
    CHILD_KILLED = 71
    PACKAGES_MISSING = 72
    """A package of the bundle is not in the bucket. Another submission with the package stores it
    again, so another attempt can find it.
    """
    STORAGE_UNREACHABLE = 73
    SUPERVISOR_FAILED = 74
    """farcall's own process in the container failed, usually for lack of processes or files."""
    DISK_FULL = 75
    """The container's disk has no space for the packages; another instance may have more."""
    TERMINATED = 143
    """SIGTERM was received. Never 0: Batch would count a reclaimed spot instance as success."""


FINAL_CODES = range(59, 70)
"""The final exit codes."""

FINAL_EXIT_CODES = "6*"
"""The final exit codes on Batch, as a pattern for its ``onExitCode``."""


class Location(NamedTuple):
    """Keys of one bundle, and of all objects that belong to it.

    Layout::

        <root>/bundles/<bundle>                              the client, once, before SubmitJob
        <root>/bundles/<bundle>.delivered/<number>           the client, before it deletes outcomes
        <root>/bundles/<bundle>.retried/<bundle>             the client that retries its tasks
        <root>/bundles/<bundle>.cancelled/<index>            the client that cancels one task
        <root>/outcomes/<bundle>/<index>                     the container, once: the commit point
        <root>/outcomes/<bundle>/nodes/<attempt>/<node>      a node other than the main node
        <root>/values/<bundle>/<index>/<attempt>/<part>      body of a large outcome, in parts
        <root>/attempts/<bundle>/<index>/<attempt>           outcome of an attempt before the last
        <root>/streams/<bundle>/<index>/<attempt>/<stream>/<sequence>      output, in chunks
        <root>/streams/<bundle>/<index>/followed             a client that follows the output

    The index is the array task's. For a multi-node job it is the node's index under
    ``values`` and ``streams``; elsewhere it is 0, because the main node commits for all nodes once
    it has seen their outcomes.

    Attributes:
        bucket: Name of the bucket.
        root: Key prefix of the run, ``<prefix>/v1/<run>``, without slashes at either end.
        bundle: Name of the bundle, unique in the run.
    """

    bucket: str
    root: str
    bundle: str

    @classmethod
    def parse(cls, url: str) -> Location:
        """Parse the value of ``FARCALL_BUNDLE``.

        Raises:
            ValueError: The text is not the URL of a bundle of this protocol version.
        """
        scheme, _, rest = url.partition("://")
        bucket, _, key = rest.partition("/")
        root, _, bundle = key.rpartition("/bundles/")
        if scheme != "s3" or not bucket or "/" in bundle or not _has_version(root, key):
            raise ValueError(
                f"{ENV_BUNDLE} is {url!r}; it must have the form "
                f"s3://BUCKET/PREFIX/v{PROTOCOL_VERSION}/RUN/bundles/BUNDLE"
            )
        return cls(bucket, root, bundle)

    @property
    def url(self) -> str:
        """The value of ``FARCALL_BUNDLE``."""
        return f"s3://{self.bucket}/{self.bundle_key}"

    @property
    def bundle_key(self) -> str:
        """Key of the bundle itself."""
        return f"{self.root}/bundles/{self.bundle}"

    def receipt_key(self, number: int) -> str:
        """Return the key of a receipt, by which a client lists the results that it has."""
        return f"{self.bundle_key}{RECEIPTS}{number}"

    def shared_key(self, sha256: str, generation: str) -> str:
        """Return the key of a shared value.

        Args:
            sha256: Digest of the value, 64 lower-case hexadecimal digits.
            generation: Unique name of the upload, as the bundle's index gives it.
        """
        return f"{self.root.rpartition('/')[0]}/{SHARED}/{sha256}/data/{generation}"

    def package_key(self, sha256: str) -> str:
        """Return the key of a package's archive, or of a manifest of packages.

        Args:
            sha256: Digest of the object, 64 lower-case hexadecimal digits.
        """
        return f"{packages_prefix(self.root)}{sha256}"

    @property
    def retries_prefix(self) -> str:
        """Common key prefix of the notes on retries of its tasks, with the trailing slash."""
        return f"{self.bundle_key}{RETRIES}"

    def retry_key(self, bundle: str) -> str:
        """Return the key of the note that another bundle retries some of its tasks."""
        return f"{self.retries_prefix}{bundle}"

    def cancelled_key(self, index: int) -> str:
        """Return the key of a task's cancel marker, which its container checks."""
        return f"{self.bundle_key}{CANCELLED}{index}"

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Common key prefixes of the bundle's outcomes and output, with trailing slashes."""
        kinds = ("attempts", "outcomes", "streams", "values")
        return tuple(f"{self.root}/{kind}/{self.bundle}/" for kind in kinds)

    def outcome_key(self, index: int) -> str:
        """Return the key of a task's final outcome; the index is 0 for a single job."""
        return f"{self.root}/outcomes/{self.bundle}/{index}"

    def node_key(self, attempt: int, node: int) -> str:
        """Return the key of the outcome of a node other than the main node, per attempt."""
        return f"{self.nodes_prefix(attempt)}{node}"

    def nodes_prefix(self, attempt: int) -> str:
        """Return the common key prefix of an attempt's nodes, with the trailing slash."""
        return f"{self.root}/outcomes/{self.bundle}/nodes/{attempt}/"

    def value_key(self, index: int, attempt: int, part: int) -> str:
        """Return the key of a part of a result that is too large for its outcome."""
        return f"{self.value_prefix(index, attempt)}{part:08d}"

    def value_prefix(self, index: int, attempt: int) -> str:
        """Return the common key prefix of these parts, with the trailing slash."""
        return f"{self.root}/values/{self.bundle}/{index}/{attempt}/"

    def attempt_key(self, index: int, attempt: int) -> str:
        """Return the key of the outcome of an attempt that Batch may retry."""
        return f"{self.attempts_prefix}{index}/{attempt}"

    @property
    def attempts_prefix(self) -> str:
        """Common key prefix of these outcomes, with the trailing slash."""
        return f"{self.root}/attempts/{self.bundle}/"

    def chunk_key(self, index: int, attempt: int, stream: str, sequence: int) -> str:
        """Return the key of a chunk of output; sequences count from 0 and sort as text."""
        return f"{self.stream_prefix(index, attempt, stream)}{sequence:08d}"

    def stream_prefix(self, index: int, attempt: int, stream: str) -> str:
        """Return the common key prefix of a stream's chunks, with the trailing slash."""
        return f"{self.streams_prefix(index)}{attempt}/{stream}/"

    def streams_prefix(self, index: int) -> str:
        """Return the common key prefix of a task's output, with the trailing slash."""
        return f"{self.root}/streams/{self.bundle}/{index}/"

    def followed_key(self, index: int) -> str:
        """Return the key of a task's follow marker, stored by clients that follow it."""
        return f"{self.streams_prefix(index)}followed"


def bucket_url(bucket: str, region: str) -> str:
    """Return a bucket's usual URL; `ENV_BUCKET_URL` overrides it.

    Source:
        https://docs.aws.amazon.com/AmazonS3/latest/userguide/VirtualHosting.html
    """
    return f"https://{bucket}.s3.{region}.amazonaws.com"


LARGEST_INBOX_BYTES = 1024 * 1024
"""Maximum size of a warm worker's inbox; other writers can store anything."""


class WorkerPlace(NamedTuple):
    """Location of a warm worker's objects.

    Attributes:
        root: Key prefix of the run.
        pool: Name of the pool, unique in the run.
        number: Index of the worker.
    """

    root: str
    pool: str
    number: int

    @property
    def inbox_key(self) -> str:
        """Key of the inbox, which the client writes."""
        return f"{workers_prefix(self.root, self.pool)}inbox/{self.number}"

    @property
    def state_key(self) -> str:
        """Key of the state, which the worker writes."""
        return f"{workers_prefix(self.root, self.pool)}state/{self.number}"


def workers_prefix(root: str, pool: str) -> str:
    """Return the common key prefix of a pool's workers, with the trailing slash."""
    return f"{root}/workers/{pool}/"


def outcomes_prefix(root: str) -> str:
    """Return the common key prefix of a run's final outcomes: the client's inbox."""
    return f"{root}/outcomes/"


def bundles_prefix(root: str) -> str:
    """Return the common key prefix of a run's bundles."""
    return f"{root}/bundles/"


def packages_prefix(root: str) -> str:
    """Return the common key prefix of all packages, with the trailing slash.

    The rest of a key is the SHA-256 of the object. Clients never delete packages.

    Args:
        root: Key prefix of any run; all runs below a prefix in the bucket share packages.
    """
    return f"{root.rpartition('/')[0]}/{PACKAGES}/"


def runtime_prefix(root: str) -> str:
    """Return the common key prefix of the runtime's archives, with the trailing slash.

    The rest of a key is the SHA-256 of the object. Clients never delete archives.

    Args:
        root: Key prefix of any run; all runs below a prefix in the bucket share the archives.
    """
    return f"{root.rpartition('/')[0]}/{RUNTIME}/"


def run_root(prefix: str, run: str) -> str:
    """Return the key prefix of a run.

    Args:
        prefix: The user's prefix in the bucket, may be empty; slashes at its ends are ignored.
        run: Name of the run.
    """
    return "/".join(part for part in (prefix.strip("/"), f"v{PROTOCOL_VERSION}", run) if part)


def describe() -> dict[str, object]:
    """Return the contract as plain values, for comparing an image with a client."""
    where = Location("BUCKET", run_root("PREFIX", "RUN"), "BUNDLE")
    return {
        "protocol_version": PROTOCOL_VERSION,
        "environment": list(JOB_ENVIRONMENT),
        "platform_environment": list(PLATFORM_ENVIRONMENT),
        "exit_codes": {code.name: code.value for code in ExitCode},
        "keys": {
            "bundle": where.bundle_key,
            "receipt": where.receipt_key(0),
            "retry": where.retry_key("BUNDLE"),
            "cancelled": where.cancelled_key(7),
            "outcome": where.outcome_key(7),
            "node": where.node_key(1, 7),
            "value": where.value_key(7, 1, 0),
            "attempt": where.attempt_key(7, 1),
            "chunk": where.chunk_key(7, 1, STDOUT, 0),
            "followed": where.followed_key(7),
            "shared": where.shared_key("SHA256", "GENERATION"),
            "package": where.package_key("SHA256"),
            "runtime": f"{runtime_prefix(where.root)}SHA256",
            "inbox": WorkerPlace(where.root, "POOL", 7).inbox_key,
            "state": WorkerPlace(where.root, "POOL", 7).state_key,
        },
    }


def usage_text(wall_s: float, cpu_s: float, peak_memory_bytes: int) -> str:
    """Return the last line of a task's log, without its prefix ``farcall: ``.

    It reports the task's resource usage after its result was delivered and deleted.
    """
    memory_mib = peak_memory_bytes / 2**20
    return f"the task took {wall_s:.2f} s, {cpu_s:.2f} s of CPU time and {memory_mib:.1f} MiB"


def module_arguments(module: str) -> tuple[str, str, str]:
    """Return Python arguments that run a module with a safe import path.

    ``python -m`` puts the working directory first, so a ``json.py`` or ``logging.py`` there would
    replace the standard library's module.

    Source:
        https://docs.python.org/3/using/cmdline.html#cmdoption-P
    """
    return "-P", "-m", module


def is_key(text: str) -> bool:
    """Return whether S3's clients accept a text as a key without changes.

    obstore and AWS's console reject or change keys with an empty segment, ``.`` or ``..`` between
    slashes, or with unprintable characters.
    """
    return text.isprintable() and not {"", ".", ".."}.intersection(text.split("/"))


def is_digest(text: str) -> bool:
    """Return whether a text is a SHA-256 in keys: 64 lower-case hexadecimal digits."""
    return len(text) == 64 and frozenset("0123456789abcdef").issuperset(text)


def _has_version(root: str, key: str) -> bool:
    return root.split("/")[-2:-1] == [f"v{PROTOCOL_VERSION}"] and is_key(key)
