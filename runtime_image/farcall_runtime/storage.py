"""Objects of one bucket, accessed with the credentials of the job's role.

obstore finds credentials as AWS's own SDKs do in a container: ECS and EKS endpoints
(``AWS_CONTAINER_CREDENTIALS_*``), web identity (``AWS_WEB_IDENTITY_TOKEN_FILE``), keys in the
environment, and the EC2 instance's role. It renews them before they expire.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import math
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from farcall_runtime import contract, envelope
from farcall_runtime.envelope import Buffer
from farcall_runtime.transient_errors import EXPIRED, PASSING, is_unknown
from farcall_runtime.waiting import POLL_S, NoResponseError, call_in_thread, convert_panic

if TYPE_CHECKING:
    from concurrent.futures import Future

    from obstore.store import ObjectStore, S3Config, S3Store

T = TypeVar("T")

SINGLE_PUT_BYTES = 64 * 1024 * 1024
"""Maximum size of a result inside its outcome: 64 MiB. Larger ones are separate."""

RETRY_S = 120.0
"""Maximum time for retrying a request in seconds.

S3 throttles arrays that start at once. A longer failure means a network without a route to S3, and
must not be reported as a timed-out function.
"""

_STREAM_BYTES = 8 * 1024 * 1024
_PARALLEL_PARTS = 4

_QUICK_RETRY_S = 10  # obstore's own retries, with the same credentials and connections
_QUICK_PAUSE_S = 0.5  # before the first of them; longer than storing an outcome usually takes
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_LONGEST_REQUEST_S = 600
_PATIENCE_S = 30.0
_SLOWEST_BYTES_S = 50_000  # a faster transfer does not count as hanging
_MOST_TEXT, _MOST_CODE = 500, 60
_REREAD_PAUSES_S = (0.1, 1.0)

_PASSING = (*PASSING, *EXPIRED, "InvalidToken")
"""Codes of errors that a retry may not meet again, possibly with fresh credentials."""


_OBSTORE_DEFAULTS: S3Config = {
    "conditional_put": "etag",
    "copy_if_not_exists": "multipart",
    "disable_bulk_delete": False,
    "disable_tagging": False,
    "imdsv1_fallback": False,
    "metadata_endpoint": "http://169.254.169.254",
    "request_payer": False,
    "s3_express": False,
    "skip_signature": False,
    "unsigned_payload": False,
}
"""obstore's defaults, passed because it otherwise reads ``AWS_*`` variables."""

_HIDDEN = (
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_TOKEN",
)
"""Variables that only obstore reads, and that have no explicit default value."""

_hiding = threading.Lock()


def open_store(
    name: str, url: str, region: str, encryption: str, kms_key_id: str, **options: Any
) -> S3Store:
    """Open a bucket for client and container.

    Only the arguments determine the requests. obstore itself reads dozens of ``AWS_*``
    variables, such as ``AWS_SKIP_SIGNATURE``, which neither AWS's SDKs nor farcall document. Only
    its credentials come from the environment, and only without a ``credential_provider``.

    Every object is sent with its SHA-256, because a bucket whose Object Lock has a default
    retention requires a checksum. The signature contains the hash anyway, so it costs nothing.

    Args:
        name: The bucket's name.
        url: The bucket's URL.
        region: The bucket's region.
        encryption: Encryption of new objects; empty for the bucket's default.
        kms_key_id: AWS KMS key for the encryption; empty for the account's default key.
        options: obstore's other arguments. ``client_options`` is required: without it obstore
            reads the options of its HTTP client from ``AWS_*`` variables.

    Sources:
        https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-lock-managing.html
        https://developmentseed.org/obstore/latest/api/store/aws/#obstore.store.S3Config
    """
    from obstore.store import S3Store  # after the fork: the child process does not need it

    config: S3Config = {
        **_OBSTORE_DEFAULTS,
        "region": region,
        "endpoint": url,
        "aws_endpoint_url_s3": url,  # the environment's would take precedence over `endpoint`
        "virtual_hosted_style_request": True,  # the URL contains the bucket
        "checksum_algorithm": "SHA256",
    }
    if encryption:
        config["server_side_encryption"] = encryption
    if kms_key_id:
        config["sse_kms_key_id"] = kms_key_id
    with _hidden_variables():
        return S3Store(name, config=config, **options)


