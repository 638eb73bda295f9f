"""Which of AWS's refusals the next try need not meet: by their code, as AWS's own clients decide.

The status alone does not tell: S3 says 400 of a connection that was slow, and 409 of a request
that came while another one was at work on the same object.

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
"""Requests come too fast."""

PASSING = THROTTLED | {
    # Something of the request was lost or changed on its way.
    "BadDigest",
    "IncompleteBody",
    "RequestTimeout",
    "RequestTimeoutException",
    "XAmzContentSHA256Mismatch",
    # Another request is at work on the same.
    "ConditionalRequestConflict",
    "OperationAborted",
    "PriorRequestNotComplete",
    # The service itself fails.
    "InternalError",
    "InternalFailure",
    "ServiceUnavailable",
}
"""What the same request need not meet again."""

EXPIRED = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
        "TokenRefreshRequired",
    }
)
"""The credentials have expired, and may have been renewed since."""

_PASSING_STATUSES = (408, 429)
_UNKNOWN_STATUS, _UNKNOWN = 501, "NotImplemented"


def is_unknown(code: str, status: int) -> bool:
    """Return whether the service does not know what it was asked for, and never will.

    Args:
        code: The error's code, empty where the answer has none; some emulators give any.
        status: The answer's HTTP status, 0 where it is not known.
    """
    return status == _UNKNOWN_STATUS or code == _UNKNOWN


def may_pass(code: str, status: int) -> bool:
    """Return whether what was refused may be granted when it is asked for again.

    Args:
        code: The error's code, empty where the answer has none.
        status: The answer's HTTP status, 0 where it is not known.
    """
    if is_unknown(code, status):
        return False
    return code in PASSING or status in _PASSING_STATUSES or status >= 500
