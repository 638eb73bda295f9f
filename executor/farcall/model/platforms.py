"""Platform names: the values of the option ``backend``, and what texts call each. No I/O.

Apart from the options, because texts are needed where nobody has options yet, such as by
``farcall --help``, and these bring pydantic with them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

BackendName: TypeAlias = Literal["batch", "kubernetes"]
BATCH: BackendName = "batch"
KUBERNETES: BackendName = "kubernetes"

PLATFORMS = {BATCH: "Batch", KUBERNETES: "Kubernetes"}
"""What texts call them."""
