"""Bootstrap program: the first code of a container without farcall's runtime.

It downloads farcall's runtime from the bucket with a signed request, verifies its SHA-256, unpacks
it, and runs the package ``farcall_runtime``. It needs only the standard library of Python 3.11.

The job definition contains it as ``bootstrap_program.min.txt``, which ``make bootstrap`` generates
from this file without comments and long names, because the size of a command is limited. No
f-string here contains quotes, because the generated text would differ from Python 3.12 on.

Arguments: URL of the bucket, ``bucket/key``, region, and the processor and Python's minor version
for which the runtime was built. URL and key are percent-encoded, as in signatures. The key ends
with the SHA-256 of the object.

Sources:
    https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
    https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html
    https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html
    https://docs.aws.amazon.com/sdkref/latest/guide/feature-imds-credentials.html
    https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html
"""

import hashlib
import hmac
import io
import json
import os
import re
import signal
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from http.client import HTTPException
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

bucket_url, name, region, *made_for = sys.argv[1:]

# Sources of credentials via plain HTTP, which are never called through a proxy.
NEAR = "127.0.0.1 localhost ::1 169.254.170.2 169.254.170.23 fd00:ec2::23 169.254.169.254".split()


def variable(name, /):
    """Return the value of an AWS variable."""
    return os.environ.get("AWS_" + name)


def say(text, /):
    """Write a line to the job's log."""
    print(f"farcall: s3://{name}: {text}", file=sys.stderr)


def leave(code, text, /):
    """Exit with a code of farcall_runtime.contract.ExitCode."""
    say(text)
    sys.exit(code)


class NoRedirect(HTTPRedirectHandler):
    """Handler that follows no redirect: another host would receive the signature."""

    def redirect_request(self, *_):
        """Return None, so that the redirect becomes an error."""


def ask(url, headers={}, data=None, method=None, tries=8, /):
    """Return the body of a response; retry if the server fails or is busy.

    Raises:
        OSError: There was no response. Its number is the HTTP status, or 0 without one.
    """
    pause = 0.2
    is_near = urlsplit(url).hostname in NEAR
    opener = build_opener(NoRedirect, *[ProxyHandler({})] * is_near)
    while 1:
        try:
            request = Request(url, data, headers, None, False, method)
            return opener.open(request, None, 5 if is_near else 60).read()
        except (OSError, HTTPException) as error:  # HTTPException if the response is truncated
            status = getattr(error, "code", 0)
            said = repr(error)
            with suppress(AttributeError, OSError, HTTPException):  # none, or truncated
                # Only S3's code and message, because the rest of the response repeats parts of the
                # request. As a list's text, it contains no raw control characters.
                text = str(error.read(4096))  # type: ignore[union-attr]
                said += str(re.findall("<(?:Code|Message)>([^<]*)", text))
            tries -= 1
            if not tries or (0 < status < 500 and status != 429):
                raise OSError(status, said)
            say(said + ", trying again")
            time.sleep(pause)
            pause *= 2


