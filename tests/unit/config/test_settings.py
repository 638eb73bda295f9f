import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any, get_type_hints

import numpy as np
import pydantic
import pytest

from farcall import Settings
from farcall.config.settings import Options, OptionSource
from farcall.model.errors import SettingsError


def write(path, text, section="[executors.awsbatch]"):
    path = Path(path).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{section}\n{text}\n")


def home_file(text):
    write("~/.config/farcall/farcall.toml", text)


def refused(**options):
    with pytest.raises(SettingsError) as caught:
        Settings(**options)
    return caught.value


# --- defaults ---------------------------------------------------------------------------------


def test_region_comes_from_aws_variables(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert Settings().region == "eu-west-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-2")
    assert Settings().region == "eu-west-2"
    assert Settings(region="eu-west-3").region == "eu-west-3"


# --- sources ----------------------------------------------------------------------------------


def test_file_in_working_directory_is_read():
    write("farcall.toml", 'queue = "here"\nmemory = 8')
    assert (Settings().queue, Settings().memory) == ("here", 8)


def test_home_file_is_the_fallback():
    home_file('queue = "home"')
    assert Settings().queue == "home"
    write("farcall.toml", "memory = 8")
    assert Settings().queue == "farcall-ec2"


def test_foreign_file_is_accepted():
    write("farcall.toml", "x = 1", section="[tool.other]")
    assert Settings().vcpu == 2


def test_arguments_override_environment_and_file(monkeypatch):
    write("farcall.toml", "vcpu = 4\nmemory = 4\ntime_limit = 400")
    monkeypatch.setenv("FARCALL_MEMORY", "5")
    monkeypatch.setenv("FARCALL_TIME_LIMIT", "500")
    settings = Settings(time_limit=600)
    assert (settings.vcpu, settings.memory, settings.time_limit) == (4, 5, 600)


def test_tables_are_json_in_environment(monkeypatch):
    monkeypatch.setenv("FARCALL_TAGS", '{"team": "lab"}')
    assert Settings().tags == {"team": "lab"}
    monkeypatch.setenv("FARCALL_TAGS", "team=lab")
    error = refused()
    assert error.option == "tags"
    assert "FARCALL_TAGS" in str(error)
    assert "JSON" in str(error)


def test_null_in_environment_is_none(monkeypatch):
    write("farcall.toml", "stuck_timeout_s = 5")
    monkeypatch.setenv("FARCALL_STUCK_TIMEOUT_S", "null")
    assert Settings().stuck_timeout_s is None


def test_text_in_environment_stays_text(monkeypatch):
    monkeypatch.setenv("FARCALL_QUEUE", "123")
    monkeypatch.setenv("FARCALL_KEEP_ARTIFACTS", "yes")
    assert (Settings().queue, Settings().keep_artifacts) == ("123", True)


def test_job_variables_are_not_options(monkeypatch):
    for name in ("BUNDLE", "DIGEST", "OUTCOME_KEY", "BUCKET_URL"):
        monkeypatch.setenv(f"FARCALL_{name}", "x")
    assert Settings().vcpu == 2


def test_other_programs_file_replaces_ours(monkeypatch):
    Path("farcall.toml").write_text('[executors.awsbatch]\nbatch_queue = "theirs"\nvcpu = 4\n')
    place = OptionSource("TheirExecutor", "their.conf")
    monkeypatch.setenv("FARCALL_MEMORY", "5")
    section = {"prefix": "p", "memory": 6, "time_limit": 600}
    settings = Settings.within(section, place, time_limit=700)
    assert (settings.queue, settings.vcpu) == ("farcall-ec2", 2)
    assert (settings.prefix, settings.memory, settings.time_limit) == ("p", 5, 700)
    assert settings.model_fields_set == {"prefix", "memory", "time_limit"}
    for wrong, given, words in (
        ({"vcpu": 0}, {}, r"The value comes from \[executors.awsbatch\] of their.conf"),
        ({}, {"vcpus": 1}, "TheirExecutor has an unknown option 'vcpus'"),
        ({"vcpus": 1}, {}, r"their.conf, section \[executors.awsbatch\] has an unknown option"),
    ):
        with pytest.raises(SettingsError, match=words):
            Settings.within(wrong, place, **given)


# --- empty values -----------------------------------------------------------------------------


