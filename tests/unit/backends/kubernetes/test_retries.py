"""Attempts of a Job, and the failures that end it."""

import pytest

from tests.unit.backends.kubernetes.test_documents import made


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ({"retry_attempts": 1}, None),
        ({"retry_attempts": 2}, [("NotIn", [143])]),
        ({"retry_attempts": 10, "retry_on": "failure"}, [("In", [*range(59, 70), 137])]),
    ],
)
def test_retry_options_set_backoff_and_rules(options, rules):
    found = made(**options)["spec"]
    assert found["backoffLimitPerIndex"] == options["retry_attempts"] - 1
    if rules is None:
        assert "podFailurePolicy" not in found
        return
    first, *others = found["podFailurePolicy"]["rules"]
    assert first["action"] == "Ignore"
    codes = [each["onExitCodes"] for each in others]
    assert [(each["operator"], each["values"]) for each in codes] == rules
