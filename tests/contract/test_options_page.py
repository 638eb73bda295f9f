"""docs/options.md has every option with its default, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from farcall.model.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "options.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \| .+ \|$", PAGE, re.MULTILINE))


def test_the_page_has_every_option_and_no_other():
    assert sorted(ROWS) == sorted(Settings.model_fields)


@pytest.mark.parametrize("option", Settings.model_fields)
def test_the_page_tells_its_default(option, monkeypatch):
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    default = Settings.model_fields[option].get_default(call_default_factory=True)
    assert ROWS[option] == (json.dumps(default) if isinstance(default, str) else repr(default))
