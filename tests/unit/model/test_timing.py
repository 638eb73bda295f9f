"""All waits and limits in one class, with short values for tests."""

import inspect
import re
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from farcall.model.timing import Timing


def test_fast_values_are_not_longer():
    real, fast = Timing(), Timing.fast()
    assert fast != real
    for field in fields(Timing):
        short, long = getattr(fast, field.name), getattr(real, field.name)
        assert short <= long, field.name


def test_each_field_has_unit_and_description():
    text = inspect.getdoc(Timing)
    for field in fields(Timing):
        assert re.search(rf"^    {field.name}: \S", text, re.MULTILINE), field.name
        is_number = isinstance(field.default, int) and not field.name.endswith("_bytes")
        assert is_number or field.name.endswith(("_s", "_bytes")), field.name


def test_timing_is_immutable():
    assert replace(Timing.fast(), progress_s=3.0).progress_s == 3.0
    with pytest.raises(FrozenInstanceError):
        Timing().progress_s = 3.0
