"""Retry policy of requests to one bucket, and errors with a remedy.

obstore repeats most requests by itself: for some seconds, and for up to a minute for large
uploads. Here requests are repeated for a minute, including those that obstore does not repeat: an
interrupted response, a request that obstore considers unsafe to repeat (all farcall requests are
safe), and credentials that have expired since obstore requested them. `farcall.aws.s3` never
retries.
"""

from __future__ import annotations

import asyncio
import html
import logging
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import botocore.exceptions
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from farcall.aws import error_translation
from farcall.aws.access import Access
from farcall.model import clock
from farcall.model.errors import ServiceError, SettingsError
from farcall.model.pacing import Retries, RetryLog
from farcall.storage.lost_responses import LostResponses
from farcall_runtime.transient_errors import may_pass

_log = logging.getLogger("farcall")


_WHOLE = "Received non-partial response when range requested"
RANGE_IGNORED = "RangeIgnored"
"""farcall's error code for a store that returns an entire object, not a range."""

_DENIED = "AccessDenied"
"""S3's error code for each denied key of a bulk deletion, with status 200."""
_CODED = re.compile(r"<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?", re.DOTALL)
_STATUS = re.compile(r"\bstatus(?: code)?:? (\d{3})\b")
_ELSEWHERE = ("PermanentRedirect", "AuthorizationHeaderMalformed")
"""Error codes of a request sent to, or signed for, another region."""

_MOVED = 301
_REDIRECT = "Received redirect without LOCATION"
"""obstore's text for a permanent redirect."""


_STORING = ("PutObject", "CreateMultipartUpload", "CopyObject")

T = TypeVar("T")


class Bucket:
    """One bucket.

    Args:
        name: Its name.
        access: Opens its obstore stores, with the current credentials and region.

    Attributes:
        given_up_at: Loop time at which a caller last cancelled a request; before all times if none
            has.
        requests: Number of requests sent, including repetitions.
    """

    def __init__(self, name: str, access: Access) -> None:
        self.name = name
        self.given_up_at = -math.inf
        self.requests = 0
        self._access = access
        self._stores: dict[bool, S3Store] = {}
        self._retry_log = RetryLog()
        self._lost = LostResponses()

    async def send(
        self,
        operation: str,
        key: str,
        request: Callable[[S3Store], Awaitable[T]],
        *,
        sending: bool = False,
    ) -> T:
        """Make a request, and repeat it after temporary errors.

        Args:
            operation: S3's name of the operation, such as ``"GetObject"``.
            key: Key of the object, for errors.
            request: Makes the request.
            sending: Whether the request is a large upload, which may take long.

        Raises:
            FileNotFoundError: The object does not exist.
            SettingsError: The bucket does not exist.
            ServiceError: S3 refused, or failed each time.
        """
        retries = Retries(self._access.timing.store_retry_s, self._retry_log)
        met: Counter[str] = Counter()
        while True:
            self.requests += 1
            try:
                return await self._wait(request(self._store(sending=sending)))
            except asyncio.CancelledError:
                self.given_up_at = clock.now()
                raise
            except (BaseError, OSError, botocore.exceptions.BotoCoreError) as error:
                failure = self._explain(operation, key, error)
                if failure is None:
                    raise
                error_translation.record_error(str(failure))
                may_pass = isinstance(failure, ServiceError) and await self._may_pass(failure, met)
                if not await retries.wait(failure, may_pass=may_pass):
                    key = await self._key(failure)
                    raise _with_remedy(failure, error, retries, key) from _plain(error)

    async def _wait(self, request: Awaitable[T]) -> T:
        """Wait for a response, or raise the error that kept it from arriving."""
        task = self._lost.enter()
        try:
            return await request
        finally:
            lost = self._lost.leave(task)
            if lost is not None:
                raise MemoryError(
                    "this process ran out of memory while it received a response; allow it more "
                    "(ulimit -v, the limit of its container), or request smaller results"
                ) from lost

    async def _key(self, failure: Exception) -> str:
        """Return the access key in use if S3 rejected it; otherwise an empty text."""
        is_rejected = isinstance(failure, ServiceError) and failure.status
        if is_rejected and error_translation.is_of_credentials(failure):
            return await self._access.key_and_source()
        return ""

    async def _may_pass(self, failure: ServiceError, met: Counter[str]) -> bool:
        """Return whether a repetition may succeed, and prepare it.

        Args:
            failure: Error of the last attempt.
            met: Number of earlier errors by code.
        """
        met[failure.code] += 1
        if failure.code in _ELSEWHERE:
            may_pass = met[failure.code] == 1 and await self._access.locate(self.name)
            self._stores.clear()  # the next request must use the bucket's region
            return may_pass
        if error_translation.is_of_credentials(failure):
            self._stores.clear()  # the next request must use the current credentials
        if error_translation.is_expired(failure):
            # They may have been renewed since, for example while this machine slept.
            return met[failure.code] <= error_translation.RENEWALS
        return _may_pass(failure)

    def _store(self, *, sending: bool) -> S3Store:
        if sending not in self._stores:
            self._stores[sending] = self._access.store(self.name, sending=sending)
        return self._stores[sending]

    def _explain(self, operation: str, key: str, error: BaseException) -> Exception | None:
        """Translate an error; None if the object does not exist."""
        text = str(error)
        if "NoSuchBucket" in text:
            return SettingsError(
                f"s3_bucket_name is {self.name!r}, which does not exist; create it, or set "
                "s3_bucket_name to an existing bucket",
                option="s3_bucket_name",
            )
        if isinstance(error, FileNotFoundError):
            return None
        coded, numbered = _CODED.search(text), _STATUS.search(text)
        code, status = coded[1] if coded else "", int(numbered[1]) if numbered else 0
        if _WHOLE in text:
            return ServiceError(
                f"{operation} of s3://{self.name}/{key} failed: the store returned the whole "
                "object instead of the requested part; use a store that supports ranges, as S3 "
                "does. Run `farcall doctor` to see what the store of s3_bucket_name lacks",
                operation=operation,
                code=RANGE_IGNORED,
                status=200,
            )
        if not code and (_REDIRECT in text or status == _MOVED):  # HEAD has no body
            code = _ELSEWHERE[0]
        if _DENIED in text or (isinstance(error, PermissionDeniedError) and not code):
            code = _DENIED
        return ServiceError(
            f"{operation} of s3://{self.name}/{key} failed: {reason(error)}",
            operation=operation,
            code=code,
            status=status,
        )


