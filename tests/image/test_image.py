"""The image itself: its contents and entrypoint.

Starts containers of the built image, because the Dockerfile's result is visible nowhere else.
"""

import importlib.metadata
import io
import json
import tarfile
import time
import uuid
from pathlib import Path

import pytest

from farcall_runtime import contract
from farcall_runtime.contract import ExitCode, Location, run_root

CONTRACT_TESTS = Path(__file__).parents[1] / "contract"
#: pytest and its dependencies, all in pure Python for every version.
PYTEST = ["pytest", "pluggy", "iniconfig", "packaging", "pygments"]
MOST_ADDED_BYTES = 40_000_000
#: A bucket that cannot be reached, because the network `none` has no route to any address.
UNREACHABLE = {
    contract.ENV_BUNDLE: Location("bucket", run_root("prefix", "run"), "bundle").url,
    contract.ENV_DIGEST: "0" * 64,
    contract.ENV_OUTCOME_KEY: "0" * 64,
    contract.ENV_BUCKET_URL: "http://192.0.2.1:9/bucket",  # RFC 5737: never routed
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
}
UNPACK = (
    "import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode='r|').extractall('/tmp')"
)


@pytest.fixture
def python(docker, image):
    """Run Python code in a container of the image; return its stdout."""

    def run(code, *options, stdin=b""):
        command = ["run", "--rm", "--interactive", *options, "--entrypoint", "python3", image]
        return docker(*command, "-c", code, stdin=stdin)

    return run


@pytest.fixture(scope="module")
def config(docker, image):
    return json.loads(docker("image", "inspect", image))[0]["Config"]


def printed_contract(docker, image, *options):
    return json.loads(docker("run", "--rm", *options, image, "--contract"))


def packed(files):
    """Return a tar archive of ``files``, which maps names in the archive to paths."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, path in files.items():
            tar.add(path, name)
    return archive.getvalue()


def distribution_files(name):
    try:
        found = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        return {}  # only other Python versions need it
    inside = [file for file in found if ".." not in file.parts and "__pycache__" not in file.parts]
    return {f"packages/{file}": Path(file.locate()) for file in inside}


def test_image_has_the_client_contract(docker, image):
    assert printed_contract(docker, image) == contract.describe()


@pytest.mark.path
def test_golden_files_are_read_in_image(python):
    files = {f"tests/contract/{path.name}": path for path in CONTRACT_TESTS.glob("*golden.py")}
    files["tests/contract/v1"] = CONTRACT_TESTS / "v1"
    for name in PYTEST:
        files |= distribution_files(name)
    code = f"""{UNPACK}
sys.path[:0] = ["/tmp", "/tmp/packages"]
sys.dont_write_bytecode = True
import farcall_runtime, pytest
assert farcall_runtime.__file__.startswith("/opt/farcall/")
options = ["-p", "no:cacheprovider", "--noconftest", "--import-mode=importlib", "-q"]
code = pytest.main([*options, "/tmp/tests/contract/test_golden.py"])
assert code == 0, code
"""
    output = python(code, stdin=packed(files))
    assert " passed" in output
    assert "skipped" not in output


@pytest.mark.parametrize(
    "options",
    [
        ["--read-only", "--user", "4242", "--cap-drop", "ALL"],
        ["--network", "none", "--security-opt", "no-new-privileges"],
    ],
    ids=" ".join,
)
def test_runtime_starts_with_restrictions(docker, image, options):
    assert printed_contract(docker, image, *options) == contract.describe()


def test_user_has_no_privileges(python):
    code = """import os, sys
