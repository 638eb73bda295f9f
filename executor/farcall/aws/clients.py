"""AWS clients: one aioboto3 session, and an obstore store for each bucket.

Only this module opens clients. All use the same session's credentials, so they always agree, and
all refusals leave this module as farcall's own errors.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import logging
import os
import re
import socket
import ssl
import time
import weakref
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aioboto3
import aiobotocore.session
import aiohttp
import botocore.exceptions
import botocore.loaders
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioCredentials
from aiobotocore.httpsession import AIOHTTPSession
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies

from farcall.aws import buckets, endpoints, error_translation
from farcall.aws.buckets import BucketLocation
from farcall.aws.credentials import described, limit_refreshes
from farcall.aws.s3 import Operations
from farcall.config.help import DEFAULTS, origin
from farcall.config.settings import Settings
from farcall.model.errors import FarcallError, ServiceError, SettingsError
from farcall.model.names import BATCH
from farcall.model.timing import Timing, in_force
from farcall_runtime.storage import open_store

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3Store

_log = logging.getLogger("farcall")

_SERVICES = ("batch", "iam", "logs", "sts")
_CONNECTIONS = 128
_LAST_CONNECTIONS_S = 1.0
_TURN_S = 0.001
_SETTLE_S = 0.05
_MODELS = str(Path(__file__).with_name("models"))
"""Folder of operations that the pinned version of botocore lacks in its models.

Source:
    https://docs.aws.amazon.com/batch/latest/APIReference/API_TerminateJobs.html
"""

_ENVIRONMENT = "env"
_READ_ONCE = (_ENVIRONMENT, "shared-credentials-file", "config-file")
"""botocore's names for sources of keys that are cheap to read again."""

_CREDENTIALS_KEPT = timedelta(minutes=10)
"""Maximum time after which obstore requests temporary credentials again."""


class _TlsContext(ssl.SSLContext):
    """A TLS context that reads a certificate file once.

    Reading it takes about 80 ms. botocore reads it for each client, on the event loop; here it is
    read in a thread, for all clients.
    """

    def load_verify_locations(
        self, cafile: Any = None, capath: Any = None, cadata: Any = None
    ) -> None:
        if (cafile, capath, cadata) not in self._loaded:
            super().load_verify_locations(cafile, capath, cadata)
            self._loaded.add((cafile, capath, cadata))

    @functools.cached_property
    def _loaded(self) -> set[Any]:
        return set()


@functools.cache
def _tls_context(certificates: str) -> _TlsContext:
    """Return a context that trusts only the certificates in a file."""
    context = _TlsContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates)
    return context


class _HttpSession(AIOHTTPSession):  # type: ignore[misc]  # botocore has no types
    """aiobotocore's HTTP session, with the TLS context that all clients share.

    Servers behind a proxy are verified, too: aiobotocore's own session accepts any certificate
    there.

    After closing, it stays closed: aiobotocore's own session reopens at the next request. Closing
    waits until all connections are closed: aiohttp waits for the connections in its pool, but not
    for those of abandoned requests, which end in a later iteration of the event loop.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_closed = False
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._connector_args: dict[str, Any] = {
            **self._connector_args,
            "socket_factory": self._open_socket,
        }

    def _open_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        opened = socket.socket(family, kind, protocol)
        self._sockets.add(opened)
        return opened

    def _get_ssl_context(self) -> ssl.SSLContext:
        return _tls_context(get_cert_path(self._verify))

    def _setup_proxy_ssl_context(self, proxy_url: str) -> ssl.SSLContext:
        return self._get_ssl_context()

    async def __aexit__(self, *error: object) -> None:
        self._is_closed = True
        await super().__aexit__(*error)
        began = time.monotonic()
        while left := [each for each in self._sockets if each.fileno() >= 0]:
            waited_s = time.monotonic() - began
            if waited_s > 2 * _LAST_CONNECTIONS_S:
                break
            if waited_s > _LAST_CONNECTIONS_S:  # the rest of its data has no reader
                for each in left:
                    with contextlib.suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)
            await asyncio.sleep(_TURN_S)

    async def send(self, request: Any) -> Any:
        if self._is_closed:  # it would open connections that are never closed
            raise _closed()
        return await super().send(request)


class _SendingSession(_HttpSession):
    """A session whose requests may take minutes to send.

    The system may still hold unsent data, so a response may arrive long after the last data was
    passed to it: only the entire request has a time limit.
    """

    def __init__(self, timing: Timing, **options: Any) -> None:
        super().__init__(**options)
        self._timeout = aiohttp.ClientTimeout(
            total=timing.request_timeout_s, sock_connect=timing.connect_timeout_s
        )


class _Config(AioConfig):  # type: ignore[misc]  # botocore has no types
    """Configuration of all clients, including botocore's own for credentials."""

    def __init__(self) -> None:
        super().__init__(http_session_cls=_HttpSession)

    def merge(self, other_config: Any) -> Any:
        merged = super().merge(other_config)
        merged.http_session_cls = _HttpSession  # aiobotocore loses it
        return merged


