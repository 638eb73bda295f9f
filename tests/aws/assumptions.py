"""Assumptions about AWS that no test here has seen on AWS, and how the suite checks each one.

They come from AWS's documentation where it is silent, from observations of others, and from
`docs/iam.md`. ``expected`` is what the local AWS emulator does, so that the report shows where AWS
differs from it.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Assumption(NamedTuple):
    """One assumption.

    Attributes:
        claim: What farcall or the emulator assumes.
        source: Why it is assumed.
        expected: Regular expression of the emulator's observation; empty if nothing is observed.
        check: Name of the test that observes it, or how to check it manually.
    """

    claim: str
    source: str
    expected: str
    check: str

    @property
    def is_manual(self) -> bool:
        """Whether no test observes it."""
        return not self.expected

    def fits(self, observed: str) -> bool:
        """Return whether an observation is the emulator's."""
        return re.fullmatch(self.expected, observed) is not None


_DOCUMENTED = "documented, not seen"
_OBSERVED = "observed by others"
_INFERRED = "inferred; AWS's documentation is silent"
_IAM = "docs/iam.md"

ASSUMPTIONS = {
    "empty-region": Assumption(
        "`farcall deploy` creates its stack in a region that has never used Batch",
        "the resource types' documentation",
        "CREATE_COMPLETE",
        "test_deploy_creates_stack",
    ),
    "deploy-again": Assumption(
        "AWS returns the template and parameters unchanged, so that a second `deploy` changes "
        "nothing",
        _INFERRED,
        "unchanged",
        "test_second_deploy_changes_nothing",
    ),
    "stock-image": Assumption(
        "the stock Python image starts, and downloads farcall's runtime with the job role",
        _INFERRED,
        "81 4914341925",
        "test_readme_script_prints_results",
    ),
    "describe-new-job": Assumption(
        "DescribeJobs may miss a job just after SubmitJob",
        _OBSERVED,
        "described by request 1",
        "test_new_job_is_described_and_listed",
    ),
    "list-new-job": Assumption(
        "ListJobs with JOB_NAME finds a job soon after SubmitJob",
        _INFERRED,
        "listed by request 1",
        "test_new_job_is_described_and_listed",
    ),
    "warm-start": Assumption(
        "a job on a running instance starts within seconds",
        "no measurement was published",
        r"[0-9.]+ s from submission to start",
        "test_new_job_is_described_and_listed",
    ),
    "last-rule": Assumption(
        'the rule `onReason: "*"`, `EXIT` also matches an attempt without a reason',
        _INFERRED,
        "1 attempt",
        "test_failing_function_is_not_retried",
    ),
    "lower-case-actions": Assumption(
        "DescribeJobs returns the actions of evaluateOnExit in lower case",
        _OBSERVED,
        "exit, retry",
        "test_failing_function_is_not_retried",
    ),
    "failed-reason": Assumption(
        "a failed program has this status reason",
        _DOCUMENTED,
        "Essential container in task exited",
        "test_failing_function_is_not_retried",
    ),
    "out-of-memory": Assumption(
        "a container beyond its memory limit has this exit code and reason",
        _OBSERVED,
        "137, OutOfMemoryError: Container killed due to memory usage",
        "test_memory_beyond_limit_is_reported",
    ),
    "time-limit": Assumption(
        "a job beyond its time limit has this status reason",
        _DOCUMENTED,
        "Job attempt duration exceeded timeout",
        "test_time_limit_ends_job",
    ),
    "image-not-found": Assumption(
        "a missing image has this reason, and no exit code",
        _DOCUMENTED,
        "CannotPullContainerError, no exit code",
        "test_missing_image_is_reported",
    ),
    "host-lost": Assumption(
        "a terminated instance has this status reason, as a Spot reclaim has",
        _DOCUMENTED,
        r"Host EC2 \(instance i-…\) terminated\.",
        "test_terminated_instance_is_reported",
    ),
    "host-lost-exit-code": Assumption(
        "a lost host leaves no exit code",
        _OBSERVED,
        "no exit code",
        "test_terminated_instance_is_reported",
    ),
    "array-reason": Assumption(
        "an array job with a failed task has this status reason",
        _OBSERVED,
        "Array Child Job failed",
        "test_array_names_its_failed_task",
    ),
    "array-task-id": Assumption(
        "the job ID of an array task is `<array job>:<index>`, also in its environment",
        _DOCUMENTED,
        "JOB:1",
        "test_array_names_its_failed_task",
    ),
    "region-variable": Assumption(
        "jobs on EC2 have no AWS_REGION, so that farcall passes the region; the emulator sets it",
        _INFERRED,
        "us-east-1",
        "test_array_names_its_failed_task",
    ),
    "log-stream": Assumption(
        "`container.logStreamName` of a running job is its log stream; `attempts` is empty",
        _OBSERVED,
        "stream, 0 attempts",
        "test_cancelled_array_ends_all_tasks",
    ),
    "cancel": Assumption(
        "TerminateJob of an array ends running tasks with SIGTERM, and keeps the reason",
        _DOCUMENTED,
        "143, isTerminated, tested by the suite",
        "test_cancelled_array_ends_all_tasks",
    ),
    "log-delay": Assumption(
        "CloudWatch returns a job's lines within seconds of its end",
        "no bound was published",
        r"[0-9.]+ s after the result",
        "test_log_has_output",
    ),
    "deregistered-definition": Assumption(
        "a waiting job starts although its job definition was deregistered",
        _INFERRED,
        "SUCCEEDED",
        "test_waiting_job_survives_deregistration",
    ),
    "overrides-limit": Assumption(
        "Batch's own variables leave 8,000 of the 8,192 characters of an ECS override",
        _INFERRED,
        "SUCCEEDED with 8000 characters",
        "test_long_overrides_are_accepted",
    ),
    "destroy": Assumption(
        "`farcall destroy --empty-bucket` deletes everything that `deploy` and jobs created",
        "the resource types' documentation",
        "nothing",
        "test_destroy_leaves_nothing",
    ),
    "deployer-policy": Assumption(
        "the deployer's policy is sufficient; its actions are those that the resource types "
        "document",
        _IAM,
        "",
        "run the suite with a user who has only the policies `deployer` and `client`, and "
        "`ecs:DescribeContainerInstances` and `ec2:TerminateInstances`",
    ),
    "registry-actions": Assumption(
        "the `ecr` actions of the pusher's and the execution role's policies are sufficient",
        _IAM,
        "",
        "with these policies, run `farcall image build` and `farcall image push`, and then "
        "`farcall doctor --run`",
    ),
    "tag-condition": Assumption(
        "a condition on `aws:ResourceTag` of TerminateJob applies the array job's tags to its "
        "tasks",
        _IAM,
        "",
        "with such a policy, cancel one task of an array: `farcall cancel JOB:1`",
    ),
    "request-rate": Assumption(
        "DescribeJobs and ListJobs permit at least 10 requests per second per account",
        "AWS's support pages, which do not say whether the limit is shared",
        "",
        "not tested, because other users of the account would be throttled",
    ),
    "fargate-texts": Assumption(
        "Fargate's texts differ: `Your Spot Task was interrupted.`, and out of memory in lower "
        "case",
        _OBSERVED,
        "",
        "run `farcall deploy --compute fargate-spot`, and a function that needs too much memory",
    ),
    "gpu-override": Assumption(
        "a job definition without a GPU accepts GPUs at SubmitJob",
        _INFERRED,
        "",
        "run `farcall deploy --gpu --name gpus` and `farcall run --gpus 1 MODULE:FUNCTION`; "
        "needs a GPU quota",
    ),
    "spot-notice": Assumption(
        "a Spot reclaim on EC2 may end a job without SIGTERM",
        _INFERRED,
        "",
        "run `aws fis` with aws:ec2:send-spot-instance-interruptions against a Spot queue",
    ),
    "retention": Assumption(
        "finished jobs are described for 7 days",
        _DOCUMENTED,
        "",
        "run `farcall describe JOB` after 7 days",
    ),
}
"""Short name to assumption, in the order of the report."""
