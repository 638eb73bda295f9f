"""Policies of ``farcall policy``."""

import json

import click
import pytest
import yaml
from click.testing import CliRunner

from farcall.cli.policy import kubernetes, policy

MANIFESTS = sorted(set(kubernetes.commands) - {"trust"})


def run(*words):
    done = CliRunner().invoke(policy, list(words))
    assert done.exit_code == 0, done.output
    return done


def everything(command):
    """Return a value for each option of a command."""
    names = [each.name for each in command.params if isinstance(each, click.Option)]
    return [word for name in names for word in (f"--{name.replace('_', '-')}", f"my-{name}")]


@pytest.mark.parametrize("name", sorted(set(policy.commands) - {"kubernetes"}))
def test_options_fill_every_placeholder(name):
    done = run(name, *everything(policy.commands[name]))
    assert json.loads(done.stdout)["Statement"]
    assert done.stderr == ""


@pytest.mark.parametrize("name", MANIFESTS)
def test_namespace_is_filled_in(name):
    done = run("kubernetes", name, *everything(kubernetes.commands[name]))
    documents = list(yaml.safe_load_all(done.stdout))
    namespaces = {each["metadata"].get("namespace", "my-namespace") for each in documents}
    assert namespaces == {"my-namespace"}
    assert "science" not in done.stdout.replace("# ", "")


def test_missing_value_is_named():
    done = run("execution-role", "--region", "eu-west-1", "--account", "1", "--repository", "jobs")
    assert "replace LOG-GROUP, or pass --log-group" in done.stderr


def test_empty_prefix_leaves_no_slash():
    done = run("client", "--bucket", "b", "--prefix", "")
    assert "arn:aws:s3:::b/v1/packages/*" in done.stdout


def test_partition_is_in_every_arn():
    done = run("client", "--partition", "aws-cn")
    assert "arn:aws:" not in done.stdout
    assert "arn:aws-cn:iam::" in done.stdout