class _Session(aiobotocore.session.AioSession):  # type: ignore[misc]  # botocore has no types
    """A session whose credentials are not refreshed before each request."""

    async def get_credentials(self) -> Any:
        if self._credentials is None:
            limit_refreshes(await super().get_credentials())
        return self._credentials


@functools.cache
def _settle_at_exit() -> int:
    """Delay the exit of the first process that uses obstore; return its ID.

    A thread of obstore that calls Python during the interpreter's exit aborts the process, and its
    threads release a request's objects microseconds after the response. Without the delay, a few
    percent of the scripts that exit right after their last request die with SIGABRT.

    Source:
        https://github.com/PyO3/pyo3-async-runtimes/issues/40
    """
    atexit.register(time.sleep, _SETTLE_S)
    return os.getpid()


class Aws:
    """Access to one account and region, on one event loop.

    Created with `Aws.open`; closed with `close`.

    Attributes:
        timing: Time limits and retries of all its clients.
        region: The region in use.
        region_origin: Source of the region's configuration.
        has_console: Whether this is AWS itself, whose console shows jobs and logs.
        batch: The Batch client; None if jobs run elsewhere. It sends each request once;
            `farcall.aws.paced_client` retries.
        overruled: Warning that other keys take precedence over the ``credentials`` file; empty if
            none do.
    """

    def __init__(self, session: Any, region: tuple[str, str], settings: Settings) -> None:
        self.timing = in_force()
        core = session._session  # aioboto3 has no public access to the botocore session
        self.region, self.region_origin = region
        self._settings = settings
        self._session = session
        self._stack = contextlib.AsyncExitStack()
        self._is_closed = False
        self._verify = _verify(core)
        self._http: dict[bool, Any] = {}
        self._clients: dict[str, Any] = {}
        self._opening = asyncio.Lock()
        self._account = ""
        self._addressing = buckets.addressing(core, settings.endpoint_url)
        self.has_console = False
        self.batch: Any = None
        self._lacking: ServiceError | None = None  # why there are no credentials
        self.overruled = ""
        self._regions: dict[str, str] = {}
        self._locating = asyncio.Lock()

    @classmethod
    async def configured(cls, settings: Settings) -> Aws:
        """Read the configuration in a thread, without opening clients or sending requests.

        Raises:
            SettingsError: The profile or the credentials file does not exist.
            ServiceError: The configuration is invalid.
        """
        try:
            return cls(*await asyncio.to_thread(_prepare, settings), settings)
        except botocore.exceptions.ProfileNotFound as error:
            name, origin = settings.profile, "profile"
            if name == "default":  # botocore reads both variables, in this order
                names = [name for name in _PROFILE_VARIABLES if name in os.environ]
                origin = names[0] if names else origin
                name = os.environ.get(origin, name)
            raise SettingsError(
                f"{origin} is {name!r}, which is not a profile in the AWS configuration. "
                "Run `aws configure list-profiles` to see the profiles.",
                option="profile" if origin == "profile" else "",
            ) from error
        except botocore.exceptions.BotoCoreError as error:
            raise _unusable(error) from error

    @classmethod
    async def open(cls, settings: Settings) -> Aws:
        """Open the clients, reading AWS's service models in a thread.

        On Kubernetes, only the bucket needs AWS, and command jobs do not use it: missing
        credentials are reported when they are first needed.

        Raises:
            SettingsError: The profile, the credentials file or the region does not exist.
            ServiceError: There are no credentials, and the jobs run on Batch.
        """
        aws = await cls.configured(settings)
        is_batch = settings.backend == BATCH
        try:
            credentials = await aws._found_credentials(is_batch=is_batch)
        except ServiceError as error:
            if is_batch:
                raise
            aws._lacking = error
            return aws
        if "credentials" in settings.model_fields_set and credentials.method == _ENVIRONMENT:
            aws.overruled = (
                f"credentials is {settings.credentials!r}, but AWS_ACCESS_KEY_ID in the "
                "environment takes precedence, as in all AWS tools; unset it, or set profile to "
                "one in the file, which takes precedence over it"
            )
        if is_batch:
            aws.batch = await aws._enter("batch", attempts=1)
            url = aws.batch.meta.endpoint_url
            aws.has_console = endpoints.is_aws(url)
            await endpoints.check_region(url, aws.region, aws.region_origin)
        return aws

    async def _found_credentials(self, *, is_batch: bool) -> Any:
        try:
            credentials = await self._session.get_credentials()
        except botocore.exceptions.BotoCoreError as error:
            raise _unusable(error) from error
        if credentials is None and is_batch:
            raise ServiceError(
                "no AWS credentials were found; run `aws configure`, set AWS_PROFILE, or name "
                "a profile or a credentials file in farcall's options; without an account "
                f"{error_translation.WITHOUT}",
                code=error_translation.CODE_NO_CREDENTIALS,
                sent=False,
            )
        if credentials is None:
            raise ServiceError(
                "no credentials for the bucket were found; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or name a profile or a credentials file in "
                "farcall's options: functions are sent through a bucket in S3 or a compatible "
                "store (endpoint_url); only command jobs do not need one"
            )
        return credentials

    @property
    def region_and_origin(self) -> str:
        """The region and the source of its configuration, for errors."""
        return f"{self.region} (from {self.region_origin})"

    async def close(self) -> None:
        """Close the clients."""
        self._is_closed = True
        async with self._opening:  # waits for a client that is being opened, to close it too
            await self._stack.aclose()

    async def client(self, service: str) -> Any:
        """Return the client of another service, opened on first use.

        Raises:
            FarcallError: The clients are closed.
            ServiceError: The configuration is invalid, or there are no credentials.
        """
        self._need_credentials()
        async with self._opening:
            if self._is_closed:
                raise _closed()
            if service not in self._clients:
                self._clients[service] = await self._enter(service, attempts=self.timing.attempts)
        return self._clients[service]

    def store(self, bucket: str, *, sending: bool = False) -> S3Store:
        """Open the store of a bucket, with separate connections and credentials.

        Args:
            bucket: The bucket's name.
            sending: Whether requests may take minutes to send. Otherwise a request without a
                response for half a minute is abandoned and repeated.

        Raises:
            ServiceError: There are no credentials.
        """
        self._need_credentials()
        if _settle_at_exit() != os.getpid():
            raise FarcallError(
                "farcall was used before this process was forked, and does not survive fork(); "
                'start processes with multiprocessing.get_context("spawn")'
            )
        place = self.place(bucket)
        options: dict[str, Any] = {
            "allow_http": place.url.startswith("http://"),
            "connect_timeout": f"{self.timing.connect_timeout_s}s",
            "timeout": f"{self.timing.request_timeout_s}s",
        }
        if not sending:
            # Limit for the response; it starts with the request.
            options["read_timeout"] = f"{self.timing.read_timeout_s}s"
        retry_s = self.timing.sending_retry_s if sending else self.timing.quick_retry_s
        return open_store(
            buckets.copy_source(bucket),  # for copies only: the URL contains the bucket
            *place,
            self._settings.s3_encryption,
            self._settings.s3_kms_key_id,
            credential_provider=self._credentials,
            client_options=options,
            retry_config={
                "max_retries": 10,
                "retry_timeout": timedelta(seconds=retry_s),
            },
        )

    def operations(self, bucket: str) -> Operations:
        """Return the requests to a bucket that do not use obstore."""
        return Operations(
            functools.partial(self.place, bucket),
            self._frozen,
            self._send,
            encryption=self._settings.s3_encryption,
            kms_key_id=self._settings.s3_kms_key_id,
        )

    def _need_credentials(self) -> None:
        if self._lacking is not None:
            raise self._lacking

    async def _frozen(self, renew: bool) -> Any:
        if renew:
            await self._reload_credentials()
        return await (await self._session.get_credentials()).get_frozen_credentials()

    async def _send(self, request: Any, sending: bool) -> Any:
        if self._is_closed:
            raise _closed()
        if sending not in self._http:
            options = {
                "verify": self._verify,
                "proxies": get_environ_proxies(request.url),
                "timeout": (self.timing.connect_timeout_s, self.timing.read_timeout_s),
                "max_pool_connections": _CONNECTIONS,
            }
            http = _SendingSession(self.timing, **options) if sending else _HttpSession(**options)
            self._http[sending] = await self._stack.enter_async_context(http)
        return await self._http[sending].send(request)

    def place(self, bucket: str) -> BucketLocation:
        """Return a bucket's URL, and its region if known; otherwise the region in use.

        Args:
            bucket: The bucket's name, an access point's alias, or an access point's ARN.

        Raises:
            SettingsError: The endpoint does not exist.
        """
        return buckets.place(bucket, self._regions.get(bucket, self.region), self._addressing)

    async def locate(self, bucket: str) -> bool:
        """Request a bucket's region from S3, and use it for stores opened from now on.

        Call it only if S3 refuses a request because of the region.

        Returns:
            Whether the region differs from the one in use.

        Source:
            https://docs.aws.amazon.com/AmazonS3/latest/API/API_HeadBucket.html
        """
        async with self._locating:
            if bucket not in self._regions:
                region = await self._fetch_region(bucket)
                if region in ("", self.region):
                    return False
                self._regions[bucket] = region
                _log.warning(
                    "bucket %s is in %s, but the jobs are in %s: transfers between regions cost "
                    "money and take longer",
                    *(bucket, region, self.region),
                )
        return True

    async def _fetch_region(self, bucket: str) -> str:
        try:
            reply = await (await self.client("s3")).head_bucket(Bucket=bucket)
        except botocore.exceptions.ClientError as error:  # the error contains the region
            reply = error.response
        except (*error_translation.ALL, ServiceError) as error:
            _log.debug("the region of bucket %s was not found: %r", bucket, error)
            return ""
        headers = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return str(headers.get("x-amz-bucket-region", ""))

    async def account(self) -> str:
        """Return the account's ID, twelve digits.

        Raises:
            ServiceError: STS refused.
        """
        if not self._account:
            identity = await call(await self.client("sts"), "get_caller_identity")
            self._account = identity["Account"]
        return self._account

    async def credentials(self) -> tuple[str, datetime | None]:
        """Return the source of the credentials in botocore's terms, and their expiry.

        Raises:
            ServiceError: There are none.
        """
        self._need_credentials()
        loaded = await self._session.get_credentials()
        return str(loaded.method), getattr(loaded, "_expiry_time", None)

    async def key_and_source(self) -> str:
        """Return the end of the access key's ID and its source, for errors."""
        return described(await self._session.get_credentials(), self._session._session)

    async def _enter(self, service: str, *, attempts: int) -> Any:
        config = AioConfig(
            connect_timeout=self.timing.connect_timeout_s,
            read_timeout=self.timing.read_timeout_s,
            max_pool_connections=_CONNECTIONS,
            retries={"mode": "standard", "total_max_attempts": attempts},
        )
        url = self._settings.endpoint_url or None
        opening = self._session.client(
            service,
            region_name=self.region,
            endpoint_url=url,
            verify=self._verify,
            config=config,
        )
        try:
            client = await self._stack.enter_async_context(opening)
        except (botocore.exceptions.BotoCoreError, ValueError) as error:  # an invalid URL
            raise _unusable(error) from error
        client.meta.events.register("response-received", self._record_answered)
        client.meta.events.register("before-parse", drop_foreign_error)
        client.meta.events.register("before-parse.logs.GetLogEvents", keep_events)
        return client

    async def _record_answered(
        self, parsed_response: dict[str, Any] | None = None, **_: Any
    ) -> None:
        details = (parsed_response or {}).get("Error", {})
        code = str(details.get("Code", ""))
        if code:
            error_translation.record_error(f"{details.get('Message') or code} ({code})")
        if error_translation.is_of_credentials(ServiceError("", code=code)):
            details[error_translation.KEY] = await self.key_and_source()
            await self._reload_credentials()

    async def _reload_credentials(self) -> None:
        """Reload keys that may have changed at the source of the keys in use.

        botocore renews credentials whose expiry it knows. It reads keys from a file or the
        environment only once, and would use them forever.
        """
        held = await self._session.get_credentials()
        if type(held) is not AioCredentials or held.method not in _READ_ONCE:
            return
        resolver = self._session._session.get_component("credential_provider")
        with contextlib.suppress(botocore.exceptions.BotoCoreError):
            reloaded = await resolver.load_credentials()
            if type(reloaded) is AioCredentials:
                held.access_key, held.secret_key = reloaded.access_key, reloaded.secret_key
                held.token = reloaded.token

    async def _credentials(self) -> S3Credential:
        """Return the session's credentials for obstore; botocore renews expired ones."""
        frozen = await self._frozen(renew=True)
        _, expires = await self.credentials()
        if frozen.token:
            kept_until = datetime.now(UTC) + _CREDENTIALS_KEPT
            expires = min(kept_until, expires or kept_until)
        if expires is not None:
            expires = expires.astimezone(UTC)  # obstore rejects dateutil's zones
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": expires,
        }


