from __future__ import annotations

import json
from dataclasses import asdict

import yaml

from tests.unit.torchx.kubernetes.apps import app, container, env, request, role, templates


def test_json_and_yaml_tell_the_same():
    found = request(app(role(num_replicas=2), role("ps")))
    shown = list(yaml.safe_load_all(str(found)))
    assert shown == found.objects == json.loads(json.dumps(asdict(found)))["objects"]
    assert "&id" not in str(found)


def test_an_app_s_id_is_namespace_and_name():
    assert request(app()).app_id == "default:hello-1"
    found = request(app(), namespace="ml")
    assert found.app_id == "ml:hello-1"
    assert found.settings().namespace == "ml"
    found.namespace = "other"
    assert found.app_id == "other:hello-1"
    assert found.settings().namespace == "other"


def test_another_name_is_another_one_everywhere():
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


def test_who_submits_is_not_known_yet():
    for template in templates(request(app(role(num_replicas=2), role("ps")))):
        assert "FARCALL_RUN" not in env(template)
        assert "farcall/run" not in template["metadata"]["labels"]
        assert "FARCALL_WORKFLOW" in env(template)


def test_commands_are_read_and_written_without_what_kubernetes_needs():
    found = request(app(role(num_replicas=2, args=["-c", "echo $$A $$(date) ${replica_id}"])))
    for command in found.commands():
        assert command[2].startswith("echo $A $(date) ")
        command[:] = ["wrapped", "$B", *command]
    [template] = templates(found)
    assert container(template)["command"] == [
        *("wrapped", "$$B", "sh", "-c"),
        "echo $$A $$(date) $(FARCALL_NODE_INDEX)",
    ]


def test_options_say_where_it_is_sent():
    found = request(app(), context="c", kubeconfig="/k", queue="q", scheduler="kueue")
    assert found.options["backend"] == "kubernetes"
    assert (found.options["context"], found.options["kubeconfig"]) == ("c", "/k")
    assert found.settings().queue == "q"
    assert found.validate
    assert not request(app(), validate_spec=False).validate
