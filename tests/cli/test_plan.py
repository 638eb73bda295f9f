"""``farcall run --dry-run``: the requests of ``farcall run``, none of them sent.

Starts the local AWS emulator, because the plan is compared with a real run.
"""

from __future__ import annotations

import json
import py_compile
from typing import Any

import boto3
import pytest

from tests.support.proxy import Proxy

WORK = """
from farcall import BatchExecutor

executor = BatchExecutor(vcpu=3, tags={"owner": "me"})

@executor.task
def twice(x: int):
    return 2 * x
"""


@pytest.fixture(autouse=True)
def _work(aws, tmp_path, monkeypatch):
    (tmp_path / "work.py").write_text(WORK)
    # Compile the module once: a process that compiles it shares other equal strings than a
    # process that loads the cached bytecode, so their pickles would differ.
    py_compile.compile(str(tmp_path / "work.py"), doraise=True)


async def test_dry_run_shows_exact_requests(farcall_command, installed_command, aws):
    extra = 'job_definition_extra={"tags": {"of": "plan"}}'
    words = ["--memory", "1", "-o", extra, "work:twice", 4]
    with Proxy(aws.endpoint_url) as proxy:
        done = await installed_command("run", "--dry-run", *words, AWS_ENDPOINT_URL=proxy.url)
    planned = json.loads(done.stdout)
    of_s3 = {name.partition(" ")[0] for name in proxy.of("s3")}
    assert {"GET"} == of_s3
    assert not {"submitjob", "registerjobdefinition"} & set(proxy.of("batch"))
    assert proxy.counts["batch describejobdefinitions"]
    assert planned["definition"]["registered"] is False

    job_id = (await installed_command("run", "--detach", *words)).stdout.strip()
    again = json.loads((await farcall_command("run", "--dry-run", *words)).stdout)

    batch = boto3.client("batch")
    (job,) = batch.describe_jobs(jobs=[job_id])["jobs"]
    assert again["definition"]["registered"] is True
    assert again["SubmitJob"]["jobDefinition"] == job["jobDefinition"]
    found = batch.describe_job_definitions(jobDefinitions=[job["jobDefinition"]])
    (definition,), register = found["jobDefinitions"], planned["RegisterJobDefinition"]
    assert definition["jobDefinitionName"] == register["jobDefinitionName"]
    assert {"of": "plan"} == definition["tags"] == register["tags"]
    for name, value in register["containerProperties"].items():
        assert value == definition["containerProperties"][name]
    submit = planned["SubmitJob"]
    assert {"owner": "me"} == submit["tags"] == job["tags"]
    asked = submit["containerOverrides"]
    assert {"type": "VCPU", "value": "3"} in asked["resourceRequirements"]  # set by the task
    assert asked["resourceRequirements"] == job["container"]["resourceRequirements"]
    assert submit["timeout"] == job["timeout"]
    assert submit["retryStrategy"]["attempts"] == job["retryStrategy"]["attempts"]
    given = {e["name"]: e["value"] for e in asked["environment"]}
    carried = {e["name"] for e in job["container"]["environment"]}
    assert carried == given.keys()
    assert "secret" in given["FARCALL_OUTCOME_KEY"]


async def test_resource_options_are_in_requests(farcall_command):
    words = ["--gpus", 2, "--queue", "big", "--packages", "auto"]
    done = await farcall_command("run", "--dry-run", "--offline", *words, "work:twice", 4)
    submit = json.loads(done.stdout)["SubmitJob"]
    assert submit["jobQueue"] == "big"
    assert {"type": "GPU", "value": "2"} in submit["containerOverrides"]["resourceRequirements"]


@pytest.mark.slow
async def test_dry_run_lists_packages_without_upload(installed_command, aws, index, tmp_path):
    index.add("wanted", requires=["needed"])
    index.add("needed", "3.0")
    (tmp_path / "work.py").write_text("def nothing():\n    pass\n")
    place = {"FARCALL_PREFIX": "planned"}
    words = ["-o", 'packages=["wanted"]', "work:nothing"]

    async def plan(*options: str) -> dict[str, Any]:
        done = await installed_command("run", "--dry-run", *options, *words, **place)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["packages"]
        return found

    with Proxy(aws.endpoint_url) as proxy:
        place["AWS_ENDPOINT_URL"] = proxy.url
        planned = await plan()
    assert not [name for name in proxy.counts if name.startswith("s3 PUT")]
    shown = planned["distributions"]
    assert [(each["name"], each["version"]) for each in shown] == [
        ("needed", "3.0"),
        ("wanted", "1.0"),
    ]
    assert [each["is_stored"] for each in shown] == [False, False]
    assert planned["to_send_bytes"] == planned["size_bytes"] > 0

    del place["AWS_ENDPOINT_URL"]
    assert (await installed_command("run", *words, **place)).returncode == 0
    planned = await plan()
    assert [each["is_stored"] for each in planned["distributions"]] == [True, True]
    assert planned["to_send_bytes"] == 0

    assert "to_send_bytes" not in await plan("--offline")
