"""Backend of the fake cloud: AWS Batch's backend, with an in-process client."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, cast

from botocore.exceptions import ClientError

from farcall.aws.access import Access
from farcall.aws.clients import Aws
from farcall.backends.base import Backend
from farcall.backends.batch.backend import BatchBackend
from farcall.backends.batch.preflight import Image, Resources, role_arn
from farcall.config.settings import Settings
from farcall.model.findings import OK, Finding
from farcall.testing.bucket import FakeAccess
from farcall.testing.platform import FakePlatform
from farcall_local import names
from farcall_local.batch.errors import ApiError


class _Operations(dict[str, str]):
    """API names by method name, such as ``SubmitJob`` by ``submit_job``."""

    def __missing__(self, method: str) -> str:
        return method.title().replace("_", "")


class _Meta:
    """Description of a client, as botocore's clients have it."""

    endpoint_url = ""
    method_to_api_mapping = _Operations()


class FakeClient:
    """Client of AWS Batch and CloudWatch Logs, used like botocore's."""

    meta = _Meta()

    def __init__(self, platform: FakePlatform) -> None:
        self._platform = platform

    def __getattr__(self, method: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        return functools.partial(self._call, self.meta.method_to_api_mapping[method])

    async def _call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        answer = functools.partial(self._platform.answer, operation, parameters)
        try:
            return await asyncio.wrap_future(self._platform.call(answer))
        except ApiError as error:
            response = {
                "Error": {"Code": error.code, "Message": str(error)},
                "ResponseMetadata": {"HTTPStatusCode": error.status},
            }
            raise ClientError(response, operation) from error


class FakeBackend(BatchBackend):
    """Backend of one session; every queue, role, log group and image exists."""

    name = "fake"

    def __init__(self, access: Access) -> None:
        super().__init__(cast("Aws", access), pace=math.inf)

    async def check(self, settings: Settings) -> None:
        """Do nothing: everything that the options name exists."""

    async def reach(self) -> list[Finding]:
        """Report that there is a cloud."""
        return [Finding("backend", OK, "a fake cloud in this process")]

    def examine(
        self, settings: Settings, *, answers: bool
    ) -> Mapping[str, Awaitable[Iterable[Finding]]]:
        """Check nothing: everything that the options name exists."""
        return {}

    async def needs_runtime(self, settings: Settings, *, offline: bool = False) -> bool:
        """Return False: tasks run with this interpreter."""
        return False

    async def _image(self, settings: Settings) -> Image:
        return Image(settings.image or names.IMAGE)

    async def _find(self, settings: Settings) -> Resources:
        # Batch requires an execution role for Fargate and for secrets.
        execution_role = settings.batch_execution_role_name or names.EXECUTION_ROLE
        return Resources(self._arn(settings.batch_job_role_name), self._arn(execution_role))

    def _arn(self, role: str) -> str:
        is_name = role and not role.startswith("arn:")
        return role_arn(self._aws.region, names.ACCOUNT_ID, role) if is_name else role

    async def options_of(self, job_id: str) -> dict[str, Any]:
        """Return a job's options; the image only if an option named it."""
        options = await super().options_of(job_id)
        return {name: value for name, value in options.items() if value != names.IMAGE}

    def unknown(self, job_id: str) -> str:
        """Return a sentence for a job that does not exist."""
        return f"job {job_id} does not exist in this fake cloud; did another one run it?"


async def open_fake(platform: FakePlatform, settings: Settings) -> tuple[Access, Backend]:
    """Open one session's access and backend."""
    access = FakeAccess(platform, FakeClient(platform), settings.region)
    return access, FakeBackend(access)
