"""What is read from the files of control groups, of version 2 and 1."""

from __future__ import annotations

import pytest

from farcall_runtime import memory


@pytest.fixture
def peaks(tmp_path, monkeypatch):
    """Let the two versions' files be looked up in a folder; return their paths."""
    paths = tuple(tmp_path / name for name in ("memory.peak", "memory.max_usage_in_bytes"))
    for known, path in zip(memory._PEAKS, paths, strict=True):
        assert known.endswith(f"/{path.name}")
    monkeypatch.setattr(memory, "_PEAKS", tuple(map(str, paths)))
    return paths


@pytest.mark.parametrize("version", [0, 1])
def test_the_peak_is_read_from_either_version(peaks, version):
    peaks[version].write_text("268435456\n")
    assert memory.peak_bytes() == 256 * 2**20


def test_a_kernel_that_does_not_tell_the_peak_is_none(peaks):
    assert memory.peak_bytes() is None
