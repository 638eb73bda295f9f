"""docs/options.md lists exactly farcall's options, with their defaults."""

import json
import re
from pathlib import Path

import pytest

from farcall.config.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "options.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \| .+ \|$", PAGE, re.MULTILINE))


def test_page_lists_exactly_all_options():
    assert sorted(ROWS) == sorted(Settings.model_fields)


@pytest.mark.parametrize("option", Settings.model_fields)
def test_page_shows_the_default(option, monkeypatch):
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    default = Settings.model_fields[option].get_default(call_default_factory=True)
    assert ROWS[option] == (json.dumps(default) if isinstance(default, str) else repr(default))
