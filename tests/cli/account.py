"""Accounts that the commands set up: local AWS emulators, with clients of their services."""

from __future__ import annotations

import json
from typing import Any

from tests import emulators
from tests.support.clients import client

NO_PACKAGES = {"FARCALL_PACKAGES": "null"}
"""Disables package sync, because the test environment has many packages."""


class Account:
    """An empty local AWS emulator."""

    def __init__(self, aws: emulators.TestAWS) -> None:
        self.aws = aws

    def client(self, service: str) -> Any:
        return client(service, self.aws.environment)

    def user(self, name: str, document: dict[str, Any]) -> dict[str, str]:
        """Create a user with a policy; return the keys."""
        iam = self.client("iam")
        iam.create_user(UserName=name)
        self.allow(name, document)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        return {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }

    def allow(self, name: str, document: dict[str, Any]) -> None:
        text = json.dumps(document)
        self.client("iam").put_user_policy(
            UserName=name, PolicyName="farcall", PolicyDocument=text
        )

    def stack(self) -> dict[str, Any]:
        [found] = self.client("cloudformation").describe_stacks(StackName="farcall")["Stacks"]
        return dict(found)

    def outputs(self) -> dict[str, str]:
        return {each["OutputKey"]: each["OutputValue"] for each in self.stack()["Outputs"]}
