"""AWS error codes that a retry may not meet again, as in AWS's own clients.

The status is not sufficient: S3 returns 400 for a slow connection, and 409 if another request is
modifying the same object.

Sources:
    https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
    https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html
    https://github.com/boto/botocore/blob/develop/botocore/retries/standard.py
"""

from __future__ import annotations

THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "TooManyRequestsException",
    }
)
"""Codes of throttled requests."""

PASSING = THROTTLED | {
    # Something of the request was lost or changed on its way.
    "BadDigest",
    "IncompleteBody",
    "RequestTimeout",
    "RequestTimeoutException",
    "XAmzContentSHA256Mismatch",
    # Another request is modifying the same object.
    "ConditionalRequestConflict",
    "OperationAborted",
    "PriorRequestNotComplete",
    # The service itself fails.
    "InternalError",
    "InternalFailure",
    "ServiceUnavailable",
}
"""Codes that the same request may not meet again."""

EXPIRED = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
        "TokenRefreshRequired",
    }
)
"""Codes of expired credentials, which may have been renewed since."""

_PASSING_STATUSES = (408, 429)
_UNKNOWN_STATUS, _UNKNOWN = 501, "NotImplemented"


def is_unknown(code: str, status: int) -> bool:
    """Return whether the service does not support the request, so retries are useless.

    Args:
        code: The error's code, empty if the response has none; some emulators return any code.
        status: The response's HTTP status, 0 if unknown.
    """
    return status == _UNKNOWN_STATUS or code == _UNKNOWN


def may_pass(code: str, status: int) -> bool:
    """Return whether a refused request may succeed if it is sent again.

    Args:
        code: The error's code, empty if the response has none.
        status: The response's HTTP status, 0 if unknown.
    """
    if is_unknown(code, status):
        return False
    return code in PASSING or status in _PASSING_STATUSES or status >= 500