def test_falsy_values_are_kept(monkeypatch):
    write(
        "farcall.toml",
        'keep_artifacts = true\nnum_gpus = 1\nprefix = "p"\nbatch_job_role_name = "r"\npriority=5',
    )
    monkeypatch.setenv("FARCALL_LINGER_S", "3")
    monkeypatch.setenv("FARCALL_BATCH_JOB_ROLE_NAME", "")
    settings = Settings(keep_artifacts=False, num_gpus=0, prefix="", linger_s=0, priority=0)
    assert (settings.keep_artifacts, settings.num_gpus, settings.prefix) == (False, 0, "")
    assert (settings.linger_s, settings.priority, settings.batch_job_role_name) == (0, 0, "")


def test_argument_replaces_table(monkeypatch):
    write("farcall.toml", 'tags = {team = "lab"}')
    assert Settings(tags={"run": "7"}).tags == {"run": "7"}
    assert Settings(tags={}).tags == {}
    assert Settings().replace(tags={}).tags == {}
    monkeypatch.setenv("FARCALL_TAGS", '{"run": "8"}')
    assert Settings().tags == {"run": "8"}


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("region", ""),
        ("queue", "no blanks"),
        ("s3_bucket_name", "Upper"),
        ("s3_bucket_name", "s3://bucket"),
        ("batch_job_definition_name", "a b"),
        ("batch_execution_role_name", "a/b"),
        ("batch_job_role_name", "x" * 65),
        ("vcpu", True),
        ("vcpu", 0),
        ("vcpu", float("nan")),
        ("memory", float("inf")),
        ("num_gpus", -1),
        ("retry_attempts", 0),
        ("retry_attempts", 11),
        ("time_limit", 59),
        ("poll_freq", -1),
        ("cache_dir", "a\0b"),
        ("image", "x" * 256),
        ("image", "image\x1b[2J"),
        ("architecture", "x86"),
        ("packages", "Local"),
        ("packages", ["./mine"]),
        ("packages", ["numpy==2", 3]),
        ("packages", ["mine @ https://user:secret@index.example/mine.whl"]),
        ("extra_packages", "numpy"),
        ("exclude_packages", "numpy"),
        ("sources", "src"),
        ("sources", ["src", 3]),
        ("exclude_sources", "data"),
        ("prefix", "../b"),
        ("prefix", "a\nb"),
        ("environment", {"1A": "x"}),
        ("environment", {"FARCALL_X": "x"}),
        ("environment", ["AWS_BATCH_JOB_ID=x"]),
        ("environment", {"A": 1}),
        ("environment", {"A": "\0"}),
        ("environment", "A=1"),
        ("secrets", {"A": "db/password"}),
        ("secrets", {"A-B": "arn:aws:ssm:eu-west-1:111122223333:parameter/a"}),
        ("linger_s", 61),
        ("retry_on", "always"),
        ("stuck_timeout_s", -1),
        ("tags", {"a": 1}),
        ("tags", {"a\n": "b"}),
        ("tags", {str(n): "" for n in range(46)}),
        ("tags", {"": "x"}),
        ("tags", {"k" * 129: "x"}),
        ("tags", {"k": "v" * 257}),
        ("tags", {"AWS:team": "x"}),
        ("tags", {"a<b": "x"}),
        ("tags", {"version": "2.8.1+mc(0.10.0)"}),
        ("tags", {"team": "a\N{GRINNING FACE}"}),
        ("cache_dir", Path("a\x1b[2J")),
        ("time_limit", timedelta(seconds=59)),
        ("linger_s", timedelta(minutes=2)),
        ("priority", 10_000),
        ("share_identifier", "a-b"),
        ("job_definition_extra", {"containerProperties": {"user": "\ud800"}}),
        ("endpoint_url", "localhost:80"),
        ("endpoint_url", "http://host:99999"),
        ("endpoint_url", "http://host/\x1b[2J"),
        ("ui_url", "http://127.0.0.1:8750/#token=abc"),
        ("workflow", "\x1b]0;title\x07"),
        ("queue", "arn:aws:batch:\x1b[2J"),
        ("keep_artifacts", "perhaps"),
    ],
)
def test_wrong_value_error_names_option(option, value):
    error = refused(**{option: value})
    assert error.option == option
    assert str(error).startswith((f"{option} is ", f"{option}.a is "))
    assert not re.search("nput should|unable to|The value comes from", str(error))
    assert not isinstance(error, pydantic.ValidationError)


SECRET = "arn:aws:secretsmanager:eu-west-1:111122223333:secret:db-AbCdEf"


