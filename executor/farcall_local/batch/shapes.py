"""Whether a request has the members and types that AWS's own model of Batch gives it.

boto3 checks the same before it sends anything; a client without that check is told here.
"""

from __future__ import annotations

import functools
from typing import Any

from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

from farcall_local.batch.errors import ClientError

#: What Batch has and an older botocore does not know: by operation, and where it stands.
_NEWER = {
    "CreateComputeEnvironment": ("computeResources", "scalingPolicy"),
    "UpdateComputeEnvironment": ("computeResources", "scalingPolicy"),
}


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
    outer, inner = _NEWER.get(operation, ("", ""))
    if inner and inner in (document.get(outer) or {}):
        rest = {key: value for key, value in document[outer].items() if key != inner}
        document = {**document, outer: rest}
    report = ParamValidator().validate(document, shape)
    if report.has_errors():
        raise ClientError(report.generate_report())
