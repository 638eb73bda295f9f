"""One value with all waits and limits, and what its short ones are."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from farcall.model.timing import Timing


def test_the_short_ones_are_no_longer_than_the_real_ones():
    real, fast = Timing(), Timing.fast()
    assert fast != real
    for field in fields(Timing):
        short, long = getattr(fast, field.name), getattr(real, field.name)
        assert short <= long, field.name


def test_each_says_its_unit_unless_it_is_a_number_and_what_it_is_for():
    text = Timing.__doc__
    for field in fields(Timing):
        assert re.search(rf"^        {field.name}: \S", text, re.MULTILINE), field.name
        is_number = isinstance(field.default, int) and not field.name.endswith("_bytes")
        assert is_number or field.name.endswith(("_s", "_bytes")), field.name


def test_one_is_made_of_another_and_none_is_changed():
    assert replace(Timing.fast(), progress_s=3.0).progress_s == 3.0
    with pytest.raises(FrozenInstanceError):
        Timing().progress_s = 3.0
