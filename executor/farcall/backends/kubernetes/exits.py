"""Exit codes of containers in a cluster: the same endings as everywhere, and what to do there.

No I/O.
"""

from __future__ import annotations

from dataclasses import replace

from farcall.backends.kubernetes.texts import IMAGE
from farcall.model import errors, start_script
from farcall.model.endings import MEMORY, Verdict
from farcall.model.exit_codes import EXITS
from farcall_runtime.contract import ExitCode

LOST = "set retry_attempts to 2 or more: what a node's loss ends is then run again"

_RIGHTS = "the pod's rights on s3_bucket_name (service_account, s3_secret, or the node's role)"
_WAY = "the cluster's network has to let pods reach S3 (endpoint_url)"
_DISK = (
    "give the pod more disk: ephemeral-storage in the resources of pod_overlay, or a node with a "
    "larger one; where the temporary folder is memory, more of that"
)

_REMEDIES: dict[int, str] = {
    ExitCode.BAD_ENVIRONMENT: "build image from this version's Dockerfile, and leave out of "
    "pod_overlay what sets FARCALL_ variables",
    ExitCode.BUNDLE_MISSING: "a lifecycle rule of s3_bucket_name must not be shorter than the "
    "wait in the queue, and nobody may delete bundles; then submit again. Nothing is to be "
    "done where farcall deleted it, for the value had been delivered",
    ExitCode.VERSION_MISMATCH: "use the same Python minor and the same farcall here and in image",
    ExitCode.UNREADABLE: 'set packages to "auto", or install what they import in image',
    ExitCode.OUTCOME_NOT_STORED: f"s3:PutObject is missing in {_RIGHTS} (and "
    f"kms:GenerateDataKey where it is encrypted with a key); {_WAY}",
    ExitCode.DISK_FULL: f"leave out what jobs do not need by exclude_packages, or {_DISK}",
    ExitCode.STORAGE_UNREACHABLE: f"s3:GetObject and s3:ListBucket have to be in {_RIGHTS}; "
    f"{_WAY}",
    ExitCode.SUPERVISOR_FAILED: "its log may have a traceback; a limit of processes (the "
    "kubelet's podPidsLimit) is the most likely cause",
    ExitCode.CHILD_KILLED: "see its output; s3:PutObject for the outcome may be missing in "
    f"{_RIGHTS}",
    ExitCode.TERMINATED: f"{LOST}; kubectl delete and a drained node tell a pod to stop, too",
    126: "build image from farcall's Dockerfile",
    127: "build image from farcall's Dockerfile",
    ExitCode.RAISED: "its log says more; most likely image was not built from farcall's "
    "Dockerfile (Python leaves like this where it lacks farcall_runtime)",
}

TASK_EXITS: dict[int, Verdict] = {
    ExitCode.CANCELLED: Verdict(
        errors.JobCancelledError, "the task was cancelled", "submit it again if needed"
    ),
    **{
        code: replace(each, remedy=_REMEDIES.get(code, each.remedy))
        for code, each in EXITS.items()
    },
}
"""Of containers that hold the task runner."""

_NO_PYTHON = Verdict(
    errors.ImageError,
    "the image could not run farcall's bootstrap",
    "its log says more; stock_image_uri must name an image with python3",
)

