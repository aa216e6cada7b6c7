"""The limits of a profile: defaults, bounds, and how "unlimited" is said.

Knows: the fields, their units and bounds. Must not know: which mechanism enforces one.
Called by: profile (holds it), caller (makes it), engine and backends (read it).
"""

from __future__ import annotations

from kis.errors import Code, SandboxError
from kis.frozen import Frozen
from kis.units import parse_duration, parse_size
from kis.vocabulary import Demand, Tier, Unlimited

DEFAULT_OPEN_FILES = 1024
DEFAULT_WALL_SECONDS = 300.0
DEFAULT_GRACE_SECONDS = 1.0
DEFAULT_OUTPUT_BYTES = 64 << 20

MAX_OPEN_FILES = 1 << 20  # fs.nr_open as the kernel sets it
MAX_SECONDS = 366 * 24 * 3600.0
MAX_OUTPUT_BYTES = 1 << 40


class Limits(Frozen):
    """Bounds of what a payload can use; finite when nothing is said.

    ``None`` is the default (1024 open files, 300 s of wall time per command, 64 MiB of captured
    output), ``UNLIMITED`` lifts a limit. Sizes may be text (``"64MiB"``), durations too
    (``"2m"``). ``grace_seconds`` is the time from SIGTERM to SIGKILL when the wall time is up.
    Raises ``profile_invalid``.
    """

    __slots__ = ("grace_seconds", "open_files", "output_bytes", "wall_seconds")
    open_files: int | Unlimited | None
    wall_seconds: float | Unlimited | None
    grace_seconds: float | None
    output_bytes: int | Unlimited | None

    def __init__(
        self,
        open_files: int | Unlimited | None = None,
        wall_seconds: float | str | Unlimited | None = None,
        output_bytes: int | str | Unlimited | None = None,
        grace_seconds: float | str | None = None,
    ) -> None:
        self._set(
            "open_files",
            _open_files(open_files),
            "wall_seconds",
            _seconds(wall_seconds, "limits.wall_seconds"),
            "output_bytes",
            _output_bytes(output_bytes),
            "grace_seconds",
            _grace_seconds(grace_seconds),
        )

    @property
    def named(self) -> frozenset[str]:
        """The fields that were said, ``UNLIMITED`` included."""
        return frozenset(name for name in self._fields() if getattr(self, name) is not None)

    @property
    def resolved_open_files(self) -> int | None:
        """Number of descriptors, or ``None`` for as many as the host allows."""
        if isinstance(self.open_files, Unlimited):
            return None
        return DEFAULT_OPEN_FILES if self.open_files is None else self.open_files

    @property
    def resolved_wall_seconds(self) -> float | None:
        """Seconds of one command, or ``None`` for no end."""
        if isinstance(self.wall_seconds, Unlimited):
            return None
        return DEFAULT_WALL_SECONDS if self.wall_seconds is None else self.wall_seconds

    @property
    def resolved_grace_seconds(self) -> float:
        """Seconds between SIGTERM and SIGKILL."""
        return DEFAULT_GRACE_SECONDS if self.grace_seconds is None else self.grace_seconds

    @property
    def resolved_output_bytes(self) -> int | None:
        """Bytes of standard output and error together, or ``None`` for no bound."""
        if isinstance(self.output_bytes, Unlimited):
            return None
        return DEFAULT_OUTPUT_BYTES if self.output_bytes is None else self.output_bytes

    def demands(self, tier: Tier) -> frozenset[Demand]:
        """Return the limits relied on. The process tier has no default but time and output."""
        demands = set()
        if self.resolved_wall_seconds is not None:
            demands.add(Demand.WALL_TIME)
        if self.resolved_output_bytes is not None:
            demands.add(Demand.OUTPUT_CAP)
        if self.resolved_open_files is not None and (
            tier is not Tier.PROCESS or self.open_files is not None
        ):
            demands.add(Demand.OPEN_FILES)
        return frozenset(demands)


def _open_files(value: object) -> int | Unlimited | None:
    if value is None or isinstance(value, Unlimited):
        return value
    return _whole(value, "limits.open_files", MAX_OPEN_FILES)


def _output_bytes(value: object) -> int | Unlimited | None:
    field = "limits.output_bytes"
    if value is None or isinstance(value, Unlimited):
        return value
    if isinstance(value, str):
        try:
            value = parse_size(value)
        except ValueError as error:
            raise _invalid(field, str(error)) from None
    return _whole(value, field, MAX_OUTPUT_BYTES)


def _grace_seconds(value: object) -> float | None:
    seconds = _seconds(value, "limits.grace_seconds")
    if isinstance(seconds, Unlimited):
        raise _invalid("limits.grace_seconds", "cannot be unlimited")
    return seconds


def _seconds(value: object, field: str) -> float | Unlimited | None:
    if value is None or isinstance(value, Unlimited):
        return value
    if isinstance(value, str):
        try:
            value = parse_duration(value)
        except ValueError as error:
            raise _invalid(field, str(error)) from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _invalid(field, "must be a number of seconds")
    # Compared before it is turned into a float: NaN fails every comparison, a huge int the turn.
    if not 0 < value <= MAX_SECONDS:
        raise _invalid(field, f"must be more than 0 and at most {MAX_SECONDS:.0f} seconds")
    return float(value)


def _whole(value: object, field: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid(field, "must be a whole number")
    if not 1 <= value <= most:
        raise _invalid(field, f"must be at least 1 and at most {most}")
    return value


def _invalid(field: str, what: str) -> SandboxError:
    return SandboxError(Code.PROFILE_INVALID, f"{field} {what}", details={"field": field})
