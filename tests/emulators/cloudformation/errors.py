"""What the emulated CloudFormation answers when it refuses a call.

Sources:
    https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/CommonErrors.html
    https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_CreateStack.html
"""

from __future__ import annotations


class StackError(Exception):
    """A refusal; the error code clients see is `code`."""

    code = "ValidationError"


class AlreadyExistsError(StackError):
    """A stack has this name."""

    code = "AlreadyExistsException"


class CapabilitiesError(StackError):
    """The template makes what the caller has not agreed to."""

    code = "InsufficientCapabilitiesException"
