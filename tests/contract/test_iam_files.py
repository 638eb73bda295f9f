"""The policies in docs/iam use existing actions, resource types and condition keys.

parliament knows AWS's service authorization reference. It does not support the elements that only
trust policies have, so these are removed from the trust policy before it is linted; no test
enforces the trust policy's condition.
"""

import json
import re
import warnings

import pytest

from tests.support.iam import FOLDER, VALUES, actions, policy

NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


@pytest.fixture(scope="module")
def lint():
    """Return a function that returns parliament's findings for a policy."""
    with warnings.catch_warnings():
        # parliament finds its data with the deprecated pkg_resources, and leaves files open.
        warnings.simplefilter("ignore")
        import parliament

    def find(document):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = parliament.analyze_policy_string(json.dumps(document)).findings
        return sorted({finding.issue for finding in found})

    return find


@pytest.mark.parametrize("name", NAMES)
def test_policies_pass_parliament(lint, name):
    document = policy(name)
    for statement in document["Statement"]:
        if "Principal" in statement:  # a trust policy's resource is its own role
            del statement["Principal"]
            statement["Resource"] = f"arn:aws:iam::{VALUES['ACCOUNT']}:role/{VALUES['JOB-ROLE']}"
    assert lint(document) == []


def test_parliament_reports_unknown_action(lint):
    statement = {"Effect": "Allow", "Resource": "*", "Action": "batch:SubmitJobs"}
    assert "UNKNOWN_ACTION" in lint({"Version": "2012-10-17", "Statement": [statement]})


@pytest.mark.parametrize("name", NAMES)
def test_policies_have_no_wildcards_or_placeholders(name):
    document = policy(name)
    assert "*" not in "".join(actions(document))
    assert not re.findall(r"\b[A-Z]{4,}(?:-[A-Z]+)*\b", json.dumps(document))


def test_star_resource_only_where_required():
    starred = {
        action
        for name in NAMES
        for statement in policy(name)["Statement"]
        if statement.get("Resource") == "*"
        for action in actions({"Statement": [statement]})
    }
    assert starred == {
        "batch:DescribeComputeEnvironments",
        "batch:DescribeJobDefinitions",
        "batch:DescribeJobQueues",
        "batch:DescribeJobs",
        "batch:ListJobs",
        "ec2:DescribeInstances",
        "ec2:DescribeLaunchTemplateVersions",
        "ec2:DescribeLaunchTemplates",
        "ec2:DescribeSecurityGroups",
        "ec2:DescribeSubnets",
        "ecr:GetAuthorizationToken",
        "logs:DescribeLogGroups",
        "s3:ListAllMyBuckets",
        "servicequotas:GetServiceQuota",
    }


@pytest.mark.parametrize("name", [name for name in NAMES if name != "trust"])
def test_page_explains_every_action(name):
    page = (FOLDER.parent / "iam.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for action in actions(policy(name)):
        assert any(f"`{action}`" in row.split("|")[1] for row in rows), action
