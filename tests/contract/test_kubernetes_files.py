"""The files of docs/kubernetes are valid: manifests and a policy."""

import json
import re
import warnings
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "docs" / "kubernetes"
PAGE = FOLDER.with_suffix(".md").read_text(encoding="utf-8")
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
DOCUMENTS = [
    (name, number, document)
    for name in FILES
    for number, document in enumerate(yaml.safe_load_all((FOLDER / name).read_text()))
]
ROLES = [found for found in DOCUMENTS if found[2]["kind"] == "Role"]


def _id(value):
    return value.get("kind") if isinstance(value, dict) else str(value)


@pytest.mark.parametrize(("name", "number", "document"), DOCUMENTS, ids=_id)
def test_documents_match_their_schema(name, number, document):
    group = document["apiVersion"].partition("/")[0]
    if group.endswith((".volcano.sh", ".x-k8s.io")):
        pytest.skip("a custom resource, which these schemas do not contain")
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize(("name", "number", "document"), DOCUMENTS, ids=_id)
def test_documents_use_one_namespace_and_group(name, number, document):
    metadata = document["metadata"]
    if document["kind"] not in ("Queue", "ResourceFlavor", "ClusterQueue"):
        assert metadata["namespace"] == "science"
    for subject in document.get("subjects", ()):
        assert subject["name"] == "scientists"


@pytest.mark.parametrize(("name", "number", "document"), ROLES, ids=_id)
def test_roles_have_no_wildcards_and_bindings(name, number, document):
    for rule in document["rules"]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
    bound = [
        other["roleRef"]["name"]
        for file, _, other in DOCUMENTS
        if file == name and other["kind"] == "RoleBinding"
    ]
    assert bound == [document["metadata"]["name"]]


def test_page_explains_every_permission():
    [rows] = re.findall(r"^\| permission \| .*\n\|.*\n((?:\| .*\n)+)", PAGE, re.MULTILINE)
    told = set()
    for resources in re.findall(r"^\| (`.+?) \|", rows, re.MULTILINE):
        for resource, verbs in re.findall(r"`([\w/]+)` ((?:\w+, )*\w+)", resources):
            told |= {(resource, verb) for verb in verbs.split(", ")}
    [role] = [document for name, _, document in ROLES if name == "client.yaml"]
    there = {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert told == there


def test_page_names_every_manifest():
    for path in FOLDER.iterdir():
        commands = (f"| `{path.stem}` |", f"farcall policy kubernetes {path.stem} ")
        assert any(text in PAGE for text in commands), path.name


def test_trust_policy_names_service_account():
    text = (FOLDER / "trust.json").read_text()
    [account] = [found for name, _, found in DOCUMENTS if name == "service-account.yaml"]
    metadata = account["metadata"]
    assert f"system:serviceaccount:{metadata['namespace']}:{metadata['name']}" in text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the linter finds its data with pkg_resources
        import parliament

        document = json.loads(
            text.replace("ACCOUNT", "111122223333")
            .replace("REGION", "eu-west-1")
            .replace("CLUSTER-ID", "0" * 32)
        )
        [statement] = document["Statement"]
        del statement["Principal"], statement["Condition"]  # only trust policies have these
        statement["Resource"] = "arn:aws:iam::111122223333:role/my-job-role"
        found = parliament.analyze_policy_string(json.dumps(document)).findings
    assert [finding.issue for finding in found] == []