print(*os.getresuid(), *os.getresgid(), os.getgroups())
places = ("/", "/etc", "/opt/farcall", "/opt/farcall/farcall_runtime", "/usr", *sys.path[1:])
print([place for place in places if os.access(place, os.W_OK)])
print(next(line for line in open("/proc/self/status") if line.startswith("CapEff")).split()[1])
"""
    ids, writable, capabilities = python(code).splitlines()
    assert ids == "10001 10001 10001 10001 10001 10001 [10001]"
    assert writable == "[]"
    assert int(capabilities, 16) == 0


def test_missing_environment_is_explained(try_docker, image):
    done = try_docker("run", "--rm", image)
    assert done.returncode == ExitCode.BAD_ENVIRONMENT
    assert contract.ENV_BUNDLE in done.stderr
    assert "Traceback" not in done.stderr


def test_image_has_only_runtime_packages(python):
    code = """import importlib.metadata, json
print(json.dumps([d.metadata["Name"].lower() for d in importlib.metadata.distributions()]))"""
    names = set(json.loads(python(code)))
    assert {"cloudpickle", "obstore"} <= names
    unwanted = {"aiobotocore", "aioboto3", "boto3", "botocore", "covalent", "farcall", "pydantic"}
    assert names & unwanted == set()


def test_image_contains_no_credentials(config, python):
    names = {entry.partition("=")[0] for entry in config["Env"]}
    secret = ("AWS", "KEY", "TOKEN", "SECRET", "PASSWORD", "PROXY", "INDEX")
    public = {"GPG_KEY"}  # the public key of Python's sources in Docker's Python images
    assert {name for name in names - public if any(word in name for word in secret)} == set()
    code = """import os
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if folder != "/" or name not in ("proc", "sys", "dev")]
    for name in files:
        print(os.path.join(folder, name))
"""
    files = python(code, "--user", "0").splitlines()
    wanted = (".netrc", ".pypirc", ".docker", ".aws", "pip.conf", "id_rsa", "id_ed25519", ".git")
    assert [name for name in files if any(part in wanted for part in Path(name).parts)] == []


def test_own_layers_are_small(docker, image, base_image):
    ours, base = (
        json.loads(docker("image", "inspect", name))[0]["Size"] for name in (image, base_image)
    )
    assert 0 < ours - base < MOST_ADDED_BYTES


def test_image_contains_bytecode(python):
    """A container that cannot write bytecode would compile at each start."""
    code = """import os, sys
import cloudpickle, obstore.store
import farcall_runtime.__main__, farcall_runtime.storage, farcall_runtime.task
ours = {"cloudpickle", "farcall_runtime", "obstore"}
loaded = {name: module.__dict__.get("__cached__") for name, module in sys.modules.items()}
paths = {name: path for name, path in loaded.items() if path and name.partition(".")[0] in ours}
print(*(name for name, path in paths.items() if os.path.exists(path)))
print(*(name for name, path in paths.items() if not os.path.exists(path)))
"""
    compiled, lacking = python(code).splitlines()
    assert {"cloudpickle", "farcall_runtime.task", "obstore.store"} <= set(compiled.split())
    assert lacking == ""


def wait_for_first_request(try_docker, name):
    """Wait until the container's first process has loaded its S3 client."""
    looks = "import sys; sys.exit('obstore' not in open('/proc/1/maps').read())"
    deadline = time.monotonic() + 120
    while try_docker("exec", name, "python3", "-c", looks).returncode != 0:
        assert time.monotonic() < deadline, "waited too long"


def test_sigterm_ends_waiting_container(docker, try_docker, image):
    name = f"farcall-test-{uuid.uuid4().hex[:12]}"
    environment = [f"--env={key}={value}" for key, value in UNREACHABLE.items()]
    docker("run", "--detach", "--name", name, "--network", "none", *environment, image)
    try:
        wait_for_first_request(try_docker, name)
        docker("stop", "--time", "30", name)
        state = json.loads(docker("container", "inspect", name))[0]["State"]
        log = try_docker("logs", name)
    finally:
        docker("rm", "--force", name)
    assert state["ExitCode"] == ExitCode.TERMINATED, f"{state}\n{log.stdout}{log.stderr}"
