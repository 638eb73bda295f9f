"""Error responses of each service for invalid credentials and missing permissions.

Sources:
    https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
    https://docs.aws.amazon.com/STS/latest/APIReference/CommonErrors.html
    https://docs.aws.amazon.com/batch/latest/APIReference/CommonErrors.html
"""

from __future__ import annotations

import json
import uuid
from enum import Enum
from xml.sax.saxutils import escape

_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
_S3 = "s3"
_QUERY = ("cloudformation", "iam", "sts")


class Reason(Enum):
    """Reason for a rejection, with error codes of S3, AWS's query protocol and JSON."""

    DENIED = ("AccessDenied", "AccessDenied", "AccessDeniedException")
    UNSIGNED = (
        "AccessDenied",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
    )
    UNKNOWN_KEY = ("InvalidAccessKeyId", "InvalidClientTokenId", "UnrecognizedClientException")
    BAD_SIGNATURE = (
        "SignatureDoesNotMatch",
        "SignatureDoesNotMatch",
        "InvalidSignatureException",
    )
    EXPIRED = ("ExpiredToken", "ExpiredToken", "ExpiredTokenException")
    BAD_TOKEN = ("InvalidToken", "InvalidClientTokenId", "UnrecognizedClientException")
    INCOMPLETE = (
        "AuthorizationHeaderMalformed",
        "IncompleteSignature",
        "IncompleteSignatureException",
    )
    NO_REGION = ("InvalidRegion", "InvalidRegion", "InvalidRegionException")
    SKEWED = ("RequestTimeTooSkewed", "SignatureDoesNotMatch", "InvalidSignatureException")
    BAD_DIGEST = (
        "XAmzContentSHA256Mismatch",
        "SignatureDoesNotMatch",
        "InvalidSignatureException",
    )
    BAD_CHECKSUM = ("BadDigest", "SignatureDoesNotMatch", "InvalidSignatureException")
    CUT_OFF = ("IncompleteBody", "IncompleteSignature", "IncompleteSignatureException")
    TOO_LARGE = ("EntityTooLarge", "RequestEntityTooLarge", "RequestEntityTooLargeException")


#: Reasons for which S3 returns 400 instead of 403.
_MALFORMED = {
    Reason.EXPIRED,
    Reason.BAD_TOKEN,
    Reason.INCOMPLETE,
    Reason.BAD_DIGEST,
    Reason.BAD_CHECKSUM,
    Reason.CUT_OFF,
    Reason.TOO_LARGE,
}


class RefusedError(Exception):
    """A request is rejected.

    Attributes:
        reason: Machine-readable reason.
    """

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def render(service: str, error: RefusedError) -> tuple[str, list[tuple[str, str]], bytes]:
    """Return status line, headers and body of a service's response."""
    s3_code, query_code, json_code = error.reason.value
    text, request_id = escape(str(error)), str(uuid.uuid4())
    headers = {"x-amzn-RequestId": request_id, "Content-Type": "application/xml"}
    status = 403
    if service == _S3:
        headers["x-amz-request-id"] = request_id
        why = f"<Code>{s3_code}</Code><Message>{text}</Message>"
        body = f"{_XML}<Error>{why}</Error>"
        if error.reason in _MALFORMED:
            status = 400
    elif service in _QUERY:
        why = f"<Type>Sender</Type><Code>{query_code}</Code><Message>{text}</Message>"
        body = f"{_XML}<ErrorResponse><Error>{why}</Error></ErrorResponse>"
    else:
        # AWS's JSON protocol has the code in the body, its REST protocol in the header.
        headers["Content-Type"] = "application/json"
        headers["x-amzn-ErrorType"] = json_code
        body = json.dumps({"__type": json_code, "message": str(error)})
        status = 403 if service == "batch" else 400
    data = body.encode()
    headers["Content-Length"] = str(len(data))
    return f"{status} -", list(headers.items()), data
