"""Memory values read from control groups of versions 2 and 1."""

from __future__ import annotations

import pytest

from farcall_runtime import memory


@pytest.fixture
def peaks(tmp_path, monkeypatch):
    """Redirect the files of both versions to a folder; return their paths."""
    paths = tuple(tmp_path / name for name in ("memory.peak", "memory.max_usage_in_bytes"))
    for known, path in zip(memory._PEAKS, paths, strict=True):
        assert known.endswith(f"/{path.name}")
    monkeypatch.setattr(memory, "_PEAKS", tuple(map(str, paths)))
    return paths


@pytest.mark.parametrize("version", [0, 1])
def test_peak_is_read_from_either_version(peaks, version):
    peaks[version].write_text("268435456\n")
    assert memory.peak_bytes() == 256 * 2**20


def test_missing_peak_file_gives_none(peaks):
    assert memory.peak_bytes() is None
