from pathlib import Path

import pytest
import python_minifier

from farcall import Settings
from farcall.backends import bootstrap
from farcall.backends.base import JobSpec, Runtime
from farcall.backends.batch.describe import from_describe
from farcall.backends.batch.documents import definition
from farcall.backends.batch.failure_reasons import failure_reason
from farcall.model import errors

SHA256 = "0123456789abcdef" * 4
RUNTIME = Runtime(
    "https://some-teams-bucket-for-jobs.s3.ap-southeast-2.amazonaws.com",
    "some-teams-bucket-for-jobs",
    "ap-southeast-2",
    f"some-team/some project+/v1/runtime/{SHA256}",
    "arm64",
    "3.11",
)
LARGEST_COMMAND = 4096


def document(settings=None, runtime=RUNTIME):
    made = definition(
        JobSpec("simulate-1", 1, {}, settings or Settings(), runtime=runtime),
        image="stock:1",
        region="ap-southeast-2",
        job_role="",
        execution_role="",
    )
    return made.name, made.document["containerProperties"]


def test_program_matches_minified_source():
    source = Path(bootstrap.__file__).with_name("bootstrap_program.py").read_text()
    made = python_minifier.minify(source, remove_literal_statements=True, rename_globals=True)
    assert made == bootstrap.program(), "make bootstrap"


def test_command_fits_batch_limits():
    command = bootstrap.command(RUNTIME)
    assert sum(map(len, command)) <= LARGEST_COMMAND
    assert all(command)
    assert "Ref::" not in "".join(command)


def test_command_names_runtime_and_platform():
    *head, _, url, name, region, machine, python = bootstrap.command(RUNTIME)
    assert ["python3", "-I", "-S", "-c"] == head
    assert (RUNTIME.bucket_url, RUNTIME.region, "aarch64", "3.11") == (
        url,
        region,
        machine,
        python,
    )
    # encoded as in the signature
    assert name == (f"some-teams-bucket-for-jobs/some-team/some%20project%2B/v1/runtime/{SHA256}")
    assert bootstrap.fetched(bootstrap.command(RUNTIME)) == f"{RUNTIME.bucket}/{RUNTIME.key}"


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("python3", "-m", "train"),
        ("python3", "-I", "-S", "-c", "print()", "a", "b", "c", "d", "3.11"),
        ("python3", "-I", "-S", "-c", "farcall_runtime"),
    ],
)
def test_other_commands_are_not_bootstrap(command):
    assert bootstrap.fetched(command) == ""


def test_definition_has_user_home_and_command():
    """The definition's name depends on the runtime."""
    name, container = document()
    assert container["user"] == "10001:10001"
    assert {"name": "HOME", "value": "/tmp"} in container["environment"]
    assert container["command"] == bootstrap.command(RUNTIME)
    assert document() == (name, container)
    other = RUNTIME._replace(key=RUNTIME.key.replace("0", "1"))
    assert document(runtime=other)[0] != name
    assert "command" not in document(runtime=None)[1]


def test_job_definition_extra_is_applied_last():
    extra = {
        "containerProperties": {
            "user": "1:1",
            "environment": [{"name": "TMPDIR", "value": "/data"}],
            "readonlyRootFilesystem": True,
        }
    }
    _, container = document(Settings(job_definition_extra=extra))
    assert container["user"] == "1:1"
    assert [each["name"] for each in container["environment"]] == ["HOME", "LOGNAME", "TMPDIR"]


# --- jobs of the stock image ------------------------------------------------------------------


def described(reason=""):
    container = {"image": "stock:1", "command": bootstrap.command(RUNTIME), "reason": reason}
    return from_describe(
        {"jobId": "1", "jobName": "n", "status": "FAILED", "container": container}
    )


def test_job_shows_runtime_instead_of_command():
    job = described()
    assert job.command == ()
    assert job.runtime == f"{RUNTIME.bucket}/{RUNTIME.key}"


def test_pull_error_names_both_image_options():
    found = failure_reason(described(reason="CannotPullContainerError: manifest unknown"))
    assert found.kind is errors.ImageError
    assert "stock:1" in found.remedy
    assert "stock_image_uri" in found.remedy
    assert "image" in found.remedy
