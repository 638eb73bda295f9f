import json

import pytest

from farcall import SettingsError
from farcall.torchx.batch.options import BatchOptions


def refused(**options):
    with pytest.raises(SettingsError) as caught:
        BatchOptions(**{"queue": "q", **options}).settings()
    return str(caught.value)


def test_unset_roles_and_logs_are_empty():
    settings = BatchOptions("q").settings()
    assert settings.queue == "q"
    assert settings.batch_job_role_name == settings.batch_execution_role_name == ""
    assert settings.batch_job_log_group_name == ""


def test_farcall_settings_are_the_defaults(monkeypatch):
    monkeypatch.setenv("FARCALL_REGION", "eu-west-1")
    monkeypatch.setenv("FARCALL_BATCH_JOB_ROLE_NAME", "worker")
    monkeypatch.setenv("FARCALL_BATCH_JOB_LOG_GROUP_NAME", "logs")
    monkeypatch.setenv("FARCALL_S3_BUCKET_NAME", "mine")
    monkeypatch.setenv("FARCALL_TAGS", '{"team": "blue"}')
    settings = BatchOptions("q").settings()
    assert (settings.region, settings.batch_job_role_name) == ("eu-west-1", "worker")
    assert (settings.batch_job_log_group_name, settings.s3_bucket_name) == ("logs", "mine")
    assert settings.tags == {"team": "blue"}


def test_function_settings_do_not_apply(monkeypatch):
    monkeypatch.setenv("FARCALL_RETRY_ATTEMPTS", "7")
    monkeypatch.setenv("FARCALL_RETRY_ON", "infrastructure")
    monkeypatch.setenv("FARCALL_NODES", "4")
    monkeypatch.setenv("FARCALL_INSTANCE_TYPE", "p5.48xlarge")
    monkeypatch.setenv("FARCALL_SHARE_IDENTIFIER", "blue")
    monkeypatch.setenv("FARCALL_PRIORITY", "9")
    monkeypatch.setenv("FARCALL_JOB_DEFINITION_EXTRA", '{"platformCapabilities": ["FARGATE"]}')
    settings = BatchOptions("q").settings(attempts=2, name="hello")
    assert (settings.retry_attempts, settings.retry_on) == (2, "failure")
    assert (settings.nodes, settings.instance_type) == (1, "")
    assert (settings.share_identifier, settings.priority) == ("", None)
    assert settings.job_definition_extra == {}
    assert settings.workflow == "hello"


def test_priority_applies_only_with_share():
    assert BatchOptions("q", priority=5).settings().priority is None
    assert BatchOptions("q", share_id="blue").settings().priority == 0
    assert BatchOptions("q", share_id="blue", priority=5).settings().priority == 5


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("queue", "my queue", "a queue's name"),
        ("region", "Europe", "a region's name"),
        ("job_role_arn", "my role", "a role's name"),
        ("execution_role_arn", "my role", "a role's name"),
        ("log_group", "my logs", "up to 512"),
        ("bucket", "My_Bucket!", "3 to 63"),
        ("timeout_s", 5, "use at least 60"),
        ("retry_on", "never", "'failure' or 'infrastructure'"),
        ("platform", "eks", "use ec2 or fargate"),
        ("job_definition_extra", "[1]", "nor a readable file"),
        ("job_definition_extra", "{a: [", "neither JSON nor YAML"),
    ],
)
def test_wrong_value_names_torchx_option(option, value, message):
    text = refused(**{option: value})
    assert text.startswith(f"run option {option} is ")
    assert message in text
    assert "FARCALL_" not in text


@pytest.mark.parametrize(("share", "priority"), [("blue!", 0), ("blue", 10_000)])
def test_share_and_priority_are_validated(share, priority):
    named = "priority" if priority else "share_id"
    assert refused(share_id=share, priority=priority).startswith(f"run option {named} is ")


def test_wrong_farcall_setting_names_its_variable(monkeypatch):
    monkeypatch.setenv("FARCALL_REGION", "Europe")
    assert "FARCALL_REGION" in refused()


def test_ulimits_are_parsed_like_docker():
    [limit, other] = BatchOptions("q", ulimits=["nofile:1:2", "memlock:-1:-1"]).limits()
    assert (limit.name, limit.soft, limit.hard) == ("nofile", 1, 2)
    assert (other.name, other.soft, other.hard) == ("memlock", -1, -1)


@pytest.mark.parametrize("text", ["nofile", "nofile:1", "nofile:a:b", ":1:2", "nofile:1:2:3"])
def test_invalid_ulimit_is_rejected(text):
    with pytest.raises(SettingsError, match="name:soft:hard"):
        BatchOptions("q", ulimits=[text]).limits()


def test_extra_fields_accept_json_or_path(tmp_path):
    extra = {"containerProperties": {"user": "1000"}}
    assert (
        BatchOptions("q", job_definition_extra=json.dumps(extra)).settings().job_definition_extra
        == extra
    )
    path = tmp_path / "extra.yaml"
    path.write_text("containerProperties:\n  user: '1000'\n")
    assert (
        BatchOptions("q", job_definition_extra=str(path)).settings().job_definition_extra == extra
    )


def test_invalid_job_definition_extra_is_hidden():
    assert "hunter2" not in refused(job_definition_extra='{"a": "hunter2" [')


def test_fargate_platform_sets_capability():
    extra = BatchOptions("q", platform="fargate").settings().job_definition_extra
    assert extra == {"platformCapabilities": ["FARGATE"]}


def test_each_option_has_a_help_text():
    helps = BatchOptions.get_docstrings()
    assert [name for name, _ in BatchOptions.as_runopts() if name not in helps] == []
    assert [name for name, option in BatchOptions.as_runopts() if option.is_required] == ["queue"]
