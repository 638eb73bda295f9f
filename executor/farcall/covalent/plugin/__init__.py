"""The Covalent executor plugin: the only code that imports Covalent."""

from __future__ import annotations

import importlib.util
import sys

if sys.modules.get("covalent") is None and importlib.util.find_spec("covalent") is None:
    raise ModuleNotFoundError(
        "The Covalent executor requires covalent. Run `pip install 'farcall[covalent]'`.",
        name="covalent",
    )
