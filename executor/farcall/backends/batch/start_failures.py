"""Failure reasons of containers that did not start, or that their engine lost.

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
"""Remedy for a lost host."""

STARTS: tuple[Row, ...] = (
    # Reasons why an image cannot be pulled:
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
            "give batch_execution_role_name (on EC2 without this option, the instance role) "
            "the policy AmazonECSTaskExecutionRolePolicy, set repositoryCredentials in "
            f"job_definition_extra for another registry, and check {IMAGE}",
        ),
    ),
    Row(
        container(
            "CannotPull", "i/o timeout", "dial tcp", "deadline", "request canceled", "no route"
        ),
        FailureReason(
            errors.ImageError,
            "the image could not be pulled: the registry could not be reached",
            f"{SUBNET} the registry: a NAT gateway, a public address (networkConfiguration in "
            "job_definition_extra) or VPC endpoints",
        ),
    ),
    Row(
        container("CannotPull", "toomanyrequests", "rate limit", "429"),
        FailureReason(
            errors.ImageError,
            "the image could not be pulled: the registry's pull limit has been reached",
            f"copy {IMAGE} to ECR and use the copy, or try again later",
        ),
    ),
    Row(
        container("CannotPull", "platform", "no matching manifest"),
        FailureReason(
            errors.ImageError,
            "the image could not be pulled: it was not built for the machine's architecture",
            f"build {IMAGE} for x86_64 or arm64, depending on the machines (runtimePlatform in "
            "job_definition_extra on Fargate)",
        ),
    ),
    Row(
        container("CannotPull", "no space left"),
        FailureReason(
            errors.ImageError,
            "the image could not be pulled: the machine's disk is full",
            "set ephemeralStorage in job_definition_extra on Fargate, or on EC2 enlarge the "
            "volume in the launch template of the compute environment",
        ),
    ),
    Row(
        container("CannotPull", "not found", "manifest unknown", "does not exist", "no such"),
        FailureReason(
            errors.ImageError,
            "the image could not be pulled: it does not exist in the registry",
            f"check {IMAGE}: registry, repository, tag, and the region of ECR",
        ),
    ),
    Row(
        container("CannotPull"),
        FailureReason(
            errors.ImageError,
            "the image could not be pulled",
            f"check {IMAGE}, the registry permissions of batch_execution_role_name, and that "
            "the subnet can reach the registry",
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
            "the container could not be started: the image was built for another architecture",
            f"build {IMAGE} for x86_64 or arm64, depending on the machines (runtimePlatform in "
            "job_definition_extra on Fargate)",
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
            "check that batch_job_log_group_name exists, and give batch_execution_role_name "
            "logs:CreateLogStream and logs:PutLogEvents on it",
        ),
    ),
    Row(
        container("ResourceInitializationError", "secret", "registry auth", "ssm"),
        FailureReason(
            errors.ImageError,
            "the job's secrets or its registry credentials could not be fetched",
            "give batch_execution_role_name the permissions "
            "(AmazonECSTaskExecutionRolePolicy, secretsmanager:GetSecretValue, "
            f"ssm:GetParameters); {SUBNET} these services",
        ),
    ),
    Row(
        container("ResourceInitializationError"),
        FailureReason(
            errors.ImageError,
            "the job's environment could not be prepared",
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
            "check that batch_job_role_name and batch_execution_role_name exist and trust "
            "ecs-tasks.amazonaws.com",
        ),
    ),
    Row(
        container("DockerTimeoutError"),
        FailureReason(
            errors.HostLostError,
            "the machine's container engine was too slow to start the container",
            "raise retry_attempts; if it happens again, the machine's disk or network is too "
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
            "the container was not started, but Batch does not report why",
            "submit it again; see the event log of the queue's ECS cluster",
        ),
    ),
)
"""Failure reasons; the first matching row counts, specific rows come first."""
