"""The template of farcall deploy: linters, permissions and defaults."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import yaml

from farcall.deploy import parameters, stack
from tests.support.iam import VALUES, policy

TEMPLATE = Path(stack.__file__).with_name("template.yaml")
REGIONS = [
    "us-east-1",
    "eu-west-1",
    "cn-north-1",
    "us-gov-west-1",
    "eusc-de-east-1",
    "us-iso-east-1",
]
FILLED = {
    "AWS::Partition": "aws",
    "AWS::Region": VALUES["REGION"],
    "AWS::AccountId": VALUES["ACCOUNT"],
    "AWS::StackName": VALUES["STACK"],
    "Bucket": VALUES["BUCKET"],
    "KeyPrefix": f"{VALUES['PREFIX']}/",
    "LogGroup": VALUES["LOG-GROUP"],
}


class _Loader(yaml.SafeLoader):
    """A YAML loader for CloudFormation's short forms."""


def _filled(loader, suffix, node):
    if isinstance(node, yaml.SequenceNode):
        return {suffix: loader.construct_sequence(node, deep=True)}
    text = loader.construct_scalar(node)
    if suffix == "Ref":
        return FILLED.get(text, f"<{text}>")
    if suffix == "Sub":
        for name, value in FILLED.items():
            text = text.replace(f"${{{name}}}", value)
        return text
    return {suffix: text}


_Loader.add_multi_constructor("!", _filled)


@pytest.fixture(scope="module")
def template():
    return yaml.load(stack.template(), _Loader)


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="cfn-lint does not support Python 3.15")
def test_template_passes_cfn_lint():
    program = Path(sys.executable).with_name("cfn-lint")
    words = [program, "--template", TEMPLATE, "--regions", *REGIONS, "--include-checks", "I"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("role", ["JobRole", "ExecutionRole"])
def test_role_policies_pass_parliament(template, role):
    with warnings.catch_warnings():
        # parliament finds its data with the deprecated pkg_resources, and leaves files open.
        warnings.simplefilter("ignore")
        import parliament

        [inline] = template["Resources"][role]["Properties"]["Policies"]
        text = json.dumps(inline["PolicyDocument"])
        found = parliament.analyze_policy_string(text).findings
    assert [] == sorted(finding.issue for finding in found)


@pytest.mark.parametrize(
    ("role", "name"), [("JobRole", "job-role"), ("ExecutionRole", "execution-role")]
)
def test_roles_have_exactly_the_documented_permissions(template, role, name):
    [inline] = template["Resources"][role]["Properties"]["Policies"]
    documented = json.loads(
        json.dumps(policy(name)).replace(f"repository/{VALUES['REPOSITORY']}", "repository/*")
    )
    assert _permissions(inline["PolicyDocument"]) == _permissions(documented)


@pytest.mark.parametrize("role", ["JobRole", "ExecutionRole"])
def test_roles_have_documented_trust_policy(template, role):
    trusted = template["Resources"][role]["Properties"]["AssumeRolePolicyDocument"]
    assert policy("trust") == trusted


def test_template_defaults_match_the_command(template):
    there = {
        name: str(each["Default"])
        for name, each in template["Parameters"].items()
        if "Default" in each
    }
    assert there == parameters.merged(parameters.requested(), {}, "farcall")


def test_idle_stack_has_no_costs(template):
    kinds = {each["Type"] for each in template["Resources"].values()}
    assert kinds == {
        "AWS::Batch::ComputeEnvironment",
        "AWS::Batch::JobQueue",
        "AWS::EC2::LaunchTemplate",
        "AWS::EC2::SecurityGroup",
        "AWS::IAM::InstanceProfile",
        "AWS::IAM::Role",
        "AWS::Logs::LogGroup",
        "AWS::S3::Bucket",
        "AWS::S3::BucketPolicy",
    }
    for each in template["Resources"].values():
        if each["Type"] == "AWS::Batch::ComputeEnvironment":
            assert 0 == each["Properties"]["ComputeResources"].get("MinvCpus", 0)


def _permissions(document):
    """Return pairs of action and resource, or of action and listed prefix."""
    found = set()
    for statement in document["Statement"]:
        assert "Allow" == statement["Effect"]
        condition = statement.get("Condition", {})
        about = condition.get("StringLike", {}).get("s3:prefix", statement["Resource"])
        for action in _many(statement["Action"]):
            found |= {(action, resource) for resource in _many(about)}
    return found


def _many(value):
    return value if isinstance(value, list) else [value]
