"""Error messages use no word that only farcall's source explains."""

import ast
import re
from pathlib import Path

import farcall
from farcall.model.errors import FarcallError

INTERNAL = re.compile(r"\b(bundles?|envelopes?|ledgers?|manifests?|outcomes?)\b")
ERRORS = {
    name
    for name in farcall.__all__
    if isinstance(kind := getattr(farcall, name), type) and issubclass(kind, FarcallError)
}


def messages():
    """Yield the place and text of each string in a ``raise`` of a farcall error."""
    for path in sorted(Path(farcall.__file__).parent.rglob("*.py")):
        for raised in ast.walk(ast.parse(path.read_text())):
            call = raised.exc if isinstance(raised, ast.Raise) else None
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ERRORS:
                for each in ast.walk(call):
                    if isinstance(each, ast.Constant) and isinstance(each.value, str):
                        yield f"{path.name}:{each.lineno}", each.value


def test_messages_have_no_internal_nouns():
    found = list(messages())
    assert len(found) > 500
    assert [(place, text) for place, text in found if INTERNAL.search(text)] == []
