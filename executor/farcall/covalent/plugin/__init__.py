"""The Covalent executor plugin: the only code that imports Covalent."""

from __future__ import annotations

import importlib.util
import sys

from farcall.model.names import install

if sys.modules.get("covalent") is None and importlib.util.find_spec("covalent") is None:
    raise ModuleNotFoundError(
        f"The Covalent executor requires covalent. {install('covalent')}",
        name="covalent",
    )
