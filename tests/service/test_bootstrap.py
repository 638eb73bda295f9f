"""Bootstrap program of a job that runs in a stock image.

Starts it as a process next to HTTP servers that act as credential endpoints, because it runs
before any code of farcall is installed.
"""

import http.server
import io
import json
import platform
import subprocess
import sys
import threading
import zipfile
from hashlib import sha256

import boto3
import pytest
from moto.server import ThreadedMotoServer

from farcall.backends import bootstrap
from farcall.backends.base import Runtime
from farcall.packages.target import Target
from tests import emulators
from tests.support.iam import JOB_ROLE, VALUES, Enforced
from tests.support.proxy import Proxy

BUCKET = VALUES["BUCKET"]
HERE = Target("arm64" if platform.machine() == "aarch64" else "x86_64")
_PROGRAM = """import os, sys
main, leave = int, sys.exit
print('started', os.getcwd(), os.environ['HOME'], *sys.path[:2])
"""


def zipped(text):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("farcall_runtime/__init__.py", "")
        archive.writestr("farcall_runtime/__main__.py", text)
    return data.getvalue()


class Metadata(http.server.BaseHTTPRequestHandler):
    """Serves credentials: as ECS at /keys, as an EC2 instance below /latest."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_): ...

    def do_PUT(self):
        is_right = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        self.reply(200 if is_right else 400, b"a token")

    def do_GET(self):
        self.server.asked.append(self.path)
        if self.server.failures:
            self.server.failures -= 1
            self.reply(503, b"")
        elif self.path == "/keys" and self.headers.get("Authorization") == "a secret":
            self.reply(200, json.dumps(self.server.keys()).encode())
        elif self.headers.get("X-aws-ec2-metadata-token") != "a token":
            self.reply(401, b"")
        elif self.path.endswith("/security-credentials/"):
            self.reply(200, b"the-role\nanother")
        elif self.path.endswith("/security-credentials/the-role"):
            self.reply(200, json.dumps(self.server.keys()).encode())
        else:
            self.reply(404, b"")

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Redirect(http.server.BaseHTTPRequestHandler):
    """Redirects every request."""

    def log_message(self, *_): ...

    def do_GET(self):
        self.send_response(307)
        self.send_header("Location", self.server.to)
        self.send_header("Content-Length", "0")
        self.end_headers()


def serve(handler, **what):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    vars(server).update(what)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


@pytest.fixture(scope="module")
def account():
    with emulators.start(enforce_iam=True) as aws:
        yield Enforced(aws)


@pytest.fixture
def stored(account):
    """A runtime in the bucket that prints that it was started."""
    data = zipped(_PROGRAM)
    key = f"farcall/v1/runtime/{sha256(data).hexdigest()}"
    account.restore()
    account.root("s3").put_object(Bucket=BUCKET, Key=key, Body=data)
    url = f"{account.aws.endpoint_url}/{BUCKET}"
    return Runtime(url, BUCKET, "us-east-1", key, *HERE)


@pytest.fixture
def role_keys(account):
    """Keys of the job role, with a session token."""

    def assume():
        arn = f"arn:aws:iam::{VALUES['ACCOUNT']}:role/{JOB_ROLE}"
        found = account.root("sts").assume_role(RoleArn=arn, RoleSessionName="task")["Credentials"]
        return {
            "AccessKeyId": found["AccessKeyId"],
            "SecretAccessKey": found["SecretAccessKey"],
            "Token": found["SessionToken"],
        }

    return assume


@pytest.fixture
def metadata(role_keys):
    server = serve(Metadata, keys=role_keys, failures=0, asked=[])
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def environment_keys(role_keys):
    keys = role_keys()
    return {
        "AWS_ACCESS_KEY_ID": keys["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": keys["SecretAccessKey"],
        "AWS_SESSION_TOKEN": keys["Token"],
    }


def run(runtime, environment, tmp_path, *, before=""):
    """Run the bootstrap program without any installed packages on its path."""
    _, *options, program, url, name, region, machine, python = bootstrap.command(runtime)
    return subprocess.run(
        [sys.executable, *options, before + program, url, name, region, machine, python],
        env={
            "TMPDIR": str(tmp_path),
            "HOME": "/nowhere",
            "PATH": "/usr/bin:/bin",
            "AWS_EC2_METADATA_DISABLED": "true",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def refused(done, code, *words):
    assert done.returncode == code, done.stderr
    assert "started" not in done.stdout
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr


# --- credentials ------------------------------------------------------------------------------


def test_environment_credentials_are_used(stored, environment_keys, tmp_path):
    done = run(stored, environment_keys, tmp_path)
    assert done.stdout.startswith(f"started {tmp_path} /nowhere"), done.stderr
    assert (done.returncode, done.stderr) == (0, "")


def test_failing_container_endpoint_is_retried(stored, metadata, tmp_path):
    metadata.failures = 2
    (tmp_path / "token").write_text("a secret\n")
    url = f"http://127.0.0.1:{metadata.server_port}/keys"
    environment = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": url,
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
        # Requests for credentials must not use the proxy.
        "http_proxy": "http://127.0.0.1:9",
    }
    done = run(stored, environment, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("trying again") == 2


def test_web_identity_credentials_are_used(stored, tmp_path):
    # The local AWS emulator refuses unsigned requests.
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    try:
        s3 = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
        )
        s3.create_bucket(Bucket="identities")
        data = zipped(_PROGRAM)
        key = sha256(data).hexdigest()
        s3.put_object(Bucket="identities", Key=key, Body=data)
        (tmp_path / "token").write_text("eyJ.a.token")
        environment = {
            "AWS_ENDPOINT_URL": url,
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
            "AWS_ROLE_ARN": f"arn:aws:iam::{VALUES['ACCOUNT']}:role/{JOB_ROLE}",
        }
        done = run(stored._replace(bucket="identities", key=key), environment, tmp_path)
        assert done.returncode == 0, done.stderr
    finally:
        server.stop()


def test_instance_credentials_are_used(stored, metadata, tmp_path):
    environment = {
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{metadata.server_port}/",
        "AWS_EC2_METADATA_DISABLED": "false",
    }
    done = run(stored, environment, tmp_path)
    assert done.returncode == 0, done.stderr


def test_remote_endpoint_requires_tls(stored, tmp_path):
    environment = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://192.0.2.1/keys"}
    refused(run(stored, environment, tmp_path), 64, "192.0.2.1 without TLS")


def test_missing_role_is_reported(stored, tmp_path):
    refused(run(stored, {}, tmp_path), 64, f"s3://{BUCKET}/{stored.key}", "has no role")


# --- download ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-1] + b"x", lambda data: data[:-20]],
    ids=["tampered with", "cut off"],
)
def test_changed_runtime_is_not_run(stored, account, environment_keys, tmp_path, change):
    s3 = account.root("s3")
    data = s3.get_object(Bucket=BUCKET, Key=stored.key)["Body"].read()
    s3.put_object(Bucket=BUCKET, Key=stored.key, Body=change(data))
    refused(run(stored, environment_keys, tmp_path), 66, stored.key, "it was not run")
    assert list(tmp_path.iterdir()) == []


def test_missing_and_denied_runtime_are_distinguished(stored, account, environment_keys, tmp_path):
    account.root("s3").delete_object(Bucket=BUCKET, Key=stored.key)
    refused(run(stored, environment_keys, tmp_path), 65, stored.key, "NoSuchKey")
    account.take_away("job-role", "s3:GetObject", "/v1/runtime/")
    done = run(stored, environment_keys, tmp_path)
    refused(done, 73, stored.key, "AccessDenied")


@pytest.mark.parametrize("other", [("riscv64", HERE.python), (HERE.architecture, "3.99")])
def test_other_machine_is_rejected_before_requests(stored, tmp_path, other):
    done = run(stored._replace(architecture=other[0], python=other[1]), {}, tmp_path)
    refused(done, 67, other[0] if other[0] == "riscv64" else "3.99", HERE.machine)


def test_redirect_is_not_followed(stored, metadata, environment_keys, tmp_path):
    server = serve(Redirect, to=f"http://127.0.0.1:{metadata.server_port}/stolen")
    elsewhere = stored._replace(bucket_url=f"http://127.0.0.1:{server.server_port}")
    refused(run(elsewhere, environment_keys, tmp_path), 73, "307")
    assert metadata.asked == []
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("fault", ["error", "lost"])
def test_transient_fault_is_retried(stored, account, environment_keys, tmp_path, fault):
    with Proxy(account.aws.endpoint_url) as proxy:
        left = [fault, fault]
        proxy.rule = lambda _: left.pop() if left else ""
        through = stored._replace(bucket_url=f"{proxy.url}/{BUCKET}")
        done = run(through, environment_keys, tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("trying again") == 2


@pytest.mark.parametrize("fault", ["expired", "denied"])
def test_denial_is_retried_with_new_credentials(stored, account, metadata, tmp_path, fault):
    with Proxy(account.aws.endpoint_url) as proxy:
        left = [fault]
        proxy.rule = lambda _: left.pop() if left else ""
        through = stored._replace(bucket_url=f"{proxy.url}/{BUCKET}")
        environment = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": (
                f"http://127.0.0.1:{metadata.server_port}/keys"
            ),
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": "a secret",
        }
        assert run(through, environment, tmp_path).returncode == 0
        assert metadata.asked == ["/keys", "/keys"]