async def call(client: Any, operation: str, **parameters: Any) -> dict[str, Any]:
    """Call an operation of a botocore client.

    Raises:
        ServiceError: The service refused or could not be reached.
    """
    try:
        reply: dict[str, Any] = await getattr(client, operation)(**parameters)
    except error_translation.ALL as error:
        raise _explained(client, operation, error) from error_translation.showable(error)
    # botocore treats a response that is not JSON as an empty one.
    about = reply.get("ResponseMetadata", {})
    is_page = "html" in about.get("HTTPHeaders", {}).get("content-type", "")
    if is_page and not about.get("RequestId"):  # moto has an ID, and declares JSON as HTML
        name = client.meta.method_to_api_mapping[operation]
        raise error_translation.explain_other(name, client.meta.endpoint_url, "a web page")
    return reply


async def pages(client: Any, operation: str, **parameters: Any) -> AsyncIterator[dict[str, Any]]:
    """Yield all pages of an operation of a botocore client.

    Raises:
        ServiceError: The service refused or could not be reached.
    """
    try:
        async for page in client.get_paginator(operation).paginate(**parameters):
            yield page
    except error_translation.ALL as error:
        raise _explained(client, operation, error) from error_translation.showable(error)


def _explained(client: Any, operation: str, error: Exception) -> ServiceError:
    name = client.meta.method_to_api_mapping[operation]
    return error_translation.explain(name, error, client.meta.endpoint_url)


