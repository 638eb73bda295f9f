"""Contents of a stack: unfinished jobs, job definitions, buckets and objects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from farcall.aws.clients import Aws
from farcall.deploy.aws_calls import call_aws, pages
from farcall.model.errors import FarcallError, ServiceError

TAG = "farcall:stack"
"""Tag of the template's queues and bucket, whose value is the stack's name."""

_UNFINISHED = ("RUNNING", "STARTING", "RUNNABLE", "PENDING", "SUBMITTED")
_DEFINITIONS = "farcall-"
_PAGE = 1000


@dataclass(frozen=True)
class Bucket:
    """Bucket that a stack has or had.

    Attributes:
        name: Name of the bucket.
        objects: Number of objects, versions and unfinished uploads, counted up to 1000.
    """

    name: str
    objects: int

    @property
    def counted(self) -> str:
        """Return the number of objects for messages."""
        if not self.objects:
            return "empty"
        return f"{self.objects}{' or more' if self.objects >= _PAGE else ''} objects"


async def unfinished(access: Aws, queues: Iterable[str]) -> list[str]:
    """Return the unfinished jobs in queues.

    Returns:
        ``<name> (<ID>, <status>)`` of each job, the most advanced first.
    """
    unfinished_jobs = []
    for queue in queues:
        for status in _UNFINISHED:
            wanted = {"jobQueue": queue, "jobStatus": status}
            async for page in pages(access, "batch", "list_jobs", **wanted):
                jobs = page["jobSummaryList"]
                unfinished_jobs += [f"{job['jobName']} ({job['jobId']}, {status})" for job in jobs]
    return unfinished_jobs


async def definitions(access: Aws, roles: Iterable[str]) -> list[str]:
    """Return the ARNs of the job definitions that farcall registered with one of some roles."""
    ends = tuple(f"role/{role}" for role in roles)
    if not ends:
        return []
    return [
        each["jobDefinitionArn"]
        async for page in pages(access, "batch", "describe_job_definitions", status="ACTIVE")
        for each in page["jobDefinitions"]
        if each["jobDefinitionName"].startswith(_DEFINITIONS)
        and any(arn.endswith(ends) for arn in _roles_of(each))
    ]


async def deregister(access: Aws, arns: Iterable[str]) -> None:
    """Deregister job definitions."""
    for arn in arns:
        await call_aws(access, "batch", "deregister_job_definition", jobDefinition=arn)


async def buckets(access: Aws, stack: str) -> list[Bucket]:
    """Return the existing buckets that stacks of a name have created.

    Buckets that are not empty outlive their stack.
    """
    reply = await call_aws(
        access, "s3", "list_buckets", Prefix=f"{stack.lower()}-", BucketRegion=access.region
    )
    existing = []
    for each in reply["Buckets"]:
        name = each["Name"]
        if name.startswith(f"{stack.lower()}-") and await _tag(access, name) == stack:
            existing.append(Bucket(name, await _count(access, name)))
    return existing


async def delete(access: Aws, bucket: str, report: Callable[[str], object]) -> None:
    """Delete a bucket with its objects, versions and unfinished uploads.

    Raises:
        FarcallError: S3 cannot delete some objects, such as those under Object Lock.
        ServiceError: S3 rejected a request.
    """
    while True:
        await _empty(access, bucket, report)
        try:
            await call_aws(access, "s3", "delete_bucket", Bucket=bucket)
        except ServiceError as error:
            if error.code != "BucketNotEmpty":  # a job stored objects before its termination
                raise
        else:
            return


async def _empty(access: Aws, bucket: str, report: Callable[[str], object]) -> None:
    gone = 0
    async for keys in _objects(access, bucket):
        wanted = {"Objects": keys, "Quiet": True}
        reply = await call_aws(access, "s3", "delete_objects", Bucket=bucket, Delete=wanted)
        for error in reply.get("Errors", ()):
            raise FarcallError(
                f"s3://{bucket}/{error.get('Key')} was not deleted, so the bucket remains: "
                f"{error.get('Message')} ({error.get('Code')})"
            )
        gone += len(keys)
        report(f"{gone} objects in {bucket} were deleted")
    async for upload in _uploads(access, bucket):
        await call_aws(access, "s3", "abort_multipart_upload", Bucket=bucket, **upload)


async def _tag(access: Aws, bucket: str) -> str:
    try:
        reply = await call_aws(access, "s3", "get_bucket_tagging", Bucket=bucket)
    except ServiceError as error:
        if error.code in ("NoSuchTagSet", "NoSuchBucket"):
            return ""
        raise
    return next((each["Value"] for each in reply["TagSet"] if each["Key"] == TAG), "")


async def _count(access: Aws, bucket: str) -> int:
    async for keys in _objects(access, bucket):
        return len(keys)
    return len([upload async for upload in _uploads(access, bucket)])


async def _objects(access: Aws, bucket: str) -> AsyncIterator[list[dict[str, str]]]:
    async for page in pages(access, "s3", "list_object_versions", Bucket=bucket):
        versions = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
        if versions:
            yield [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in versions]


async def _uploads(access: Aws, bucket: str) -> AsyncIterator[dict[str, str]]:
    async for page in pages(access, "s3", "list_multipart_uploads", Bucket=bucket):
        for each in page.get("Uploads", ()):
            yield {"Key": each["Key"], "UploadId": each["UploadId"]}


def _roles_of(definition: Mapping[str, Any]) -> list[str]:
    nodes = definition.get("nodeProperties", {}).get("nodeRangeProperties", ())
    containers = [
        definition.get("containerProperties"),
        *(each.get("container") for each in nodes),
    ]
    names = ("jobRoleArn", "executionRoleArn")
    return [each[name] for each in containers if each for name in names if each.get(name)]