def test_environment_is_table_or_list(monkeypatch):
    table = {"A": "1=2\n", "B": None}
    assert Settings(environment=table).environment == table
    monkeypatch.setenv("FARCALL_ENVIRONMENT", json.dumps(["A=1=2\n", "B"]))
    assert Settings().environment == table


def test_value_of_environment_error_is_hidden():
    assert "hunter2" not in str(refused(environment=["1A=hunter2"]))
    assert "hunter2" not in repr(Settings(environment={"A": "hunter2"}))


def test_name_without_value_takes_callers_value(monkeypatch):
    settings = Settings(environment=["A=1", "THERE"])
    with pytest.raises(SettingsError, match="environment has 'THERE' without a value"):
        settings.with_environment()
    monkeypatch.setenv("THERE", "2")
    assert settings.with_environment().environment == {"A": "1", "THERE": "2"}


def test_secret_has_form_of_platform():
    assert Settings(secrets={"A": SECRET}).secrets == {"A": SECRET}
    on_kubernetes = {"backend": "kubernetes", "secrets": {"A": "db/password"}}
    assert Settings(**on_kubernetes).secrets == {"A": "db/password"}
    assert 'for example "db/password"' in str(refused(backend="kubernetes", secrets={"A": SECRET}))


def test_variable_is_no_secret_too():
    assert "A is also in environment" in str(refused(environment=["A"], secrets={"A": SECRET}))


def test_legal_tags_are_kept():
    tags = {"Team \N{LATIN SMALL LETTER E WITH ACUTE}": "a b+c-d=e.f_g:h/i@j", "empty": ""}
    assert Settings(tags=tags).tags == tags


@pytest.mark.parametrize("option", ["cache_dir", "credentials", "packages"])
def test_path_object_is_kept_as_text(option):
    assert getattr(Settings(**{option: PurePosixPath("/a/requirements.txt")}), option) == (
        "/a/requirements.txt"
    )


def test_kubernetes_options_accept_path_objects():
    mount = {"type": "bind", "src": PurePosixPath("/data"), "dst": PurePosixPath("/mnt")}
    settings = Settings(backend="kubernetes", kubeconfig=Path("config"), mounts=[mount])
    assert settings.kubeconfig == "config"
    assert [settings.mounts[0][key] for key in ("src", "dst")] == ["/data", "/mnt"]


@pytest.mark.parametrize("option", ["time_limit", "poll_freq", "linger_s", "stuck_timeout_s"])
def test_timedelta_is_converted_to_seconds(option):
    assert getattr(Settings(**{option: timedelta(minutes=1)}), option) == 60


def test_numpy_numbers_are_accepted():
    settings = Settings(vcpu=np.float32(2), num_gpus=np.int64(1), memory=np.int32(4))
    assert (settings.vcpu, settings.num_gpus, settings.memory) == (2, 1, 4)


@pytest.mark.parametrize("source", ["FARCALL_VCPU", "[executors.awsbatch] of farcall.toml"])
def test_source_of_wrong_value_is_named(monkeypatch, source):
    if source == "FARCALL_VCPU":
        monkeypatch.setenv(source, "many")
    else:
        write("farcall.toml", 'vcpu = "many"')
    with pytest.raises(SettingsError, match=re.escape(f"The value comes from {source}")):
        Settings()


@pytest.mark.parametrize("prefix", ["", "/", "a", "a/b", "a.b/..c/.d", "/a/b/"])
def test_legal_prefix_is_kept(prefix):
    assert Settings(prefix=prefix).prefix == prefix.strip("/")


def test_multiline_command_is_accepted():
    extra = {"containerProperties": {"command": ["sh", "-c", "one\ntwo"]}}
    assert Settings(job_definition_extra=extra).job_definition_extra == extra


def test_all_wrong_values_are_named():
    error = refused(vcpu=-1, memory="x")
    assert [line.partition(" ")[0] for line in str(error).splitlines()] == ["vcpu", "memory"]


def test_unknown_argument_gets_suggestion():
    error = refused(vcpus=2)
    assert (error.option, "did you mean vcpu?" in str(error)) == ("vcpus", True)


def test_unknown_variable_gets_suggestion(monkeypatch):
    monkeypatch.setenv("FARCALL_MEMROY", "2")
    assert "'FARCALL_MEMROY'; did you mean FARCALL_MEMORY?" in str(refused())


def test_unknown_key_names_file():
    write("farcall.toml", "queu = 'x'")
    error = refused()
    assert "farcall.toml, section [executors.awsbatch]" in str(error)
    assert "did you mean queue?" in str(error)


