"""Sizes and durations read as documented; everything else is refused."""

from __future__ import annotations

import pytest

from kis.units import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1B", 1),
        ("1K", 1024),
        ("1KiB", 1024),
        ("1kB", 1000),
        ("64M", 64 << 20),
        ("64MiB", 64 << 20),
        ("64MB", 64_000_000),
        ("2G", 2 << 30),
        ("2GiB", 2 << 30),
        ("2GB", 2_000_000_000),
        ("1.5K", 1536),
        ("0.5KiB", 512),
    ],
)
def test_size_reads_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "K", "-1", "+1", "1 K", "1k", "1KB", "1T", "1mB", "0x10", "1e3", "nan", "inf", "1..5",
     "1.", ".5K", "1.3B", "1,5K", "١٢", "9" * 31, "1_000", " 1", "1\n"],
)  # fmt: skip
def test_size_refuses_everything_else(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be|out of bounds"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30.0), ("1.5", 1.5), ("1.5s", 1.5), ("500ms", 0.5), ("2m", 120.0), ("1h", 3600.0)],
)
def test_duration_reads_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "-1", "1 s", "1d", "nan", "inf", "1e3", "1.s", "9" * 31, "1sm", "1K"]
)
def test_duration_refuses_everything_else(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be|out of bounds"):
        parse_duration(text)
