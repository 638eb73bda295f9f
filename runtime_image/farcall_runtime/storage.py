"""Get and put objects of one bucket, with the credentials the job's role gives.

obstore finds credentials as AWS's own SDKs do in a container: ECS and EKS endpoints
(``AWS_CONTAINER_CREDENTIALS_*``), web identity (``AWS_WEB_IDENTITY_TOKEN_FILE``), keys in the
environment, and the EC2 instance's role. It renews them before they expire.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from farcall_runtime import contract
from farcall_runtime.envelope import Buffer

if TYPE_CHECKING:
    from obstore.store import S3Store

SINGLE_PUT_BYTES = 64 * 1024 * 1024
"""Objects up to this size (64 MiB) are stored by one request, larger ones in parallel parts."""

_PART_BYTES = 16 * 1024 * 1024
_MOST_PARTS = 9_000  # S3 allows 10,000
_PARALLEL_PARTS = 4


class StorageError(Exception):
    """The bucket could not be reached, or refused, for as long as it was tried."""


class NotFoundError(StorageError):
    """There is no such object, or no such bucket."""


class DeniedError(StorageError):
    """S3 answered that the job's role may not do this."""


class Storage:
    """One bucket.

    Args:
        bucket: Name of the bucket.
        environment: Where endpoint, region and credentials are looked up.
        retry_s: For how long a request is tried again, in seconds.
    """

    def __init__(
        self, bucket: str, environment: Mapping[str, str] = os.environ, retry_s: float = 300
    ) -> None:
        # Imported here, and so after the fork: the child has no use for it.
        from obstore.store import S3Store

        # What was set for the container goes before what the client uses, which may be an address
        # that only makes sense where the client is.
        endpoint = (
            environment.get("AWS_ENDPOINT_URL_S3")
            or environment.get("AWS_ENDPOINT_URL")
            or environment.get(contract.ENV_ENDPOINT)
        )
        region = (
            environment.get(contract.ENV_REGION)
            or environment.get("AWS_REGION")
            or environment.get("AWS_DEFAULT_REGION")
            or "us-east-1"
        )
        config: dict[str, Any] = {"region": region}
        if endpoint:
            config["endpoint"] = endpoint.rstrip("/")
        self.bucket = bucket
        self._store: S3Store = S3Store(
            bucket,
            config=config,  # type: ignore[arg-type]
            client_options={
                "allow_http": bool(endpoint and endpoint.startswith("http://")),
                "connect_timeout": "10s",
                "timeout": "600s",
            },
            retry_config={
                "max_retries": 30,
                "retry_timeout": timedelta(seconds=retry_s),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=100),
                    "max_backoff": timedelta(seconds=10),
                    "base": 2,
                },
            },
        )

    def read(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes of an object from ``start`` up to, not including, ``end``.

        An object that ends earlier gives what it has.

        Raises:
            NotFoundError: There is no such object.
            StorageError: S3 could not be asked.
        """
        import obstore

        return bytes(
            self._call(key, lambda: obstore.get_range(self._store, key, start=start, end=end))
        )

    def stream(self, key: str, start: int, length: int) -> Iterator[Buffer]:
        """Yield ``length`` bytes of an object, from ``start``, in pieces of up to 64 MiB.

        Raises:
            NotFoundError: There is no such object.
            StorageError: S3 could not be asked.
        """
        for at in range(start, start + length, SINGLE_PUT_BYTES):
            yield memoryview(self.read(key, at, min(at + SINGLE_PUT_BYTES, start + length)))

    def create(self, key: str, pieces: list[Buffer]) -> bool:
        """Store an object by one conditional request (If-None-Match), unless there is one already.

        Returns:
            Whether the object is there now because of this call. A request whose answer was lost
            and that was sent again finds its own object and returns False.

        Raises:
            StorageError: S3 could not be asked, or refused.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            self._call(
                key,
                lambda: obstore.put(self._store, key, pieces, mode="create", use_multipart=False),
            )
        except AlreadyExistsError:
            return False
        return True

    def put(self, key: str, pieces: list[Buffer]) -> None:
        """Store an object, in parallel parts if it is large, over whatever was there.

        Raises:
            StorageError: S3 could not be asked, or refused.
        """
        import obstore

        total = sum(len(piece) for piece in pieces)
        self._call(
            key,
            lambda: obstore.put(
                self._store,
                key,
                pieces,
                use_multipart=total > SINGLE_PUT_BYTES,
                chunk_size=max(_PART_BYTES, total // _MOST_PARTS),
                max_concurrency=_PARALLEL_PARTS,
            ),
        )

    def _call(self, key: str, request: Callable[[], Any]) -> Any:
        from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError

        try:
            return request()
        except AlreadyExistsError:
            raise
        except FileNotFoundError as error:
            raise NotFoundError(f"s3://{self.bucket}/{key}: {_first_line(error)}") from error
        except PermissionDeniedError as error:
            raise DeniedError(f"s3://{self.bucket}/{key}: {_first_line(error)}") from error
        except (BaseError, OSError) as error:
            raise StorageError(f"s3://{self.bucket}/{key}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