@pytest.mark.parametrize("option", ["vcpu", "tags", "keep_artifacts", "retry_on"])
@pytest.mark.parametrize("text", ["two", "\udcff", "[" * 100_000, "-1", "true}"])
def test_wrong_environment_value_is_named(monkeypatch, option, text):
    monkeypatch.setenv(f"FARCALL_{option.upper()}", text)
    error = refused()
    assert error.option == option
    assert str(error).startswith(f"{option} is ")


def test_invalid_toml_is_named():
    write("farcall.toml", "vcpu = = 2")
    assert "farcall.toml is not valid TOML" in str(refused())


def test_non_table_section_is_named():
    Path("farcall.toml").write_text("[executors]\nawsbatch = 3\n")
    assert "[executors.awsbatch] must be a table" in str(refused())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[executors]\nvcpu = 4\n", "executors.vcpu outside of the tables"),
        ("vcpu = 4\n[executors.awsbatch]\nmemory = 8\n", "vcpu outside of the tables"),
        (
            "[executor.awsbatch]\nvcpu = 4\n",
            "a table [executor], which farcall",
        ),
        ("[awsbatch]\n", "a table [awsbatch], which farcall"),
        (
            "[executors.awsbatch]\nvcpu = 4\n[executors.awsbach]\n",
            "[executors.awsbach], which farcall",
        ),
    ],
)
def test_misplaced_options_are_rejected(text, words):
    Path("farcall.toml").write_text(text)
    error = str(refused())
    assert error.startswith("farcall.toml has ")
    assert words in error
    assert "[executors.awsbatch]" in error


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# vcpu = 4\n",
        "[sdk]\nlog = 1\n[executors.dask]\ncache_dir = 'c'\n",
        "[executors.ssh]\npoll_freq = 1\n[executors.awsecs]\nvcpu = 1\n[executors.mine]\nn = 4\n",
    ],
)
def test_tables_of_other_programs_are_ignored(text):
    Path("farcall.toml").write_text(f"{text}\n[executors.awsbatch.tags]\nvcpu = 'one'\n")
    assert Settings().tags == {"vcpu": "one"}
    Path("farcall.toml").write_text(text)
    assert Settings().vcpu == 2


# --- replace, types and units -----------------------------------------------------------------


def test_replace_keeps_and_validates_options(monkeypatch):
    settings = Settings(vcpu=4, memory=8).replace(vcpu=16)
    assert (settings.vcpu, settings.memory) == (16, 8)
    with pytest.raises(SettingsError, match="vcpu"):
        settings.replace(vcpu=0)
    with pytest.raises(SettingsError, match="did you mean vcpu"):
        settings.replace(vcpus=1)


def test_slashes_at_ends_are_removed():
    assert Settings(prefix="/a/b/").prefix == "a/b"
    assert Settings(endpoint_url="http://localhost:5000/").endpoint_url == "http://localhost:5000"


def test_type_checkers_know_every_option():
    known = get_type_hints(Options)
    assert list(known) == list(Settings.model_fields)
    more = dict.fromkeys(("memory", "shm_size"), str)
    durations = ("time_limit", "poll_freq", "linger_s", "stuck_timeout_s", "ttl", "queue_patience")
    durations += ("workers_idle",)
    more |= dict.fromkeys(durations, str | timedelta)
    paths = ("credentials", "cache_dir", "packages", "kubeconfig")
    more |= dict.fromkeys(paths, str | os.PathLike[str])
    # Their items are annotated, or typed dictionaries.
    lists = dict.fromkeys(("tolerations", "mounts"), list[dict[str, Any]])
    lists["environment"] = Mapping[str, str | None] | list[str]
    lists |= dict.fromkeys(("exclude_packages", "image_pull_secrets"), list[str])
    ladders = {"memory": float | str, "vcpu": float, "queue": str}
    for name, field in Settings.model_fields.items():
        own = lists.get(name, field.annotation)
        accepted = own | more.get(name, own)
        if name in ladders:
            accepted |= Sequence[ladders[name]]
        assert known[name] == accepted, name


@pytest.mark.parametrize(
    ("option", "given", "value"),
    [
        ("memory", "4GiB", 4),
        ("memory", "512MiB", 0.5),
        ("memory", "4GB", 4e9 / 2**30),
        ("time_limit", "1h30m", 5400),
        ("poll_freq", "1m", 60),
        ("stuck_timeout_s", "2d", 172_800),
        ("stuck_timeout_s", None, None),
    ],
)
def test_units_are_accepted(option, given, value, monkeypatch, tmp_path):
    assert getattr(Settings(**{option: given}), option) == value
    if isinstance(given, str):
        monkeypatch.setenv(f"FARCALL_{option.upper()}", given)
        assert getattr(Settings(), option) == value