def drop_foreign_error(operation_model: Any, response_dict: dict[str, Any], **_: Any) -> None:
    """Remove the body of a server error that is not the service's, but a proxy's.

    Without a body, botocore repeats the request and names the status. Otherwise it raises an error
    of its XML parser, which it does not repeat, or an error without a text.
    """
    is_xml = operation_model.service_model.metadata.get("protocol") == "query"
    if is_xml and response_dict["status_code"] >= 500 and b"<Code>" not in response_dict["body"]:
        response_dict["body"] = b""


def keep_events(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """Extract a log page's events before botocore parses them field by field.

    That parser took half of the CPU time of ``farcall logs``.
    """
    try:
        document = json.loads(response_dict["body"])
        events = document.pop("events")
    except (AttributeError, KeyError, TypeError, ValueError):
        return  # an error, or not CloudWatch's response
    customized_response_dict["events"] = events
    response_dict["body"] = json.dumps(document).encode()


def _closed() -> FarcallError:
    return FarcallError("the executor was closed during a call to AWS; try again")


def _unusable(error: Exception) -> ServiceError:
    text = f"the AWS configuration cannot be used: {error}"
    url = str(error).removeprefix("Invalid endpoint: ")
    if url != str(error):
        shown = re.sub(r"[^/@]+@", "", url)  # a password
        text = f"endpoint_url or AWS_ENDPOINT_URL is {shown!r}; it must start with https:// or http://"
    if isinstance(error, botocore.exceptions.CredentialRetrievalError):
        text += f"; {error_translation.NO_CREDENTIALS}"
    return ServiceError(text)


def _verify(core: Any) -> Any:
    """Return the configured certificate file; True for botocore's own.

    As in botocore, requests's variable REQUESTS_CA_BUNDLE is also used.
    """
    return core.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE") or True


@functools.cache
def _models(paths: str | None, *, is_batch: bool) -> botocore.loaders.Loader:
    """Return the loader of AWS's service models, shared by this process's sessions.

    The models that every session needs are already loaded.

    Args:
        paths: The configured folders with further models.
        is_batch: Whether the jobs run on Batch; otherwise few sessions need any model.
    """
    loader = botocore.loaders.create_loader(paths)
    loader.search_paths.append(_MODELS)
    for name in ("endpoints", "partitions", "sdk-default-configuration", "_retry"):
        loader.load_data(name)
    for service in _SERVICES if is_batch else ():
        loader.load_service_model(service, "service-2")
        loader.load_service_model(service, "endpoint-rule-set-1")
    return loader


_CHATTY = ("botocore.configprovider", "botocore.credentials", "aiobotocore.credentials")
"""Loggers that report at INFO, for each client, where its configuration comes from."""


def _silence_libraries() -> None:
    """Raise the level of chatty loggers, unless the user has set one."""
    for name in _CHATTY:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)


