"""AWS API calls of the emulated CloudFormation: with the caller's keys, or its service role's.

CloudFormation makes what a template describes by the services' own API, with the permissions of
whoever asked for the stack. So does this one, on its own port: each call is signed, checked and
answered as if it had come from outside.

Source:
    https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/control-access-with-iam.html
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from botocore.model import ListShape, MapShape, Shape, StructureShape
from botocore.session import Session

from farcall_local import names
from farcall_local.services.signatures import AccessKey

#: Seconds until a call counts as lost.
TIMEOUT_S = 60
#: How often a call of Batch is made again that came too fast or hit a fault, and the first wait.
TRIES, WAIT_S = 7, 0.1


class RefusedPropertyError(Exception):
    """A resource cannot be made with these properties; the message says which."""


class Calls:
    """Makes calls. For one thread.

    Args:
        endpoint_url: Where.
        key: With which they are signed.
    """

    def __init__(self, endpoint_url: str, key: AccessKey) -> None:
        self._endpoint_url = endpoint_url
        self._credentials = Credentials(*key)
        self._clients: dict[str, Any] = {}
        self._session = Session()
        for name in ("config_file", "credentials_file"):
            self._session.set_config_variable(name, "")  # those of the user's are for AWS
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def client(self, service: str) -> Any:
        """Return botocore's client of a service."""
        if service not in self._clients:
            self._clients[service] = self._session.create_client(
                service,
                endpoint_url=self._endpoint_url,
                region_name=names.REGION,
                aws_access_key_id=self._credentials.access_key,
                aws_secret_access_key=self._credentials.secret_key,
                aws_session_token=self._credentials.token,
                config=Config(
                    connect_timeout=TIMEOUT_S,
                    read_timeout=TIMEOUT_S,
                    proxies={},
                    s3={"addressing_style": "path"},
                    use_dualstack_endpoint=False,
                    use_fips_endpoint=False,
                ),
            )
        return self._clients[service]

    def input(self, service: str, operation: str, properties: Mapping[str, Any]) -> dict[str, Any]:
        """Return properties as the input of an operation: its members, integers and booleans.

        Args:
            service: Such as ``ec2``.
            operation: Such as ``CreateLaunchTemplate``.
            properties: As a template has them, with upper-case names and numbers as text.

        Raises:
            RefusedPropertyError: There is one that the operation does not know.
        """
        shape = self.client(service).meta.service_model.operation_model(operation).input_shape
        fitted: dict[str, Any] = fit(shape, dict(properties))
        return fitted

    def batch(self, operation: str, document: Mapping[str, Any]) -> Any:
        """Make a call of Batch, also with members that botocore does not know yet.

        Raises:
            ClientError: It is refused.
        """
        for number in range(TRIES):
            try:
                return self._batch(operation, document)
            except ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                if status not in (429, 500):
                    raise
            time.sleep(WAIT_S * 2**number)
        return self._batch(operation, document)

    def _batch(self, operation: str, document: Mapping[str, Any]) -> Any:
        url = f"{self._endpoint_url}/v1/{operation.lower()}"
        body = json.dumps(document).encode()
        headers = {"Content-Type": "application/json"}
        signed = AWSRequest("POST", url, data=body, headers=headers)
        SigV4Auth(self._credentials, "batch", names.REGION).add_auth(signed)
        request = urllib.request.Request(url, body, dict(signed.headers))
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                details = {
                    "Code": error.headers["x-amzn-ErrorType"],
                    "Message": json.load(error)["message"],
                }
            metadata = {"HTTPStatusCode": error.code}
            reply = {"Error": details, "ResponseMetadata": metadata}
            raise ClientError(reply, operation) from None


def fit(shape: Shape, value: Any, path: str = "#") -> Any:
    """Return a value as a shape of AWS's models has it.

    Names are found whatever their case, for CloudFormation's begin with a capital.

    Raises:
        RefusedPropertyError: It does not fit.
    """
    if isinstance(shape, StructureShape):
        return _structure(shape, value, path)
    if isinstance(shape, ListShape):
        items = value if isinstance(value, list) else [value]
        return [fit(shape.member, each, path) for each in items]
    if isinstance(shape, MapShape):
        return {key: fit(shape.value, each, f"{path}/{key}") for key, each in value.items()}
    return _scalar(shape.type_name, value, path)


def _structure(shape: StructureShape, value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RefusedPropertyError(f"{path}: expected type: JSONObject, found: {value!r}")
    members = {name.lower(): name for name in shape.members}
    fitted = {}
    for key, each in value.items():
        if key.lower() not in members:
            raise RefusedPropertyError(f"{path}: extraneous key [{key}] is not permitted")
        name = members[key.lower()]
        fitted[name] = fit(shape.members[name], each, f"{path}/{key}")
    return fitted


def _scalar(kind: str, value: Any, path: str) -> Any:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if kind in ("integer", "long"):
        try:
            return int(text)
        except ValueError:
            raise RefusedPropertyError(f"{path}: expected type: Number, found: {text}") from None
    if kind == "boolean":
        if text.lower() not in ("true", "false"):
            raise RefusedPropertyError(f"{path}: expected type: Boolean, found: {text}")
        return text.lower() == "true"
    if isinstance(value, (dict, list)):
        raise RefusedPropertyError(f"{path}: expected type: String, found: {value!r}")
    return text