@pytest.mark.parametrize(
    ("option", "given", "message"),
    [
        (
            "memory",
            "4G",
            "memory is '4G': the unit G is ambiguous: use 4GiB (2^30 bytes each)",
        ),
        ("memory", "1MiB", "memory is 0.0009765625: use at least 4 MiB; a number is in GiB"),
        ("memory", True, "a Boolean is not a number"),
        (
            "time_limit",
            "1:30",
            "time_limit is '1:30': use units, such as 90s",
        ),
        ("time_limit", "30s", "use at least 60 s"),
        ("vcpu", "2GB", "vcpu is '2GB': use a number, such as 1"),
    ],
)
def test_invalid_or_ambiguous_quantity_is_rejected(option, given, message):
    with pytest.raises(SettingsError) as refused:
        Settings(**{option: given})
    assert message in str(refused.value)
    assert refused.value.option == option


KMS_KEY = "arn:aws-us-gov:kms:us-gov-west-1:123456789012:key/0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


@pytest.mark.parametrize(
    "key", [KMS_KEY, KMS_KEY.rpartition("/")[2], "mrk-0123", "alias/mine", "alias/aws/s3", ""]
)
def test_every_form_of_kms_key_accepted(key):
    assert Settings(s3_encryption="aws:kms", s3_kms_key_id=key).s3_kms_key_id == key


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"s3_encryption": "AES128"}, "s3_encryption is 'AES128'.*'AES256', 'aws:kms'"),
        ({"s3_encryption": None}, "s3_encryption is None"),
        ({"s3_kms_key_id": "mine"}, "s3_kms_key_id is 'mine'.*s3_encryption is ''"),
        ({"s3_encryption": "AES256", "s3_kms_key_id": "mine"}, "s3_encryption is 'AES256'"),
        ({"s3_encryption": "aws:kms", "s3_kms_key_id": "a b"}, "key's ID, its ARN, or an alias"),
        ({"s3_encryption": "nothing", "s3_kms_key_id": "mine"}, "s3_encryption is 'nothing'"),
    ],
)
def test_invalid_encryption_is_rejected(options, words):
    with pytest.raises(SettingsError, match=f"(?s){words}"):
        Settings(**options)


def test_access_point_arns_are_normalized():
    arn = "arn:aws:s3:us-west-2:123456789012:accesspoint"
    assert Settings(s3_bucket_name=f"{arn}/mine").s3_bucket_name == f"{arn}:mine"
    assert Settings(s3_bucket_name=f"{arn}:mine").s3_bucket_name == f"{arn}:mine"


@pytest.mark.parametrize(
    "name",
    [
        "arn:aws:s3::123456789012:accesspoint/m1.mrap",
        "arn:aws:s3-outposts:us-east-1:123456789012:outpost:op-1:accesspoint:mine",
        "arn:aws:s3:::bucket",
    ],
)
def test_unsupported_bucket_arns_are_rejected(name):
    with pytest.raises(SettingsError, match="the ARN of an access point in one region"):
        Settings(s3_bucket_name=name)


# --- backends ---------------------------------------------------------------------------------


KUBERNETES = "[executors.kubernetes]"


def test_backend_is_argument_environment_or_file(monkeypatch):
    assert Settings().backend == "batch"
    write("farcall.toml", 'namespace = "research"\nvcpu = 4', KUBERNETES)
    found = Settings()
    assert (found.backend, found.namespace, found.vcpu) == ("kubernetes", "research", 4)
    assert Settings(backend="batch").vcpu == 2
    monkeypatch.setenv("FARCALL_BACKEND", "batch")
    assert Settings().backend == "batch"
    assert Settings(backend="kubernetes").namespace == "research"


def test_section_of_backend_counts(monkeypatch):
    write("farcall.toml", f"vcpu = 4\n{KUBERNETES}\nvcpu = 8")
    assert (Settings().backend, Settings().vcpu) == ("batch", 4)
    monkeypatch.setenv("FARCALL_BACKEND", "kubernetes")
    assert (Settings().backend, Settings().vcpu) == ("kubernetes", 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"namespace": "a"}, 'leave it out, or set backend="kubernetes"'),
        ({"service_account": "a"}, "use batch_job_role_name, its counterpart on Batch"),
        (
            {"backend": "kubernetes", "priority": 1},
            "use priority_class, its counterpart on",
        ),
        ({"backend": "kubernetes", "batch_job_log_group_name": ""}, 'set backend="batch"'),
    ],
)
def test_option_of_other_backend_is_rejected(options, message):
    error = refused(**options)
    assert error.option == list(options)[-1]
    assert f"has {error.option}, an option for " in str(error)
    assert message in str(error)