def reason(error: BaseException) -> str:
    """Return S3's own message if there is one; obstore shows the entire response."""
    coded = _CODED.search(str(error))
    if coded is None:
        return str(error).partition("\n")[0] or type(error).__name__
    return f"{html.unescape(coded[2] or coded[1])} ({coded[1]})"


def demanded(failure: ServiceError) -> str:
    """Return the remedy if the bucket's policy or its KMS key denies a request.

    Returns:
        The remedy; empty for other errors.

    Source:
        https://docs.aws.amazon.com/AmazonS3/latest/userguide/troubleshoot-403-errors.html
    """
    text = str(failure)
    if failure.code != _DENIED:
        return ""
    if "kms:" in text:
        return (
            "the client and the job role need kms:GenerateDataKey and kms:Decrypt on the key that "
            "encrypts the bucket's objects"
        )
    if failure.operation in _STORING and "explicit deny in a resource-based policy" in text:
        return (
            "the bucket's policy denies it: if the policy requires an encryption header, set "
            "s3_encryption, and if it requires a key, s3_kms_key_id"
        )
    return ""


def _plain(error: BaseException) -> BaseException:
    """Return an error without S3's full response, which may contain the session token."""
    if _CODED.search(str(error)) is None:
        return error
    return type(error)(f"{str(error).partition('<')[0]}{reason(error)}")


def _may_pass(failure: ServiceError) -> bool:
    if failure.code in (_DENIED, *_ELSEWHERE):
        return False
    return may_pass(failure.code, failure.status) or not failure.status


def _with_remedy(
    failure: Exception, error: BaseException, retries: Retries, key: str
) -> Exception:
    if not isinstance(failure, ServiceError):
        return failure
    what_to_do = demanded(failure) or error_translation.remedy(failure, key=key)
    if failure.code in _ELSEWHERE:
        what_to_do = "the bucket of s3_bucket_name is in another region: set region to that one"
    if isinstance(error, UnauthenticatedError):  # raised if credentials could not be fetched
        what_to_do = (
            f"tried {retries.count} times in {retries.spent_s:.0f} s; "
            f"{error_translation.NO_CREDENTIALS}"
        )
    if what_to_do:
        return error_translation.with_text(failure, f"{failure}; {what_to_do}")
    if _may_pass(failure):
        return error_translation.explain_tries(failure, retries.count, retries.spent_s)
    return failure
