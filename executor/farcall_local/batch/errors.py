"""What the emulated Batch answers when it refuses a call.

Batch declares two errors for every operation, and sends a third one when calls come too fast:

* `ClientException`, HTTP 400: the caller's mistake.
* `ServerException`, HTTP 500: ours.
* `TooManyRequestsException`, HTTP 429: not in the service model, so botocore has no class for it.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/CommonErrors.html
    https://repost.aws/knowledge-center/aws-batch-requests-error
"""

from __future__ import annotations


class ApiError(Exception):
    """A refusal with its HTTP status and the error code clients see.

    Attributes:
        status: HTTP status.
        code: Error code, sent in the ``x-amzn-ErrorType`` header.
    """

    status = 500
    code = "ServerException"


class ClientError(ApiError):
    """The request breaks a documented rule."""

    status = 400
    code = "ClientException"


class ThrottledError(ApiError):
    """Calls come faster than the account's rate."""

    status = 429
    code = "TooManyRequestsException"

    def __init__(self) -> None:
        super().__init__("Too Many Requests")


class DropConnectionError(Exception):
    """The connection is to be closed without an answer, as a fault for tests."""
