"""Sizes and durations as people write them; ambiguous ones are rejected."""

import re

import pytest

from farcall.model.quantities import size_bytes, span_s


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4_000_000_000),
        ("4GiB", 4 * 2**30),
        ("512MiB", 512 * 2**20),
        ("512 mib", 512 * 2**20),
        (" 1.5gib ", 1.5 * 2**30),
        (".5TB", 5e11),
        ("10kB", 10_000),
        ("10KB", 10_000),
        ("10KiB", 10_240),
        ("100B", 100),
    ],
)
def test_size_is_parsed_to_the_byte(text, size):
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4G", "the unit G is ambiguous: use 4GiB (2^30 bytes each) or 4GB (10^9 bytes each)"),
        ("4g", "the unit g is ambiguous: use 4GiB"),
        ("1.5Mi", "the unit Mi is ambiguous: use 1.5MiB (2^20 bytes each) or 1.5MB (10^6"),
        ("4Gb", "the unit Gb is ambiguous"),
        ("4Gib", "the unit Gib is ambiguous"),
        ("4", "use a unit, such as"),
        ("", "use a unit, such as"),
        ("-4GiB", "use a unit, such as"),
        ("4 Gigabytes", "use a unit, such as"),
        ("1GiB512MiB", "use a unit, such as"),
        ("4EB", "use a unit, such as"),
    ],
)
def test_inexact_size_is_rejected(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        size_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1h", 3600),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1.5h", 5400),
        ("2d", 172_800),
        ("1w2d3h4m5.5s", 604_800 + 2 * 86_400 + 3 * 3600 + 4 * 60 + 5.5),
        (" 10 m ", 600),
    ],
)
def test_duration_is_parsed_to_seconds(text, seconds):
    assert span_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "90", "h", "30m1h", "1h1h", "1:30", "-1h", "1y", "1H", "abc", "1h30", "5ms"]
)
def test_invalid_duration_is_rejected(text):
    with pytest.raises(ValueError, match=r"use units, such as 90s, 30m, 1h30m"):
        span_s(text)
