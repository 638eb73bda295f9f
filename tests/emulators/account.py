"""The tests' extension of the local AWS emulator, in its process; see `tests.emulators.start`."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Any
from xml.sax.saxutils import escape

from moto.backends import get_backend
from moto.core.config import default_user_config
from moto.moto_server.werkzeug_app import DomainDispatcherApplication

from farcall_local import names
from farcall_local.runners.runner import Runner
from farcall_local.services import error_responses
from farcall_local.services.admission import Caller
from farcall_local.services.error_responses import RefusedError
from farcall_local.services.front import make_app
from farcall_local.services.server import TRUST, LocalServer
from farcall_local.services.signatures import AccessKey
from tests.emulators import inventory, registry
from tests.emulators.batch import Changes
from tests.emulators.cloudformation.api import Stacks
from tests.emulators.iam.actions import BATCH, BATCH_ROLE, ECS_TASKS, Call, log_arn
from tests.emulators.iam.permissions import Guard
from tests.emulators.iam.policies import Need
from tests.emulators.kubernetes.cluster import EmbeddedKubernetes
from tests.emulators.kubernetes.endpoint import ClusterEndpoint

StartResponse = Callable[..., Any]


class Account:
    """See `farcall_local.services.front.Extension`."""

    def __init__(
        self, *, enforces_permissions: bool, is_empty: bool, has_kubernetes: bool
    ) -> None:
        self.enforces_permissions = enforces_permissions
        self.is_empty = is_empty
        self._endpoint = ClusterEndpoint() if has_kubernetes else None
        self._kubernetes: EmbeddedKubernetes | None = None
        self.environment = self._endpoint.environment if self._endpoint else {}
        self._stacks: Stacks | None = None
        self._lock = threading.Lock()
        # The template's role has a policy managed by AWS, which moto leaves out by default.
        default_user_config["iam"]["load_aws_managed_policies"] = is_empty

    def attach(self, server: LocalServer) -> None:
        """Set the server whose requests this extension handles."""
        self._server = server
        self._front = server.front
        self._guard = Guard(self._front.locks["iam"], self._front.locks["sts"])
        self._others: Any = DomainDispatcherApplication(self._make_app)
        self._others_lock = threading.Lock()

    async def start(self, runner: Runner, cpus: int) -> None:
        """Start the Kubernetes emulator, if there is one."""
        if self._endpoint is not None:
            secret = {} if self.is_empty else _s3_secret(self._server)
            self._kubernetes = EmbeddedKubernetes(self._endpoint, runner, cpus, secret)
            await self._kubernetes.start()

    async def close(self) -> None:
        """Stop the Kubernetes emulator."""
        if self._kubernetes is not None:
            await self._kubernetes.close()

    def respond(
        self, caller: Caller, environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer a signed request."""
        service = caller.signature.service
        if not self.enforces_permissions or caller.identity is None:
            return self._answer(caller, environ, start_response)
        call = _call(service, environ)
        answered: list[Any] = []
        try:
            hidden = self._guard.admit(call, caller.identity)
        except RefusedError as error:
            return _refuse(service, error, start_response)
        body = self._answer(caller, environ, lambda *given: answered.extend(given))
        if hidden is not None and answered[0].startswith("404"):
            return _refuse(service, hidden, start_response)
        start_response(*answered)
        return body

    def log_objection(
        self, role_arn: str, session: str, action: str, group: str, stream: str
    ) -> str | None:
        """Return the reason why an execution role may not write a log, or None if it may."""
        if not self.enforces_permissions:
            return None
        need = Need(f"logs:{action}", log_arn(group, stream))
        return self._guard.objection(role_arn, session, need)

    def control(self, name: str, document: dict[str, Any]) -> dict[str, Any] | None:
        """Handle a development call; return None if it is unknown."""
        if name == "registry":
            registry.serve(document["host"])
            return {}
        if name == "kubernetes" and self._kubernetes is not None:
            call = self._kubernetes.call(**document)
            loop = self._server._loop
            return {"answer": asyncio.run_coroutine_threadsafe(call, loop).result()}
        if name != "resources":
            return None
        found = inventory.of_moto({**self._front.locks, "": self._others_lock})
        found.update(self._server._on_loop(self._batch.inventory))
        if self._stacks is not None:
            found["stacks"] = self._stacks.names()
        return {kind: sorted(listed) for kind, listed in sorted(found.items()) if listed}

    def _answer(
        self, caller: Caller, environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        service = caller.signature.service
        if service == "cloudformation":
            key = AccessKey(caller.signature.key_id, caller.secret, caller.signature.token)
            status, body = self._answer_stacks(environ["wsgi.input"].read(), key)
            start_response(f"{status} -", _xml_headers(body))
            return [body]
        if service in ("ec2", "ecr", "servicequotas"):
            with self._others_lock:
                return list(self._others(environ, start_response))
        if service == "batch":
            self._batch  # noqa: B018 - adds its operations
        if environ["PATH_INFO"].endswith("/createcomputeenvironment"):
            self._make_batch_role(json.loads(environ["wsgi.input"].read()))
            environ["wsgi.input"].seek(0)
        return self._front.respond(service, environ, start_response)

    @functools.cached_property
    def _batch(self) -> Changes:
        return Changes(self._server._api)

    def _make_app(self, service: Any) -> Any:
        if service == "ecr":
            registry.install()
        return make_app(service)

    def _answer_stacks(self, body: bytes, key: AccessKey) -> tuple[int, bytes]:
        with self._lock:
            if self._stacks is None:
                self._stacks = Stacks(self._server.endpoint_url)
        return self._stacks.answer(body, key)

    def _make_batch_role(self, document: dict[str, Any]) -> None:
        """Create Batch's service-linked role with the first environment without another role."""
        with self._front.locks["iam"]:
            iam = get_backend("iam")[names.ACCOUNT_ID]["aws"]
            exists = any(role.arn == BATCH_ROLE for role in iam.roles.values())
            if document.get("type") != "MANAGED" or document.get("serviceRole") or exists:
                return
            iam.create_role(
                BATCH_ROLE.rpartition("/")[2],
                json.dumps(TRUST).replace(ECS_TASKS, BATCH),
                f"/aws-service-role/{BATCH}/",
                permissions_boundary=None,
                description="",
                tags=[],
                max_session_duration="3600",
                linked_service=BATCH,
            )


def _s3_secret(server: LocalServer) -> dict[str, str]:
    return {name: value for name, value in server.environment.items() if name.startswith("AWS_")}


def _call(service: str, environ: dict[str, Any]) -> Call:
    """Return a request as its signature covers it."""
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").title(): value
        for name, value in environ.items()
        if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
    }
    method, body = environ["REQUEST_METHOD"], b""
    if service != "s3" or method == "POST":
        body = environ["wsgi.input"].read()
        environ["wsgi.input"].seek(0)
    return Call(service, method, environ["RAW_URI"], headers, body)


def _refuse(service: str, error: RefusedError, start_response: StartResponse) -> list[bytes]:
    if service == "ec2":
        return _refuse_ec2(error, start_response)
    status, headers, body = error_responses.render(service, error)
    start_response(status, headers)
    return [body]


def _refuse_ec2(error: RefusedError, start_response: StartResponse) -> list[bytes]:
    """Reject a request as EC2 does.

    https://docs.aws.amazon.com/ec2/latest/devguide/errors-overview.html
    """
    text = escape(f"You are not authorized to perform this operation. {error}")
    why = f"<Error><Code>UnauthorizedOperation</Code><Message>{text}</Message></Error>"
    body = f"<Response><Errors>{why}</Errors></Response>".encode()
    start_response("403 -", _xml_headers(body))
    return [body]


def _xml_headers(body: bytes) -> list[tuple[str, str]]:
    return [
        ("Content-Type", "text/xml"),
        ("Content-Length", str(len(body))),
        ("x-amzn-RequestId", str(uuid.uuid4())),
    ]