def find_credentials():
    """Return key, secret and session token, found in the order of AWS's SDKs."""
    uri = variable("CONTAINER_CREDENTIALS_FULL_URI")
    path = variable("CONTAINER_CREDENTIALS_RELATIVE_URI")
    file = variable("WEB_IDENTITY_TOKEN_FILE")
    key = variable("ACCESS_KEY_ID")
    if key:
        return key, variable("SECRET_ACCESS_KEY"), variable("SESSION_TOKEN")
    if path or uri:
        if path:
            uri = "http://169.254.170.2" + path
        parts = urlsplit(uri)
        if parts.scheme != "https" and parts.hostname not in NEAR:
            raise ValueError(f"{parts.hostname} without TLS")
        file = variable("CONTAINER_AUTHORIZATION_TOKEN_FILE")
        token = open(file).read().strip() if file else variable("CONTAINER_AUTHORIZATION_TOKEN")
        credentials = json.loads(ask(uri, {"Authorization": token} if token else {}))
    elif file:
        # Use the STS of the same partition: its host ends like the bucket's.
        ending = [*urlsplit(bucket_url).netloc.split(f".{region}.")[1:], "amazonaws.com"][0]
        form = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": variable("ROLE_ARN"),
            "RoleSessionName": "farcall",
            "WebIdentityToken": open(file).read(),
        }
        body = ask(
            variable("ENDPOINT_URL_STS")
            or variable("ENDPOINT_URL")
            or f"https://sts.{region}.{ending}",
            {},
            urlencode(form).encode(),
        )
        credentials = dict(re.findall(r"<(\w+)>([^<]+)", body.decode()))
        credentials["Token"] = credentials["SessionToken"]
    else:
        if variable("EC2_METADATA_DISABLED") == "true":
            raise ValueError("the job has no role")
        url = variable("EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
        url = url.rstrip("/") + "/latest/"
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
        token = ask(url + "api/token", headers, None, "PUT", 3)
        headers = {"X-aws-ec2-metadata-token": token.decode()}
        url += "meta-data/iam/security-credentials/"
        credentials = json.loads(ask(url + ask(url, headers).decode().split()[0], headers))
    return credentials["AccessKeyId"], credentials["SecretAccessKey"], credentials["Token"]


def fetch():
    """Return the object, requested with the current credentials of the job's role."""
    try:
        access, secret, token = find_credentials()
    except (OSError, LookupError, ValueError) as error:
        leave(64, f"no credentials: {error!r}")
    # The container's variables take precedence over the client's URL, as in the runtime.
    endpoint = variable("ENDPOINT_URL_S3") or variable("ENDPOINT_URL")
    url = bucket_url + name[name.find("/") :]
    if endpoint:
        url = endpoint.rstrip("/") + "/" + name
    parts = urlsplit(url)
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"{at[:8]}/{region}/s3/aws4_request"
    payload = "UNSIGNED-PAYLOAD"
    headers = {"host": parts.netloc, "x-amz-content-sha256": payload, "x-amz-date": at}
    if token:
        headers["x-amz-security-token"] = token
    signed = ";".join(headers)  # in sorted order
    lines = [f"{each}:{headers[each]}" for each in headers]
    text = "\n".join(["GET", parts.path, "", *lines, "", signed, payload])
    text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(text.encode()).hexdigest()}"
    key = ("AWS4" + secret).encode()
    for part in [*scope.split("/"), text]:
        key = hmac.new(key, part.encode(), "sha256").digest()
    key = key.hex()
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={access}/{scope},SignedHeaders={signed},Signature={key}"
    )
    return ask(url, headers)


# The first process of a container receives only signals for which it has a handler.
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
here = [os.uname().machine, "%d.%d" % sys.version_info[:2]]
if here != made_for or "CS_GNU_LIBC_VERSION" not in os.confstr_names:
    leave(67, f"it is for {made_for} with glibc, and here is {sys.platform} {here}")
try:
    try:
        data = fetch()
    except OSError as error:
        if error.errno not in (400, 401, 403):
            raise
        data = fetch()  # the credentials may have expired just before
except OSError as error:
    leave(65 if error.errno == 404 else 73, error.strerror)
if hashlib.sha256(data).hexdigest() != name[-64:]:
    leave(66, "it is not what was stored; it was not run")
try:
    folder = tempfile.mkdtemp("", "farcall-")
    zipfile.ZipFile(io.BytesIO(data)).extractall(folder)
    os.chdir(tempfile.gettempdir())
except OSError as error:
    leave(75 if error.errno == 28 else 74, f"it cannot be unpacked: {error}")  # 28 is ENOSPC
os.environ["PYTHONPATH"] = ":".join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
# Not with -m, which would import modules named like the standard library's from the working
# directory.
run = "import sys;del sys.path[0];from farcall_runtime.__main__ import*;leave(main())"
os.execv(sys.executable, [sys.executable, "-c", run])
