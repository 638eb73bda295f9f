import json
from dataclasses import asdict

import pytest
import yaml

from farcall import SettingsError
from farcall.torchx.batch.request import of_requests
from farcall.torchx.request import write
from tests.unit.torchx.apps import app, role
from tests.unit.torchx.batch.apps import planned


async def written(*roles, metadata=None, **options):
    found = planned(app(*roles, metadata=metadata or {}), **options)
    return of_requests(found, await write(found))


async def test_request_shows_definition_and_submission():
    request = await written()
    assert request.definition["type"] == "container"
    assert request.definition["containerProperties"]["image"] == "alpine:3"
    assert request.job["containerOverrides"]["command"] == ["sh", "-c", "echo hi"]
    assert (request.name, request.queue, request.app_id) == ("hello-1", "q", "q:hello-1")


async def test_json_and_yaml_are_equivalent():
    request = await written(role(num_replicas=2), role("ps"))
    shown = yaml.safe_load(str(request))
    assert json.loads(json.dumps(asdict(request)))["job"] == shown["SubmitJob"] == request.job
    assert shown["RegisterJobDefinition"] == request.definition
    assert "&id" not in str(request)


async def test_roles_do_not_share_containers():
    request = await written(role(), role("ps"))
    one, other = request.definition["nodeProperties"]["nodeRangeProperties"]
    one["container"]["resourceRequirements"].clear()
    assert other["container"]["resourceRequirements"]


async def test_request_does_not_name_run():
    request = await written()
    names = [each["name"] for each in request.job["containerOverrides"]["environment"]]
    assert "FARCALL_RUN" not in names
    assert "FARCALL_WORKFLOW" in names


async def test_timeout_is_optional():
    assert "timeout" not in (await written()).job
    assert (await written(timeout_s=90)).job["timeout"] == {"attemptDurationSeconds": 90}


async def test_tag_propagation_is_optional():
    assert (await written()).job["propagateTags"] is True
    assert (await written(propagate_tags=False)).job["propagateTags"] is False


async def test_overlay_is_shown():
    request = await written(role(metadata={"aws_batch": {"user": "guest"}}), role("ps"))
    one, other = request.definition["nodeProperties"]["nodeRangeProperties"]
    assert one["container"]["user"] == "guest"
    assert "user" not in other["container"]


async def test_queue_arn_is_shortened_in_handle():
    arn = "arn:aws:batch:us-east-1:123456789012:job-queue/gpus"
    request = await written(queue=arn)
    assert request.job["jobQueue"] == arn
    assert request.app_id == "gpus:hello-1"


async def test_settings_follow_edits_of_request(monkeypatch):
    monkeypatch.setenv("FARCALL_ENDPOINT_URL", "http://127.0.0.1:9")
    request = await written(region="eu-west-1", job_role_arn="worker")
    request.queue, request.name = "other", "other-1"
    settings = request.settings()
    assert (settings.region, settings.queue) == ("eu-west-1", "other")
    assert settings.endpoint_url == "http://127.0.0.1:9"
    assert settings.batch_job_role_name == "worker"
    assert settings.batch_execution_role_name == ""
    assert request.app_id == "other:other-1"


async def test_illegal_request_names_role_and_field():
    with pytest.raises(SettingsError, match=r"role trainer: env is 'AWS_BATCH_X'"):
        await written(role(env={"AWS_BATCH_X": "1"}))
    with pytest.raises(SettingsError, match=r"role trainer: mounts"):
        from torchx.specs import VolumeMount

        await written(role(mounts=[VolumeMount("my-volume", "/efs")]))
