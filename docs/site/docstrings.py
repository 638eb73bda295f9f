"""Docstrings for the API reference: rewrites what is plain text in them into Markdown.

An extension of griffe, which mkdocs.yml names. The docstrings are written to be read in a
terminal, where ``::`` announces an example.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Leaves out the ``::`` before an example, whose indentation says the same in Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            text = re.sub(r"^( *)::$", "", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)
