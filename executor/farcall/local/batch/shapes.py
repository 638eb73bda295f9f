"""Whether a request has the members and types that AWS's own model of Batch gives it.

boto3 checks the same before it sends anything; a client without that check is told here.
"""

from __future__ import annotations

import functools
from typing import Any

from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from farcall.local.batch.errors import ClientError


@functools.cache
def _model() -> ServiceModel:
    return ServiceModel(Loader().load_service_model("batch", "service-2"))


def check(operation: str, document: dict[str, Any]) -> None:
    """Check a request against the model of the botocore that is installed.

    Args:
        operation: Such as ``SubmitJob``. One that this botocore does not know is not checked.
        document: The request.

    Raises:
        ClientError: A member is missing, unknown, or of another type.
    """
    if operation not in _model().operation_names:
        return
    shape = _model().operation_model(operation).input_shape
    report = ParamValidator().validate(document, shape)
    if report.has_errors():
        raise ClientError(report.generate_report())