RUNTIME_EXITS: dict[int, Verdict] = {
    ExitCode.BAD_ENVIRONMENT: Verdict(
        errors.ImageError,
        "the job had no credentials to fetch farcall's runtime with, or did not understand how it "
        "was started; nothing was run",
        "set service_account to one with a role that may read s3_bucket_name, or s3_secret to a "
        "Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and leave out of pod_overlay "
        "what sets FARCALL_ variables",
    ),
    ExitCode.BUNDLE_MISSING: Verdict(
        errors.OutcomeMissingError,
        "the job did not find farcall's runtime, or its payload, in the bucket, and ran nothing",
        "a lifecycle rule of s3_bucket_name must not be shorter than the wait in the queue, and "
        "nobody may delete what is below runtime/ and bundles/; then submit again, which stores "
        "them anew",
    ),
    ExitCode.INTEGRITY: Verdict(
        errors.IntegrityError,
        "farcall's runtime in the bucket, or the job's payload, is not what was stored; nothing "
        "of it was run",
        "find out who else writes to s3_bucket_name, then submit again, which stores what was "
        "changed anew",
    ),
    ExitCode.VERSION_MISMATCH: Verdict(
        errors.VersionMismatchError,
        "farcall's runtime is made for another processor, Python or libc than the job has",
        "set architecture to the processor of the cluster's nodes, and stock_image_uri to an "
        "image with glibc (Debian's, not Alpine's) and the Python minor that is used here, "
        "empty for the official one",
    ),
    ExitCode.STORAGE_UNREACHABLE: Verdict(
        errors.OutcomeMissingError,
        "the job could not fetch from the bucket what it needs, and ran nothing",
        f"s3:GetObject and s3:ListBucket have to be in {_RIGHTS}, what is below runtime/ too; "
        f"{_WAY}; and the clock of its node must be right",
    ),
    ExitCode.DISK_FULL: Verdict(
        errors.DiskFullError,
        "the job's temporary folder has no room for farcall's runtime or its packages, and it ran "
        "nothing",
        _DISK,
    ),
    ExitCode.SUPERVISOR_FAILED: Verdict(
        errors.OutcomeMissingError,
        "farcall's runtime could not be unpacked, or failed, and left no outcome",
        "its log says why; with readOnlyRootFilesystem /tmp has to be a volume (emptyDir)",
    ),
    126: _NO_PYTHON,
    127: _NO_PYTHON,
    ExitCode.RAISED: _NO_PYTHON,
}
"""Of containers that fetch the task runner first."""

_NOT_RUNNABLE = Verdict(
    errors.CommandError,
    "the command was not found in the image, or cannot be run there",
    f"see the job's log, and what {IMAGE} has",
)

COMMAND_EXITS: dict[int, Verdict] = {
    start_script.TOOLS_MISSING: Verdict(
        errors.ImageError,
        "the image lacks what its workspace is fetched with; nothing was run",
        f"its log names it; {IMAGE} needs a shell, coreutils, and python3, curl or wget; or "
        "submit without a workspace",
    ),
    start_script.NO_CREDENTIALS: Verdict(
        errors.ImageError,
        "the job had no credentials to fetch its workspace with; nothing was run",
        "set s3_secret to a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY that may read "
        "s3_bucket_name, or service_account to one with EKS Pod Identity",
    ),
    start_script.NOT_FETCHED: Verdict(
        errors.CommandError,
        "the job could not fetch its workspace; nothing was run",
        f"s3:GetObject has to be in {_RIGHTS}, a lifecycle rule must not be shorter than the wait "
        f"in the queue, and {_WAY}",
    ),
    start_script.TAMPERED: Verdict(
        errors.IntegrityError,
        "the workspace in the bucket is not the one that was uploaded; nothing was run",
        "find out who else writes to s3_bucket_name, delete the object that its log names, then "
        "submit again",
    ),
    start_script.NOT_UNPACKED: Verdict(
        errors.CommandError,
        "the job could not unpack its workspace; nothing was run",
        "its log says where and why; the container's user must be able to write there, or name "
        "another folder for the workspace",
    ),
    126: _NOT_RUNNABLE,
    127: _NOT_RUNNABLE,
    137: Verdict(
        errors.OutOfMemoryError,
        "the container was killed (SIGKILL), most often for its memory",
        MEMORY,
    ),
    143: Verdict(errors.HostLostError, "the container was told to stop (SIGTERM)", LOST),
}
"""Of commands: first those of the script that fetches a workspace."""