def test_wrong_option_in_section_is_rejected():
    write("farcall.toml", "priority = 1", KUBERNETES)
    message = str(refused())
    assert message.startswith(
        f"farcall.toml, section {KUBERNETES} has priority, an option for Batch"
    )
    write("farcall.toml", 'backend = "kubernetes"')
    assert f"its own section: [executors.awsbatch] or {KUBERNETES}" in str(refused())
    write("farcall.toml", "vcpu = 1", "[executors.kubernets]")
    assert f"did you mean {KUBERNETES}?" in str(refused())


def test_environment_ignores_options_of_other_backend(monkeypatch):
    monkeypatch.setenv("FARCALL_NAMESPACE", "Not A Name")
    monkeypatch.setenv("FARCALL_PRIORITY", "7")
    assert Settings().priority == 7
    assert "namespace is 'Not A Name'" in str(refused(backend="kubernetes"))
    monkeypatch.delenv("FARCALL_NAMESPACE")
    assert "priority" not in Settings(backend="kubernetes").model_fields_set


@pytest.mark.parametrize(
    ("section", "text", "option"),
    [
        ("[executors.awsbatch]", 'endpoint_url = "http://theirs"', "endpoint_url"),
        ("[executors.awsbatch]", 'vcpu = 1\nprofile = "work"', "profile"),
        ("[executors.awsbatch]", 'credentials = "theirs"', "credentials"),
        (KUBERNETES, 'kubeconfig = "theirs"', "kubeconfig"),
        (KUBERNETES, 'context = "theirs"', "context"),
    ],
)
def test_working_directory_does_not_choose_credentials(section, text, option, monkeypatch):
    write("farcall.toml", text, section)
    error = refused()
    assert error.option == option
    assert f"farcall.toml sets {option}" in str(error)
    assert f"FARCALL_{option.upper()}" in str(error)
    monkeypatch.setenv("FARCALL_CONFIG", "farcall.toml")
    assert getattr(Settings(), option) == text.rpartition('"')[0].rpartition('"')[2]


def test_home_file_may_choose_credentials():
    home_file('profile = "work"')
    assert Settings().profile == "work"


def test_local_file_of_others_is_rejected():
    write("farcall.toml", "vcpu = 1")
    Path("farcall.toml").chmod(0o646)
    assert "other users of this machine can write to it" in str(refused())


def test_changing_backend_drops_its_options():
    before = Settings(queue="q", vcpu=4)
    after = before.replace(backend="kubernetes", namespace="a")
    assert (after.backend, after.vcpu, after.namespace) == ("kubernetes", 4, "a")
    assert "queue" not in after.model_fields_set
    with pytest.raises(SettingsError, match="priority"):
        before.replace(backend="kubernetes", priority=1)


def test_queue_name_depends_on_backend():
    assert (Settings().queue, Settings(backend="kubernetes").queue) == ("farcall-ec2", "")
    assert Settings(queue="arn:aws:batch:q").queue == "arn:aws:batch:q"
    assert "an object's name" in str(refused(backend="kubernetes", queue="My_Queue"))
    assert "or its ARN" in str(refused(queue="no blanks"))


def test_other_programs_file_is_for_batch(monkeypatch):
    monkeypatch.setenv("FARCALL_BACKEND", "kubernetes")
    place = OptionSource("TheirExecutor", "their.conf")
    assert Settings.within({"queue": "q"}, place).backend == "batch"
    for section, given in (({}, {"backend": "kubernetes"}), ({"backend": "kubernetes"}, {})):
        with pytest.raises(SettingsError, match="TheirExecutor runs tasks only on Batch"):
            Settings.within(section, place, **given)
    with pytest.raises(SettingsError, match=r"their.conf, section .* has namespace"):
        Settings.within({"namespace": "a"}, place)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("timeout", "time_limit"), ("gpu", "num_gpus"), ("cpus", "vcpu"), ("env", "environment")],
)
def test_usual_name_is_translated(given, meant):
    with pytest.raises(SettingsError, match=f"unknown option '{given}'; did you mean {meant}\\?"):
        Settings(**{given: 1})
