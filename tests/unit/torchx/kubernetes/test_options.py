import pytest
from torchx.specs import runopts

from farcall import SettingsError
from farcall.torchx.kubernetes.options import KubernetesOptions


def refused(**options):
    with pytest.raises(SettingsError) as caught:
        KubernetesOptions(**options).settings()
    return str(caught.value)


def test_all_options_are_optional():
    settings = KubernetesOptions().settings(attempts=2, name="hello")
    assert (settings.backend, settings.scheduler, settings.queue) == ("kubernetes", "default", "")
    assert (settings.retry_attempts, settings.retry_on) == (2, "failure")
    assert settings.workflow == "hello"


def test_options_map_to_farcall_settings():
    settings = KubernetesOptions(
        queue="q",
        scheduler="volcano",
        namespace="ml",
        service_account="trainer",
        priority_class="high",
        image_pull_secrets=["registry"],
        node_selector={"pool": "gpu"},
        tolerations=["gpu=yes:NoSchedule", "spot:NoExecute", "other"],
        kubeconfig="/k",
        context="c",
        ttl=600,
        timeout_s=90,
        s3_secret="keys",
        bucket="mine",
    ).settings()
    assert (settings.queue, settings.scheduler, settings.namespace) == ("q", "volcano", "ml")
    assert (settings.service_account, settings.priority_class) == ("trainer", "high")
    assert (settings.image_pull_secrets, settings.node_selector) == (["registry"], {"pool": "gpu"})
    assert settings.tolerations == [
        {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists", "effect": "NoExecute"},
        {"key": "other", "operator": "Exists"},
    ]
    assert (settings.kubeconfig, settings.context) == ("/k", "c")
    assert (settings.ttl, settings.time_limit) == (600, 90)
    assert (settings.s3_secret, settings.s3_bucket_name) == ("keys", "mine")


def test_function_settings_do_not_apply(monkeypatch):
    monkeypatch.setenv("FARCALL_RETRY_ATTEMPTS", "7")
    monkeypatch.setenv("FARCALL_NODES", "4")
    monkeypatch.setenv("FARCALL_IMAGE", "tasks:1")
    monkeypatch.setenv("FARCALL_MAX_PARALLEL", "1")
    monkeypatch.setenv("FARCALL_SHM_SIZE", "4")
    settings = KubernetesOptions().settings()
    assert (settings.retry_attempts, settings.nodes, settings.image) == (1, 1, "")
    assert (settings.max_parallel, settings.shm_size) == (None, None)


@pytest.mark.parametrize("scheduler", ["volcano", "kueue"])
def test_volcano_and_kueue_require_queue(scheduler):
    assert f"run option queue is None: scheduler={scheduler} requires" in refused(
        scheduler=scheduler
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"scheduler": "slurm"}, "run option scheduler is 'slurm'"),
        ({"namespace": "No_Name"}, "run option namespace is 'No_Name'"),
        ({"timeout_s": 1}, "run option timeout_s is 1"),
        ({"ttl": 5}, "run option ttl is 5"),
        ({"retry_on": "luck"}, "run option retry_on is 'luck'"),
        ({"tolerations": ["a=b:Never"]}, "run option tolerations is 'a=b:Never'"),
        ({"tolerations": [""]}, "run option tolerations is ''"),
    ],
)
def test_wrong_value_names_torchx_option(options, text):
    assert text in refused(**options)


def test_every_option_has_help():
    found = KubernetesOptions.as_runopts()
    assert isinstance(found, runopts)
    assert [name for name, option in found if option.help in ("", name)] == []


def test_workspace_requires_secret_or_service_account():
    options = KubernetesOptions()
    assert "s3_secret or service_account" in options.unfetchable(options.settings())
    options = KubernetesOptions(s3_secret="keys")
    assert options.unfetchable(options.settings()) == ""