@contextlib.contextmanager
def _hidden_variables() -> Generator[None, None, None]:
    """Remove the variables that only obstore reads, while it reads the environment."""
    with _hiding:
        # obstore ignores the case of a name after its prefix.
        names = [
            name for name in os.environ if name.startswith("AWS_") and name.upper() in _HIDDEN
        ]
        hidden = {name: os.environ.pop(name) for name in names}
        try:
            yield
        finally:
            os.environ.update(hidden)


class StorageError(Exception):
    """The bucket could not be reached, or refused, in all attempts."""


class NotFoundError(StorageError):
    """The object or the bucket does not exist."""


class TooShortError(StorageError):
    """The object ends before the requested bytes."""


class UnfitError(StorageError):
    """The store does not behave like S3.

    It does not know a request, or returns a whole object instead of a range.
    """


class DeniedError(StorageError):
    """S3 denied the request to the job's role."""


class _WholeError(StorageError):
    """The store returned the whole object instead of a range."""


class _ExistsError(StorageError):
    """The object exists already."""


class Created(enum.Enum):
    """Result of storing an object only if it does not exist."""

    NOW = enum.auto()
    """This call has stored the object, once."""
    PERHAPS_AGAIN = enum.auto()
    """This call has stored it, possibly twice if a client deleted the first one."""
    BEFORE = enum.auto()
    """It existed: from a request of this call with a lost response, or from another."""


_ahead: dict[str, ObjectStore] = {}
"""Stores by bucket that a process has opened for the processes that it forks."""


def open_ahead(bucket: str, environment: Mapping[str, str]) -> None:
    """Open a bucket for the first `Storage` of each process that this one forks.

    Opening takes 12 ms of CPU, mostly for certificates. It makes no request and starts no thread.
    """
    with contextlib.suppress(Exception):  # each process tries again
        _ahead[bucket] = convert_panic(Storage(bucket, environment)._open)


