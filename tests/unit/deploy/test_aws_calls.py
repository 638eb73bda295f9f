"""Errors of calls that set up an account."""

import pytest

from farcall import FarcallError, ServiceError
from farcall.deploy import aws_calls


async def test_local_emulator_is_named(monkeypatch):
    async def refuse(*_, **__):
        raise ServiceError(
            "DescribeStacks was refused: The local AWS emulator has no service 'cloudformation'.",
            code="AccessDenied",
        )

    class Access:
        async def client(self, _service):
            return None

    monkeypatch.setattr(aws_calls.clients, "call", refuse)
    with pytest.raises(FarcallError, match="needs an AWS account: .* has no cloudformation"):
        await aws_calls.call_aws(Access(), "cloudformation", "describe_stacks")
