"""Submission plan: a task's definition, its bundle and its SubmitJob request.

Whoever submits and whoever only wants to see what would be submitted write it here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from farcall.backends.batch.client import Batch
from farcall.backends.batch.documents import LARGEST_ARRAY, Definition, definition, job_request
from farcall.backends.batch.preflight import Resources, find_image
from farcall.model.settings import Settings
from farcall.model.workflows import Workflow
from farcall.payload.bundle import Bundle
from farcall.payload.pickling import Packed


class Documents:
    """Writes them, for one account, bucket and run.

    Args:
        batch: Is asked for a definition's image where no other is named.
        root: Key prefix of the run.
        resources: What the options name, found in the account.
        region: The region of the jobs.
        bucket_region: The region of the bucket.
        endpoint: URL of S3 where it is not AWS's own, else empty.
    """

    def __init__(
        self,
        batch: Batch,
        root: str,
        resources: Resources,
        *,
        region: str,
        bucket_region: str,
        endpoint: str,
    ) -> None:
        self._batch = batch
        self._root = root
        self._resources = resources
        self._region = region
        self._bucket_region = bucket_region
        self._endpoint = endpoint

    async def definition(self, settings: Settings) -> Definition:
        """Return the job definition.

        Raises:
            SettingsError: No option names an image.
            ServiceError: Batch refused the call.
        """
        return definition(
            settings,
            image=await find_image(self._batch, settings),
            region=self._region,
            job_role=self._resources.job_role,
            execution_role=self._resources.execution_role,
        )

    def bundle(
        self,
        settings: Settings,
        name: str,
        tasks: Iterable[tuple[Packed, Packed]],
        workflow: Workflow | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> Bundle:
        """Return what is to be uploaded; see `farcall.payload.bundle.Bundle`."""
        belongs_to = workflow or Workflow.of(settings)
        return Bundle(
            settings, self._root, name, iter(tasks), belongs_to, facts, most=LARGEST_ARRAY
        )

    def request(
        self, settings: Settings, bundle: Bundle, definition_arn: str, *, size: int
    ) -> dict[str, Any]:
        """Return the SubmitJob request.

        Args:
            settings: The options.
            bundle: What the job carries; what the request says of it is true once it is through.
            definition_arn: ARN of the definition with its revision.
            size: Number of tasks.

        Raises:
            SettingsError: vCPU, memory or GPUs are not what the platform allows.
            TaskTooLargeError: The request exceeds a limit of Batch or ECS.
        """
        return job_request(
            settings,
            name=bundle.where.bundle,
            definition_arn=definition_arn,
            environment=bundle.environment(endpoint=self._endpoint, region=self._bucket_region),
            size=size,
        )
