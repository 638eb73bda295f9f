"""Responses of the web UI's server."""

from farcall.ui.guard import as_json


def test_lone_surrogates_are_escaped():
    assert as_json({"text": "half \ud800 é"}) == '{"text":"half \\ud800 é"}'.encode()
