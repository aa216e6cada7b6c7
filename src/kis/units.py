"""Sizes and durations, as numbers or as text.

Knows: the units and what counts as out of bounds. Must not know: which field it reads for.
Called by: profile (fields) and caller (flags, files), which add the field's name to the error.
"""

from __future__ import annotations

SIZE_UNITS = {
    "": 1,
    "B": 1,
    "K": 1 << 10,
    "KiB": 1 << 10,
    "kB": 10**3,
    "M": 1 << 20,
    "MiB": 1 << 20,
    "MB": 10**6,
    "G": 1 << 30,
    "GiB": 1 << 30,
    "GB": 10**9,
}
DURATION_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

# Longer than any number that is in bounds; int() refuses texts of thousands of digits by itself,
# with a message that would show the digits.
_LONGEST_NUMBER = 30


def parse_size(text: str) -> int:
    """Return the bytes that ``text`` says, as in ``64MiB``, ``1.5G``, ``500kB``, ``4096``.

    K, M, G and KiB, MiB, GiB are powers of 1024; kB, MB, GB of 1000. Raises ``ValueError``
    with words that fit after a field's name.
    """
    whole, fraction, unit = _split(text)
    if unit not in SIZE_UNITS:
        raise ValueError("must be a size such as 512MiB (units: K M G KiB MiB GiB kB MB GB)")
    scale = int("1" + "0" * len(fraction))
    scaled, rest = divmod(int(whole + fraction) * SIZE_UNITS[unit], scale)
    if rest:
        raise ValueError("must be a whole number of bytes")
    return scaled


def parse_duration(text: str) -> float:
    """Return the seconds that ``text`` says, as in ``300``, ``1.5s``, ``500ms``, ``2m``, ``1h``.

    Raises ``ValueError`` with words that fit after a field's name.
    """
    whole, fraction, unit = _split(text)
    if unit not in DURATION_UNITS:
        raise ValueError("must be a duration such as 30, 1.5s, 500ms or 2m (units: ms s m h)")
    return float(f"{whole}.{fraction or 0}") * DURATION_UNITS[unit]


def _split(text: str) -> tuple[str, str, str]:
    """Split into digits before the point, digits after it, and the unit."""
    number = text.rstrip("KMGiBkmsh")
    whole, point, fraction = number.partition(".")
    if len(number) > _LONGEST_NUMBER:
        raise ValueError("is out of bounds")
    if not _digits(whole) or (point and not _digits(fraction)):
        raise ValueError("must be a positive number, optionally with a unit")
    return whole, fraction, text[len(number) :]


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
