"""Start failures: failure reasons on containers that were not started, or that their engine lost.

Sources:
    https://docs.aws.amazon.com/AmazonECS/latest/developerguide/stopped-task-error-codes.html
    https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task_cannot_pull_image.html
"""

from __future__ import annotations

from farcall.backends.matching import (
    CREATED_BY,
    IMAGE,
    STARTED_BY,
    Row,
    all_of,
    container,
    status,
)
from farcall.model import errors
from farcall.model.failure_reasons import SUBNET, FailureReason

LOST = "raise retry_attempts, or set queue to one with on-demand capacity"
"""What is to be done about a lost machine."""

STARTS: tuple[Row, ...] = (
    # Why an image cannot be pulled:
    # https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task_cannot_pull_image.html
    Row(
        container(
            "CannotPull",
            "access denied",
            "not authorized",
            "unauthorized",
            "no basic auth",
            "authentication",
            "403 forbidden",
            "credential",
        ),
        FailureReason(
            errors.ImageError,
            "the image could not be pulled: the registry refused access",
            "batch_execution_role_name needs the policy AmazonECSTaskExecutionRolePolicy (on EC2, "
            "where the option is empty, the instance role), another registry "
            f"repositoryCredentials in job_definition_extra; check {IMAGE}, too",
        ),
    ),
    Row(
        container(
            "CannotPull", "i/o timeout", "dial tcp", "deadline", "request canceled", "no route"
        ),
        FailureReason(
            errors.ImageError,
            "the image could not be pulled: the registry was not reached",
            f"{SUBNET} the registry: a NAT gateway, a public address (networkConfiguration in "
            "job_definition_extra) or VPC endpoints",
        ),
    ),
    Row(
        container("CannotPull", "toomanyrequests", "rate limit", "429"),
        FailureReason(
            errors.ImageError,
            "the image could not be pulled: the registry allows no more pulls now",
            f"copy {IMAGE} to ECR and name the copy, or try again later",
        ),
    ),
    Row(
        container("CannotPull", "platform", "no matching manifest"),
        FailureReason(
            errors.ImageError,
            "the image could not be pulled: it is not made for the machine's architecture",
            f"build {IMAGE} for x86_64 or arm64, whichever the machines "
            "are (runtimePlatform in job_definition_extra on Fargate)",
        ),
    ),
    Row(
        container("CannotPull", "no space left"),
        FailureReason(
            errors.ImageError,
            "the image could not be pulled: the machine's disk is full",
            "set ephemeralStorage in job_definition_extra on Fargate; on EC2 enlarge the volume "
            "in the launch template of the compute environment",
        ),
    ),
    Row(
        container("CannotPull", "not found", "manifest unknown", "does not exist", "no such"),
        FailureReason(
            errors.ImageError,
            "the image could not be pulled: the registry does not have it",
            f"check {IMAGE}: registry, repository, tag, and the region of ECR",
        ),
    ),
    Row(
        container("CannotPull"),
        FailureReason(
            errors.ImageError,
            "the image could not be pulled",
            f"check {IMAGE}, the registry's permissions of batch_execution_role_name, "
            "and that the subnet reaches the registry",
        ),
    ),
    Row(
        container("CannotCreateContainerError"),
        FailureReason(
            errors.ImageError,
            "the container could not be created",
            f"check {CREATED_BY}",
        ),
    ),
    Row(
        container("CannotStartContainerError", "exec format error"),
        FailureReason(
            errors.ImageError,
            "the container could not be started: the image is made for another architecture",
            f"build {IMAGE} for x86_64 or arm64, whichever the machines "
            "are (runtimePlatform in job_definition_extra on Fargate)",
        ),
    ),
    Row(
        container("CannotStartContainerError"),
        FailureReason(
            errors.ImageError,
            "the container could not be started",
            f"check the entry point of {IMAGE}{STARTED_BY}",
        ),
    ),
    Row(
        container("ResourceInitializationError", "log group", "logger", "awslogs"),
        FailureReason(
            errors.ImageError,
            "the job's log could not be opened",
            "batch_job_log_group_name must exist, and batch_execution_role_name needs "
            "logs:CreateLogStream and logs:PutLogEvents on it",
        ),
    ),
    Row(
        container("ResourceInitializationError", "secret", "registry auth", "ssm"),
        FailureReason(
            errors.ImageError,
            "the job's secrets or its registry credentials could not be fetched",
            "batch_execution_role_name needs permission for them "
            "(AmazonECSTaskExecutionRolePolicy, secretsmanager:GetSecretValue, "
            f"ssm:GetParameters), and {SUBNET} these services",
        ),
    ),
    Row(
        container("ResourceInitializationError"),
        FailureReason(
            errors.ImageError,
            "the job's surroundings could not be prepared",
            "check volumes and networkConfiguration in job_definition_extra, "
            "batch_job_log_group_name, the permissions of batch_execution_role_name, and the "
            "network of the subnet",
        ),
    ),
    Row(
        container("ECS was unable to assume the role"),
        FailureReason(
            errors.ImageError,
            "the job's role cannot be assumed",
            "batch_job_role_name and batch_execution_role_name must exist and trust "
            "ecs-tasks.amazonaws.com",
        ),
    ),
    Row(
        container("DockerTimeoutError"),
        FailureReason(
            errors.HostLostError,
            "the machine's container engine was too slow to start the container",
            "raise retry_attempts; where it happens again, the machine's disk or network is too "
            f"slow for {IMAGE}",
        ),
    ),
    Row(
        container("CannotInspectContainerError"),
        FailureReason(
            errors.HostLostError, "the machine's container engine lost the container", LOST
        ),
    ),
    Row(
        container("Container Overrides length"),
        FailureReason(
            errors.ImageError,
            "the job's overrides exceed ECS's 8192 characters",
            "shorten prefix and the environment in job_definition_extra",
        ),
    ),
    Row(
        all_of(status("Task failed to start"), lambda detail: not detail.container_reason),
        FailureReason(
            errors.ImageError,
            "the container was not started, and Batch does not say why",
            "submit it again; the event log of the ECS cluster behind the queue may say more",
        ),
    ),
)
"""The first row that fits counts: the special ones before the general."""
