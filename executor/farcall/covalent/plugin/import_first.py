"""Imports Covalent before the rest of the Covalent door.

Covalent loads its plugins as it is imported. Where it is the plugin's own module that imports it,
that module is half made by then, and Covalent would warn; `covalent_options.register` fixes it.
"""

from __future__ import annotations

import logging
import sys

if "covalent" not in sys.modules:
    _before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        import covalent  # noqa: F401  # for its effects
    finally:
        logging.disable(_before)