def _prepare(settings: Settings) -> tuple[Any, tuple[str, str]]:
    """Create the session with the models for its clients; return it and its region."""
    _silence_libraries()
    given = settings.model_fields_set
    profile = settings.profile if settings.profile != "default" else None
    core = _Session(profile=profile)
    core.set_default_client_config(_Config())
    if "credentials" in given:
        try:
            path = Path(settings.credentials).expanduser()
            there = path.is_file()
        except (OSError, RuntimeError):  # the path is too long, or the home folder is unknown
            there = False
        if not there:
            raise SettingsError(
                f"credentials file {settings.credentials!r} does not exist (option credentials); "
                "correct the path, or run `aws configure`",
                option="credentials",
            )
        core.set_config_variable("credentials_file", str(path))
    certificates = get_cert_path(_verify(core))
    try:
        _tls_context(certificates)
    except OSError as error:
        raise ServiceError(
            f"the certificates in {certificates} cannot be read: {error}; correct AWS_CA_BUNDLE, "
            "ca_bundle in the AWS configuration, or REQUESTS_CA_BUNDLE, which name the file"
        ) from error
    models = _models(core.get_config_variable("data_path"), is_batch=settings.backend == BATCH)
    core.register_component("data_loader", models)
    region = _region(core, settings)
    return aioboto3.Session(botocore_session=core, region_name=region[0]), region


def _region(core: Any, settings: Settings) -> tuple[str, str]:
    """Return the region in use, and the source of its configuration.

    botocore does not know AWS_REGION, which takes precedence in all other tools.

    Source:
        https://docs.aws.amazon.com/sdkref/latest/guide/feature-region.html
    """
    if "region" in settings.model_fields_set:
        given = origin("region")
        return settings.region, "an argument" if given == DEFAULTS else given
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if os.environ.get(name):
            return settings.region, name
    region = core.get_config_variable("region")
    if not region:
        return settings.region, DEFAULTS
    profile = core.get_config_variable("profile") or "default"
    return region, f"profile {profile!r} in the AWS configuration"


_PROFILE_VARIABLES = ("AWS_DEFAULT_PROFILE", "AWS_PROFILE")
