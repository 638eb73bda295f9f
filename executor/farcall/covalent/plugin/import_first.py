"""Import of Covalent before the rest of the Covalent integration.

Covalent loads its plugins while it is imported. If the plugin's own module triggers that import,
the module is only partly initialized and Covalent would warn; `covalent_options.register` fixes
that.
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
