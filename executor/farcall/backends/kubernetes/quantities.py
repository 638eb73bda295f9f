"""Quantities of resources in a cluster's documents. No I/O.

Source:
    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_QUANTITY = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?)([a-zA-Z]{0,2})")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_UNITS = {
    **{unit: 10.0**power for unit, power in _DECIMAL.items()},
    **{f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", 1)},
}
_MIB = 1024 * 1024
_GPU = re.compile(r"(nvidia\.com|amd\.com)/gpu")


def quantity(value: object) -> float:
    """Parse a quantity such as ``500m`` or ``4Gi``; 0 if invalid."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None or match[2] not in _UNITS:
        return 0.0
    return float(match[1]) * _UNITS[match[2]]


def resources(limits: Mapping[str, Any]) -> tuple[float, int, int]:
    """Return the vCPUs, MiB of memory and GPUs of a container's limits."""
    gpus = sum(quantity(value) for name, value in limits.items() if _GPU.fullmatch(name))
    memory = math.floor(quantity(limits.get("memory", 0)) / _MIB)
    return round(quantity(limits.get("cpu", 0)), 6), memory, int(gpus)
