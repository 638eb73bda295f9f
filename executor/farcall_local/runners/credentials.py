"""Credentials of the job role, as ECS provides them to a container.

Instead of keys, a container gets the URL of an endpoint, from which every AWS SDK requests keys,
and new keys before these expire.

Sources:
    https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-iam-roles.html
    https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html
"""

from __future__ import annotations

import datetime as dt
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from farcall_local.services.signatures import AccessKey

#: Path of the endpoint. Bucket names have at least three characters, so it is not an S3 path.
PATH = "/v2/credentials/"

#: Lifetime of keys from ECS in seconds.
DEFAULT_LIFETIME_S = 6 * 3600.0


class RoleCredentials:
    """Credentials provider, which assumes job roles for running attempts.

    Safe to use from several threads.

    Args:
        assume: Assumes a role of moto's STS, given ARN, session name and seconds; returns moto's
            ``AssumedRole``.
        key: The account's own key.
        enforced: Whether permissions are enforced, so that a job must not have the account's key.

    Attributes:
        token: Required ``Authorization`` header of a request to the endpoint.
        lifetime_s: Lifetime of new keys in seconds.
    """

    def __init__(
        self, assume: Callable[[str, str, int], Any], key: AccessKey, *, enforced: bool = False
    ) -> None:
        self._key = key
        self._enforced = enforced
        self.token = secrets.token_urlsafe()
        self.lifetime_s = DEFAULT_LIFETIME_S
        self._assume = assume
        self._grants: dict[str, tuple[str, str]] = {}
        self._expires: dict[str, float] = {}
        self._lock = threading.Lock()

    def keys(self, role_arn: str | None, session: str) -> dict[str, str]:
        """Return keys as environment variables, for a process, which has no endpoint.

        If permissions are not enforced, this is the account's own key. Otherwise it is the job
        role's key, valid for the maximum lifetime of the process, or nothing without a role.
        """
        if not self._enforced:
            return self._key.environment
        if role_arn is None:
            return {}
        role = self._assume(role_arn, session, int(DEFAULT_LIFETIME_S))
        return {
            "AWS_ACCESS_KEY_ID": role.access_key_id,
            "AWS_SECRET_ACCESS_KEY": role.secret_access_key,
            "AWS_SESSION_TOKEN": role.session_token,
        }

    def grant(self, role_arn: str, session: str) -> str:
        """Permit an attempt to request keys of its role; return the endpoint's path."""
        path = f"{PATH}{secrets.token_urlsafe()}"
        with self._lock:
            self._grants[path] = role_arn, session
        return path

    def revoke(self, path: str) -> None:
        """Revoke a permission of `grant`; existing keys are valid until they expire."""
        with self._lock:
            self._grants.pop(path, None)

    def respond(self, method: str, path: str, token: str) -> tuple[int, dict[str, str]]:
        """Return status and document for a request to the endpoint."""
        if method != "GET":
            return 405, {"code": "MethodNotAllowed", "message": "Only GET is answered."}
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return 401, {"code": "AuthorizationFailed", "message": "The token is not valid."}
        with self._lock:
            grant = self._grants.get(path)
            if grant is None:
                return 400, {"code": "InvalidIdInRequest", "message": "No task has this ID."}
            return 200, self._new_keys(*grant)

    def expired(self, key_id: str) -> bool:
        """Return whether a key was issued here and has expired."""
        return time.time() >= self._expires.get(key_id, float("inf"))

    def _new_keys(self, role_arn: str, session: str) -> dict[str, str]:
        lifetime_s = self.lifetime_s
        role = self._assume(role_arn, session, int(lifetime_s))
        expires = self._expires[role.access_key_id] = time.time() + lifetime_s
        moment = dt.datetime.fromtimestamp(expires, dt.UTC)
        return {
            "RoleArn": role_arn,
            "AccessKeyId": role.access_key_id,
            "SecretAccessKey": role.secret_access_key,
            "Token": role.session_token,
            "Expiration": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
