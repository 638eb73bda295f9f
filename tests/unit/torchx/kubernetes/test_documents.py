"""Additions to an app's documents."""

import pytest
from torchx.specs import macros
from torchx.specs.overlays import PUT, set_overlay

from farcall.torchx.kubernetes.documents import marked, plain
from tests.unit.torchx.apps import app, role
from tests.unit.torchx.kubernetes.apps import container, env, planned
from tests.unit.torchx.kubernetes.test_mapping import made, refused


def test_variable_may_be_pod_field():
    [template] = made(app(role(env={"POD": "[FIELD_PATH]metadata.name", "A": "b"})))
    assert env(template)["POD"] == {
        "name": "POD",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
    }
    assert env(template)["A"] == "b"


def test_pods_have_torchx_labels():
    first, second = made(app(role(), role("p s"), name="My app", metadata={"team": "x"}))
    labels = second["metadata"]["labels"]
    assert labels["torchx.pytorch.org/app-name"] == "My.app"
    assert labels["torchx.pytorch.org/role-name"] == "p.s"
    assert labels["torchx.pytorch.org/replica-id"] == "0"
    assert labels["app.kubernetes.io/instance"] == "hello-1"
    assert first["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
    tags = planned(app(metadata={"team": "x"}), user="ann").settings.tags
    assert (tags["team"], tags["torchx.pytorch.org/user"]) == ("x", "ann")


def test_single_replica_number_is_text():
    [template] = made(app(role(args=[macros.replica_id], env={"ME": macros.replica_id})))
    assert (container(template)["command"], env(template)["ME"]) == (["sh", "0"], "0")


def test_replica_number_comes_from_kubernetes():
    [template] = made(
        app(role(num_replicas=2, args=[macros.replica_id], env={"ME": macros.replica_id}))
    )
    assert container(template)["command"] == ["sh", "$(FARCALL_NODE_INDEX)"]
    names = [each["name"] for each in container(template)["env"]]
    assert env(template)["ME"] == "$(FARCALL_NODE_INDEX)"
    # Kubernetes replaces only variables that are defined before.
    assert names.index("FARCALL_NODE_INDEX") < names.index("ME")


def test_dollar_signs_are_escaped():
    [template] = made(
        app(role(num_replicas=2, args=["-c", "echo $$(date) $$$$ $$A ${replica_id}"]))
    )
    # TorchX and Kubernetes each replace two dollar signs with one.
    assert container(template)["command"][-1] == "echo $$(date) $$$$ $$A $(FARCALL_NODE_INDEX)"


@pytest.mark.parametrize("text", ["", "a", "$", "$$", "$(date)", "$(FARCALL_NODE_INDEX)", "$$(A"])
def test_escaped_text_is_restored(text):
    assert plain(marked(text)) == text


def test_overlay_applies_only_to_its_role():
    of = role()
    set_overlay(
        of, "kubernetes", "V1Pod", {"spec": {"priority": 3}, "metadata": {"labels": {"a": "b"}}}
    )
    one, other = made(app(of, role("ps")))
    assert one["spec"]["priority"] == 3
    assert one["metadata"]["labels"]["a"] == "b"
    assert "priority" not in other["spec"]


@pytest.mark.parametrize(
    ("overlay", "text"),
    [
        ({"V1Pod": {"spec": {PUT("containers"): [{"name": "other"}]}}}, "no container 'task'"),
        ({"V1Pod": {"spec": "text"}}, "cannot be merged into the pod"),
        ("file:///nowhere.yaml", "role trainer: metadata"),
    ],
)
def test_invalid_overlay_is_rejected(overlay, text):
    assert text in refused(app(role(metadata={"kubernetes": overlay})))
