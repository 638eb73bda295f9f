"""IAM policies and Kubernetes manifests: ``farcall policy``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from farcall import deploy
from farcall.cli.printing import echo, hand_out

FOLDER = Path(deploy.__file__).parent
"""Folder of the policies: links to docs/ in the repository, files in an installed farcall."""

_IAM = {
    "client": "IAM policy of users who submit jobs.",
    "viewer": "IAM policy of users who monitor and cancel jobs.",
    "job-role": "IAM policy of the containers and your functions.",
    "execution-role": "IAM policy with which ECS starts containers.",
    "trust": "Trust policy of the job role and the execution role.",
    "deployer": "IAM policy of users who run farcall deploy.",
    "pusher": "IAM policy of users who run farcall image push.",
}
_KUBERNETES = {
    "client": "Role and RoleBinding of users who submit jobs.",
    "kueue": "Queue of Kueue, and permissions for it.",
    "volcano": "Queue of Volcano, and permissions for it.",
    "service-account": "Service account of tasks on EKS, with a role for S3.",
    "trust": "Trust policy of that role, for IRSA.",
    "s3-secret": "Secret with the tasks' keys for S3.",
    "minio": "MinIO in the cluster, to try farcall.",
}


_PLACEHOLDERS = {
    "region": ("REGION", "AWS region."),
    "account": ("ACCOUNT", "ID of the AWS account."),
    "bucket": ("BUCKET", "Bucket, the option s3_bucket_name."),
    "prefix": ("PREFIX", "Prefix in the bucket, the option prefix; '' for none."),
    "queue": ("QUEUE", "Job queue, the option queue."),
    "log-group": ("LOG-GROUP", "Log group, the option batch_job_log_group_name."),
    "job-role": ("JOB-ROLE", "Job role, the option batch_job_role_name."),
    "execution-role": (
        "EXECUTION-ROLE",
        "Execution role, the option batch_execution_role_name.",
    ),
    "repository": ("REPOSITORY", "ECR repository of the image."),
    "stack": ("STACK", "Name of farcall deploy's stack."),
    "cluster-id": ("CLUSTER-ID", "ID of the cluster's OIDC provider."),
}
"""By option: the text that it replaces, which must be replaced, and its help."""

_EXAMPLES = {
    "partition": ("aws", r"(?<=arn:)aws(?=:)", "AWS partition, such as aws-cn or aws-us-gov."),
    "namespace": ("science", r"\bscience\b", "Namespace of the jobs."),
    "group": ("scientists", r"\bscientists\b", "Group of the users."),
}
"""By option: its default, the pattern of the text that it replaces, and its help."""


def filled(text: str, values: Mapping[str, str | None]) -> str:
    """Replace the placeholders of a policy for which there is a value.

    Args:
        text: Text of the policy.
        values: Values by option, such as ``"log-group"``.
    """
    if values.get("prefix") == "":
        text = text.replace("PREFIX/", "")
    for option, (placeholder, _) in _PLACEHOLDERS.items():
        if value := values.get(option):
            text = text.replace(placeholder, value)
    for option, (_, pattern, _) in _EXAMPLES.items():
        if value := values.get(option):
            text = re.sub(pattern, value, text)
    return text


def unfilled(text: str) -> list[str]:
    """Return the options whose placeholders a policy still contains."""
    return [option for option, (each, _) in _PLACEHOLDERS.items() if each in text]


def _print(text: str, **values: str | None) -> None:
    text = filled(text, {name.replace("_", "-"): value for name, value in values.items()})
    hand_out(text)
    if missing := unfilled(text):
        names = ", ".join(_PLACEHOLDERS[option][0] for option in missing)
        options = " ".join(f"--{option}" for option in missing)
        echo(f"farcall: replace {names}, or pass {options}", err=True)


def _command(path: Path, summary: str) -> click.Command:
    text = path.read_text(encoding="utf-8")
    options: list[click.Parameter] = [
        click.Option([f"--{name}"], metavar="NAME", help=words)
        for name, (placeholder, words) in _PLACEHOLDERS.items()
        if placeholder in text
    ]
    options += [
        click.Option([f"--{name}"], metavar="NAME", default=default, show_default=True, help=words)
        for name, (default, pattern, words) in _EXAMPLES.items()
        if re.search(pattern, text)
    ]

    def callback(**values: Any) -> None:
        _print(text, **values)

    return click.Command(path.stem, params=options, callback=callback, help=summary)


def _file(folder: str, name: str) -> Path:
    [path] = (FOLDER / folder).glob(f"{name}.*")
    return path


@click.group("policy")
def policy() -> None:
    """Print an IAM policy or a Kubernetes manifest.

    \b
    Examples:
      farcall policy client --region eu-west-1 --account 111122223333 --bucket my-bucket
      farcall policy viewer > viewer.json
      farcall policy kubernetes client --namespace science | kubectl apply -f -

    Options fill in your own names. A policy contains only the actions that farcall
    calls; what you do not fill in stays a placeholder, such as BUCKET.
    """  # noqa: D301  # click's marker for preformatted lines


@policy.group("kubernetes")
def kubernetes() -> None:
    """Print a Kubernetes manifest."""


for _name, _summary in _IAM.items():
    policy.add_command(_command(_file("iam", _name), _summary))
for _name, _summary in _KUBERNETES.items():
    kubernetes.add_command(_command(_file("kubernetes", _name), _summary))
