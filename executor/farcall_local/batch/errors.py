"""Error responses of the emulated Batch.

Batch declares two errors for every operation, and returns a third one if calls are too frequent:

* `ClientException`, HTTP 400: the caller's mistake.
* `ServerException`, HTTP 500: a fault of Batch.
* `TooManyRequestsException`, HTTP 429: not in the service model, so botocore has no class for it.

Sources:
    https://docs.aws.amazon.com/batch/latest/APIReference/CommonErrors.html
    https://repost.aws/knowledge-center/aws-batch-requests-error
"""

from __future__ import annotations


class ApiError(Exception):
    """Rejection of a request, with HTTP status and error code.

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
    """Calls exceed the account's rate."""

    status = 429
    code = "TooManyRequestsException"

    def __init__(self) -> None:
        super().__init__("Too Many Requests")


class DropConnectionError(Exception):
    """The connection must be closed without a response, as a fault for tests."""