class Storage:
    """One bucket.

    Requests are retried with fresh connections and credentials, and abandoned if they hang.

    Args:
        bucket: Name of the bucket.
        environment: Contains endpoint, region and credentials.
        retry_s: Maximum time for retries in seconds.
        deadline: Returns when to abandon requests, `time.monotonic`. It is called repeatedly, so
            its result may change.
        patience_s: Time after which a request without a body and without a response is repeated,
            in seconds; each 50 kB of a body add one second.
    """

    def __init__(
        self,
        bucket: str,
        environment: Mapping[str, str] = os.environ,
        *,
        retry_s: float = RETRY_S,
        deadline: Callable[[], float] = lambda: math.inf,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self.bucket = bucket
        self._environment = environment
        self._retry_s = retry_s
        self._deadline = deadline
        self._patience_s = patience_s
        self._store: ObjectStore | None = _ahead.pop(bucket, None)  # opening it may fail

    def bounded(self, retry_s: float, deadline: Callable[[], float]) -> Storage:
        """Return the same bucket and connections with other time limits."""
        other = object.__new__(Storage)  # the copy module takes 1 ms to import
        vars(other).update(vars(self))
        other._retry_s, other._deadline = retry_s, deadline
        return other

    def _open(self) -> ObjectStore:
        """Open the bucket with fresh connections and credentials."""
        environment = self._environment
        region = (
            environment.get(contract.ENV_REGION)
            or environment.get("AWS_REGION")
            or environment.get("AWS_DEFAULT_REGION")
            or "us-east-1"
        )
        # The container's settings take precedence over the client's, which may contain an address
        # that is only valid where the client runs.
        endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
        url = (
            f"{endpoint.rstrip('/')}/{self.bucket}"
            if endpoint
            else environment.get(contract.ENV_BUCKET_URL)
            or contract.bucket_url(self.bucket, region)
        )
        if url.startswith("file:"):  # a bucket that is a folder: see the contract
            from obstore.store import from_url

            return from_url(url)
        return open_store(
            self.bucket,
            url,
            region,
            environment.get(contract.ENV_ENCRYPTION, ""),
            environment.get(contract.ENV_KMS_KEY, ""),
            client_options={
                "allow_http": url.startswith("http://"),
                "connect_timeout": "10s",
                "timeout": f"{_LONGEST_REQUEST_S}s",
            },
            retry_config={
                "max_retries": 10,
                "retry_timeout": timedelta(seconds=_QUICK_RETRY_S),
                "backoff": {
                    "init_backoff": timedelta(seconds=_QUICK_PAUSE_S),
                    "max_backoff": timedelta(seconds=5),
                    "base": 2,
                },
            },
        )

    def read(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes of an object from ``start`` up to, not including, ``end``.

        If the object ends earlier, fewer bytes are returned.

        Raises:
            NotFoundError: The object does not exist.
            TooShortError: It ends before the first of these bytes.
            StorageError: S3 could not be reached.
        """
        return bytes(self._read(key, start, end))

    def _read(self, key: str, start: int, end: int) -> memoryview:
        """Return bytes of an object without copying obstore's buffer."""
        import obstore

        return memoryview(
            self._call_for_part(
                key,
                end - start,
                lambda store: obstore.get_range(store, key, start=start, end=end),
            )
        )

    def read_end(self, key: str, length: int) -> bytes:
        """Return the last ``length`` bytes of an object, or all bytes of a shorter one.

        Raises:
            NotFoundError: The object does not exist.
            TooShortError: The object is empty.
            StorageError: S3 could not be reached.
        """
        import obstore

        return bytes(
            self._call_for_part(
                key,
                length,
                lambda store: obstore.get(
                    store, key, options={"range": {"suffix": length}}
                ).bytes(),
            )
        )

    def _call_for_part(self, key: str, size: int, request: Callable[[ObjectStore], Any]) -> Any:
        import obstore

        try:
            return self._call(key, size, request)
        except _WholeError as error:
            # For an empty object, some stores return the whole object where S3 returns 416.
            if self._call(key, 0, lambda store: obstore.head(store, key))["size"]:
                text = f"{error}; farcall needs a store that supports ranges, as S3 does"
                raise UnfitError(text) from error
            raise TooShortError(str(error)) from error

    def get_changed(self, key: str, tag: str, most: int) -> tuple[bytes, str] | None:
        """Return an object and its tag; None if it does not exist, or still has a tag.

        Args:
            key: Key of the object.
            tag: Its tag when it was last read; empty for none.
            most: Maximum size; the content of a larger object is returned as empty.

        Raises:
            StorageError: S3 could not be reached, or refused.
        """
        import obstore
        from obstore.exceptions import NotModifiedError

        def get(store: ObjectStore) -> tuple[bytes, str] | None:
            try:
                reply = obstore.get(store, key, options={"if_none_match": tag} if tag else {})
            except NotModifiedError:
                return None
            size = reply.meta["size"]
            return bytes(reply.bytes()) if size <= most else b"", str(reply.meta["e_tag"])

        try:
            return self._call(key, 0, get)  # type: ignore[no-any-return]
        except NotFoundError:
            return None

    def version(self, key: str) -> object:
        """Return a token that changes when the object is stored again, without retries.

        Raises:
            NotFoundError: The object does not exist.
            StorageError: S3 could not be reached, or refused.
        """
        import obstore

        once = self.bounded(0.0, self._deadline)
        meta = once._call(key, 0, lambda store: obstore.head(store, key))
        return meta["e_tag"], meta["last_modified"]

    def names(self, prefix: str) -> list[str]:
        """Return the keys below a prefix that ends with a slash, without the prefix.

        Raises:
            StorageError: S3 could not be reached, or refused.
        """
        import obstore

        def list_all(store: ObjectStore) -> list[str]:
            pages = obstore.list(store, prefix)
            return [each["path"][len(prefix) :] for page in pages for each in page]

        keys: list[str] = self._call(prefix, 0, list_all)
        return keys

    def stream(self, key: str, start: int, length: int) -> Iterator[Buffer]:
        """Yield ``length`` bytes of an object, from ``start``, in pieces of up to 8 MiB.

        The next pieces are fetched meanwhile.

        Raises:
            NotFoundError: The object does not exist.
            TooShortError: It ends before the first of these bytes.
            StorageError: S3 could not be reached.
        """
        return (piece for _, piece in self.stream_all([(key, start, length)]))

    def stream_all(
        self, ranges: Sequence[tuple[str, int, int]]
    ) -> Generator[tuple[int, Buffer], None, None]:
        """Yield bytes of several objects in sequence, in pieces of up to 8 MiB.

        The next pieces are fetched meanwhile, of later objects too.

        Args:
            ranges: Key, first byte and number of bytes of each range.

        Returns:
            The index of the range, and a piece of it.

        Raises:
            NotFoundError: An object does not exist.
            TooShortError: An object ends before the first byte of its range.
            StorageError: S3 could not be reached.
        """
        if len(ranges) == 1 and ranges[0][2] <= _STREAM_BYTES:
            ((key, start, length),) = ranges
            yield 0, self._read(key, start, start + length)
            return
        from concurrent.futures import ThreadPoolExecutor  # few tasks need it

        wanted = (
            (number, key, at, min(at + _STREAM_BYTES, start + length))
            for number, (key, start, length) in enumerate(ranges)
            for at in range(start, start + length, _STREAM_BYTES)
        )
        coming: list[tuple[int, Future[memoryview]]] = []
        with ThreadPoolExecutor(_PARALLEL_PARTS) as threads:
            try:
                while True:
                    for number, key, at, end in islice(wanted, _PARALLEL_PARTS - len(coming)):
                        coming.append((number, threads.submit(self._read, key, at, end)))
                    if not coming:
                        return
                    number, piece = coming.pop(0)
                    yield number, piece.result()
            except RuntimeError as error:  # a limit of processes, or of memory for stacks
                raise StorageError(
                    f"s3://{self.bucket}: cannot start a thread: {error}"
                ) from error
            finally:
                for _, each in coming:
                    each.cancel()

    def create(self, key: str, pieces: list[Buffer]) -> Created:
        """Store an object with a conditional request (If-None-Match), unless it exists.

        If a response is lost, the request is sent again and finds its own object, or stores it
        again if it was deleted meanwhile.

        Raises:
            StorageError: S3 could not be reached, or refused.
        """
        import obstore

        sent = 0
        began = math.inf

        def send(store: ObjectStore) -> None:
            nonlocal sent, began
            sent, began = sent + 1, time.monotonic()
            obstore.put(store, key, pieces, mode="create", use_multipart=False)

        try:
            self._call(key, sum(map(len, pieces)), send)
        except _ExistsError:
            return Created.BEFORE
        # obstore also repeats requests without reporting it, but not before its first pause.
        is_sure = sent == 1 and time.monotonic() - began < _QUICK_PAUSE_S
        return Created.NOW if is_sure else Created.PERHAPS_AGAIN

    def delete(self, key: str) -> None:
        """Delete an object; a missing object is no error.

        Raises:
            StorageError: S3 could not be reached, or refused.
        """
        import obstore

        with contextlib.suppress(NotFoundError):
            self._call(key, 0, lambda store: obstore.delete(store, key))

    def put(self, key: str, pieces: list[Buffer]) -> None:
        """Store an object with one request, replacing an existing one.

        Raises:
            StorageError: S3 could not be reached, or refused.
        """
        import obstore

        self._call(
            key,
            sum(map(len, pieces)),
            lambda store: obstore.put(store, key, pieces, use_multipart=False),
        )

    def put_large(self, key: Callable[[int], str], pieces: list[Buffer]) -> str:
        """Store bytes in parallel parts, replacing existing ones, and hash them meanwhile.

        Args:
            key: Returns the key of a part. Parts are numbered from 0 and have
                `contract.VALUE_PART_BYTES`.
            pieces: The bytes, in pieces of any size.

        Returns:
            Their SHA-256, hexadecimal.

        Raises:
            StorageError: S3 could not be reached, or refused.
        """
        from concurrent.futures import ThreadPoolExecutor  # few tasks need it

        digest = hashlib.sha256()
        going: list[Future[None]] = []
        parts = envelope.portions(pieces, contract.VALUE_PART_BYTES)
        with ThreadPoolExecutor(_PARALLEL_PARTS) as threads:
            try:
                for number, part in enumerate(parts):
                    for piece in part:
                        digest.update(piece)
                    if len(going) == _PARALLEL_PARTS:
                        going.pop(0).result()
                    going.append(threads.submit(self.put, key(number), part))
                for each in going:
                    each.result()
            except RuntimeError as error:  # a limit of processes, or of memory for stacks
                raise StorageError(
                    f"s3://{self.bucket}/{key(0)}: cannot start a thread: {error}"
                ) from error
            finally:
                for each in going:
                    each.cancel()
        return digest.hexdigest()

    def _call(self, key: str, size: int, request: Callable[[ObjectStore], Any]) -> Any:
        """Retry a request until S3's response is final, within the time limits.

        obstore does not repeat a conditional request whose response was lost. Here a repetition is
        correct, because finding an object in place is as good as having stored it.
        """
        stop = time.monotonic() + self._retry_s
        pause, reason = _FIRST_PAUSE_S, ""
        while True:
            try:
                store = self._store  # another thread may reset it
                if store is None:
                    store = self._store = convert_panic(self._open)
                return call_in_thread(
                    functools.partial(request, store),
                    self._patience_s + size / _SLOWEST_BYTES_S,
                    self._deadline,
                )
            except Exception as error:
                known = _translate(error, f"s3://{self.bucket}/{key}: ", reason)
                if isinstance(known, _FINAL) or not self._sleep(pause, stop):
                    raise known from error
                # Keep the first reason of unanswered attempts, because later ones only repeat that
                # obstore's runtime is missing.
                is_unanswered = isinstance(error, NoResponseError)
                if not is_unanswered or (not reason and error.__cause__ is not None):
                    reason = _brief(error)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            self._store = None

    def _sleep(self, pause_s: float, stop: float) -> bool:
        """Wait before the next attempt; return whether there is time for one."""
        wake = time.monotonic() + pause_s
        while (now := time.monotonic()) < wake:
            if wake > min(stop, self._deadline()):
                return False
            time.sleep(min(POLL_S, wake - now))
        return True


def until_intact(read: Callable[[], T]) -> T:
    """Read an object and check it; repeat both if it is not what its writer stored.

    A proxy can end a response early with the status of a complete one. An object that another
    client has changed is still changed after the pauses.

    Raises:
        envelope.IntegrityError: The object is not what its writer stored.
        TooShortError: It ends before the first of the requested bytes.
    """
    for pause_s in _REREAD_PAUSES_S:
        try:
            return read()
        except (TooShortError, envelope.IntegrityError):
            time.sleep(pause_s)
    return read()


_FINAL = (NotFoundError, TooShortError, DeniedError, UnfitError, _ExistsError, _WholeError)

_CODE = re.compile(r"<Code>([^<]*)</Code>")
_STATUS = re.compile(r"\bstatus code: (\d{3})\b")

_BY_TEXT: dict[str, type[StorageError]] = {
    "<Code>InvalidRange</Code>": TooShortError,  # it begins behind the object's end
    "Requested range was invalid": TooShortError,  # the same, from a folder
    "non-partial response": _WholeError,
    "(code: AccessDenied)": DeniedError,  # of a deletion, in a response with status 200
}


def _translate(error: Exception, where: str, reason: str) -> StorageError:
    """Translate an obstore error.

    Args:
        error: The error.
        where: Prefix of its text.
        reason: Why an earlier attempt failed, for an unanswered one.
    """
    from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError

    text = where + _brief(error)
    if isinstance(error, NoResponseError):
        return StorageError(text if reason in text else f"{text}; before that: {reason}")
    if (known_by_code := _by_code(text)) is not None:
        return known_by_code
    by_class: dict[type[Exception], type[StorageError]] = {
        AlreadyExistsError: _ExistsError,
        FileNotFoundError: NotFoundError,
        PermissionDeniedError: DeniedError,
    }
    for kind, known in by_class.items():
        if isinstance(error, kind):
            return known(text)
    for pattern, known in _BY_TEXT.items():
        if pattern in text:
            return known(text)
    if isinstance(error, (BaseError, OSError)):
        return StorageError(text)
    raise error


def _by_code(text: str) -> StorageError | None:
    """Translate a response by its code and status, not by obstore's class."""
    code, status = _CODE.search(text), _STATUS.search(text)
    if is_unknown(code[1] if code else "", int(status[1]) if status else 0):
        return UnfitError(f"{text}; farcall needs a store that supports this request, as S3 does")
    return StorageError(text) if code and code[1] in _PASSING else None


def _brief(error: Exception) -> str:
    """Return an error's text on one line, for S3 only its code and message.

    The rest may contain the request's session token.
    """
    text = str(error).partition("\n\nDebug source")[0]
    begin, end = text.find("<Code>"), text.find("</Message>")
    if begin >= 0:
        text = text.partition("<")[0] + text[begin : end if end > begin else begin + _MOST_CODE]
    return " ".join(text.split())[:_MOST_TEXT]
