"""Details of one job, as ``farcall describe`` prints them."""

import pytest

from farcall.cli.job_detail_view import _excess
from farcall.model.names import EMULATOR_IMAGE


@pytest.mark.parametrize(
    ("image", "peak_mib", "limit", "is_reported"),
    [
        (EMULATOR_IMAGE, 1025, None, True),
        (EMULATOR_IMAGE, 1024, None, False),
        (EMULATOR_IMAGE, 1025, 2**30, False),
        ("repository/image:1", 1025, None, False),
    ],
)
def test_memory_above_request_is_reported(image, peak_mib, limit, is_reported):
    used = {"peak_memory_bytes": peak_mib * 2**20, "memory_limit_bytes": limit}
    assert bool(_excess(used, {"image": image, "memory_mib": 1024})) is is_reported
