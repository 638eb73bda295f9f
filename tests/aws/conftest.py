"""Fixtures of ``make test-aws``; see `docs/development.md`."""

from __future__ import annotations

import os

import boto3
import pytest

from farcall.testing import Timing
from tests import emulators
from tests.aws import report
from tests.aws.account import STACK, Account
from tests.support.timing import marked

SELECT = "FARCALL_TEST_AWS"
FIRST = "test_deploy_creates_stack"
_outcomes: dict[str, str] = {}
_accounts: list[Account] = []


@pytest.fixture(scope="session")
def opened(tmp_path_factory):
    """The account; its stack is deleted in any case."""
    selected = os.environ.get(SELECT, "")
    if selected not in ("1", "emulator"):
        pytest.skip(
            f"{SELECT} is {selected!r}; set it to 1 to use the account of your AWS credentials, "
            "which costs money, or to emulator for a dry run on the local AWS emulator"
        )
    options = tmp_path_factory.mktemp("options") / "farcall.toml"
    options.touch()
    file = {"FARCALL_CONFIG": str(options)}
    if selected == "1":
        region = boto3.Session().region_name
        if region is None:
            pytest.fail("no region is set; set AWS_REGION to a region without a farcall stack")
        kept = {k: v for k, v in os.environ.items() if k.startswith("AWS_")}
        yield from _used(
            Account(None, {**kept, "HOME": os.environ["HOME"], "AWS_REGION": region, **file})
        )
        return
    with emulators.start(empty=True, strict=True) as aws:
        yield from _used(Account(aws, {**aws.environment, **file}))


def _used(account):
    with pytest.MonkeyPatch.context() as changes:
        for name, value in account.environment.items():
            changes.setenv(name, value)
        # The stack of another user of the account must not be changed or deleted.
        there = account.remains()
        if there:
            pytest.fail(f"{', '.join(there)} exist; use another region, or delete them")
    _accounts.append(account)
    yield account
    with pytest.MonkeyPatch.context() as changes:
        for name, value in account.environment.items():
            changes.setenv(name, value)
        account.farcall("destroy", "--yes", "--empty-bucket", "--name", STACK)


@pytest.fixture
def account(request, opened, monkeypatch):
    """The account, in the environment; skips the test without a stack or a budget."""
    if opened.emulator is None:  # credentials may be an instance's
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    for name, value in opened.environment.items():
        monkeypatch.setenv(name, value)
    if not opened.options and request.node.name != FIRST:
        pytest.skip(f"{FIRST} failed")
    reason = opened.exhausted()
    if reason:
        pytest.skip(reason)
    return opened


@pytest.fixture
def timing(request):
    """The real waits and limits, also on the emulator."""
    return marked(Timing(), request)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the outcome of each test."""
    if report.when == "call" or report.skipped:
        _outcomes[report.nodeid.rpartition("::")[2]] = report.outcome


def pytest_sessionfinish() -> None:
    """Write the report, if an account was used."""
    for account in _accounts:
        report.PATH.parent.mkdir(exist_ok=True)
        report.PATH.write_text(report.text(account.facts(), _outcomes, account.observed))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the path of the report."""
    if _accounts:
        terminalreporter.write_line(f"The report is in {report.PATH}")
