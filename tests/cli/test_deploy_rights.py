"""``farcall deploy`` with the policies of docs/iam.

Starts an empty local AWS emulator that enforces IAM. Slow, because it deploys a stack and runs
every command on it.
"""

import json
import os
import subprocess
import sys

import pytest

from tests import emulators
from tests.cli.account import NO_PACKAGES, Account
from tests.support.iam import FOLDER, VALUES, policy

pytestmark = pytest.mark.slow

SCRIPT = """\
from farcall import BatchPoolExecutor


def simulate(x):
    print("simulating", x)
    return x * x


def fail(x):
    raise ValueError(x)


with BatchPoolExecutor(vcpu=1, memory=1, retry_attempts=1) as pool:
    print(pool.submit(simulate, 3).result(), sum(pool.map(simulate, range(10))))
    print(repr(pool.submit(fail, 4).exception()))
"""


@pytest.fixture(scope="module")
def whole():
    with emulators.start(empty=True, enforce_iam=True) as aws:
        yield Account(aws)


def client_policy(outputs):
    """Return the client policy of docs/iam, filled with a stack's outputs."""
    values = {
        **VALUES,
        "BUCKET": outputs["Bucket"],
        "QUEUE": outputs["SpotQueue"],
        "LOG-GROUP": outputs["LogGroup"],
        "JOB-ROLE": outputs["JobRole"],
        "EXECUTION-ROLE": outputs["ExecutionRole"],
    }
    text = (FOLDER / "client.json").read_text()
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return json.loads(text)


@pytest.mark.path
async def test_documented_policies_suffice(account, farcall_command, tmp_path):
    deployer = account.user("deployer", policy("deployer"))
    done = await farcall_command("deploy", "--yes", "--compute", "spot", **deployer)
    assert 0 == done.returncode, done.stderr
    more = ("--compute", "ec2", "--compute", "spot", "--max-vcpus", 8, "--tags", "team=a")
    done = await farcall_command("deploy", "--yes", *more, **deployer)
    assert 0 == done.returncode, done.stderr

    (tmp_path / "script.py").write_text(SCRIPT)
    researcher = account.user("researcher", client_policy(account.outputs()))
    ran = subprocess.run(  # noqa: ASYNC221
        [sys.executable, "script.py"],
        env={**os.environ, **researcher, **NO_PACKAGES, "FARCALL_QUEUE": "farcall-spot"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "9 285\nValueError(4)\n" == ran.stdout, ran.stderr

    done = await farcall_command("doctor", **deployer, **NO_PACKAGES)
    assert "farcall, UPDATE_COMPLETE" in done.stdout
    done = await farcall_command("destroy", "--yes", "--empty-bucket", **deployer)
    assert (0, {}) == (done.returncode, account.aws.resources()), done.stderr
