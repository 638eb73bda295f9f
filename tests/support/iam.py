"""The policies of docs/iam, filled in, and a local AWS emulator that enforces them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import farcall_local
from tests.support.clients import client

FOLDER = Path(__file__).parents[2] / "docs" / "iam"
USER = "researcher"
JOB_ROLE = "farcall-local-job"
EXECUTION_ROLE = "farcall-local-execution"

VALUES = {
    "REGION": "us-east-1",
    "ACCOUNT": "123456789012",
    "BUCKET": "farcall-local",
    "PREFIX": "farcall",
    "QUEUE": "farcall-local",
    "LOG-GROUP": "farcall-local",
    "JOB-ROLE": JOB_ROLE,
    "EXECUTION-ROLE": EXECUTION_ROLE,
    "REPOSITORY": "farcall",
    "STACK": "farcall",
}


def policy(name: str) -> dict[str, Any]:
    """Return a policy of docs/iam with its placeholders filled."""
    text = (FOLDER / f"{name}.json").read_text()
    for placeholder, value in VALUES.items():
        text = text.replace(placeholder, value)
    document: dict[str, Any] = json.loads(text)
    return document


def actions(document: dict[str, Any]) -> list[str]:
    """Return every action that a policy allows."""
    return sorted(a for s in document["Statement"] for a in _many(s["Action"]))


def without(document: dict[str, Any], action: str, folder: str = "") -> dict[str, Any]:
    """Return a policy without an action, completely or only for a folder of the bucket."""
    statements = []
    for statement in document["Statement"]:
        others = [a for a in _many(statement["Action"]) if a != action]
        if others:
            statements.append({**statement, "Action": others})
        if folder and len(others) < len(_many(statement["Action"])):
            name = f"{statement['Sid']}Elsewhere{len(statements)}"
            statements.append({**_elsewhere(statement, folder), "Action": action, "Sid": name})
    return {**document, "Statement": statements}


def _names(statement: dict[str, Any]) -> list[str]:
    """Return the resources of a statement, or the folders that may be listed."""
    condition = statement.get("Condition", {}).get("StringLike", {})
    return _many(condition.get("s3:prefix", statement["Resource"]))


def _elsewhere(statement: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return a statement without the resources in a folder."""
    left = [each for each in _names(statement) if folder not in each]
    assert left, f"{statement} has only resources in {folder}"
    if "Condition" in statement:
        return {**statement, "Condition": {"StringLike": {"s3:prefix": left}}}
    return {**statement, "Resource": left}


class Enforced:
    """A local AWS emulator with one user and the two roles, whose policies can be changed."""

    def __init__(self, aws: farcall_local.LocalAWS) -> None:
        self.aws = aws
        self.iam = self.root("iam")
        self.iam.create_user(UserName=USER)
        key = self.iam.create_access_key(UserName=USER)["AccessKey"]
        self.keys = {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }
        self.restore()

    def root(self, service: str) -> Any:
        """Return a client of the account's root user."""
        return self.client(service, self.aws.environment)

    def client(self, service: str, keys: dict[str, str]) -> Any:
        """Return a client with the given credentials."""
        return client(service, {**self.aws.environment, "AWS_SESSION_TOKEN": "", **keys})

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Restore the documented policies, and use the user's credentials in this process."""
        for name, value in {**self.aws.environment, **self.keys}.items():
            monkeypatch.setenv(name, value)
        self.restore()

    def restore(self) -> None:
        """Restore the documented policies."""
        trust = json.dumps(policy("trust"))
        for role in (JOB_ROLE, EXECUTION_ROLE):
            self.iam.update_assume_role_policy(RoleName=role, PolicyDocument=trust)
        self.set_policy("client", policy("client"))
        self.set_policy("job-role", policy("job-role"))
        self.set_policy("execution-role", policy("execution-role"))

    def set_policy(self, name: str, document: dict[str, Any]) -> None:
        """Replace one of the three policies."""
        text = json.dumps(document)
        if name == "client":
            self.iam.put_user_policy(UserName=USER, PolicyName="farcall", PolicyDocument=text)
            return
        role = {"job-role": JOB_ROLE, "execution-role": EXECUTION_ROLE}[name]
        self.iam.put_role_policy(RoleName=role, PolicyName="farcall", PolicyDocument=text)

    def take_away(self, name: str, action: str, folder: str = "") -> None:
        """Remove an action from a policy, completely or only for a folder of the bucket."""
        self.set_policy(name, without(policy(name), action, folder))


def _many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
