import json
from dataclasses import asdict

import yaml

from tests.unit.torchx.apps import app, role
from tests.unit.torchx.kubernetes.apps import container, env, request, templates


def test_json_and_yaml_are_equivalent():
    found = request(app(role(num_replicas=2), role("ps")))
    shown = list(yaml.safe_load_all(str(found)))
    assert shown == found.objects == json.loads(json.dumps(asdict(found)))["objects"]
    assert "&id" not in str(found)


def test_app_id_is_namespace_and_name():
    assert request(app()).app_id == "default:hello-1"
    found = request(app(), namespace="ml")
    assert found.app_id == "ml:hello-1"
    assert found.settings().namespace == "ml"
    found.namespace = "other"
    assert found.app_id == "other:hello-1"
    assert found.settings().namespace == "other"


def test_new_name_is_applied_everywhere():
    found = request(app(role(num_replicas=2), role("ps")))
    found.name = "nightly"
    assert found.app_id == "default:nightly"
    assert "hello-1" not in str(found)
    assert [each["metadata"]["name"] for each in found.objects] == [
        "farcall-nodes",
        "nightly-n2",
        "nightly",
    ]
    assert env(templates(found)[0])["TORCHX_RANK0_HOST"] == "nightly-0.farcall-nodes"


def test_request_does_not_name_run():
    for template in templates(request(app(role(num_replicas=2), role("ps")))):
        assert "FARCALL_RUN" not in env(template)
        assert "farcall/run" not in template["metadata"]["labels"]
        assert "FARCALL_WORKFLOW" in env(template)


def test_commands_are_unescaped_and_escaped():
    found = request(app(role(num_replicas=2, args=["-c", "echo $$A $$(date) ${replica_id}"])))
    for command in found.commands():
        assert command[2].startswith("echo $A $(date) ")
        command[:] = ["wrapped", "$B", *command]
    [template] = templates(found)
    assert container(template)["command"] == [
        *("wrapped", "$$B", "sh", "-c"),
        "echo $$A $$(date) $(FARCALL_NODE_INDEX)",
    ]


def test_options_contain_the_target_cluster():
    found = request(app(), context="c", kubeconfig="/k", queue="q", scheduler="kueue")
    assert found.options["backend"] == "kubernetes"
    assert (found.options["context"], found.options["kubeconfig"]) == ("c", "/k")
    assert found.settings().queue == "q"
    assert found.validate
    assert not request(app(), validate_spec=False).validate
