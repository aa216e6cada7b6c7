"""Run a command inside a boundary that the caller chose, and prove which one it got.

Knows: the public names and where they live. Must not know: anything else; it loads a room only
when a name of it is used. Called by: users of the library.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kis.api import AsyncEngine, Engine
    from kis.command import Command, CommandFailed, Outcome, Usage
    from kis.errors import (
        Code,
        ErrEnforcementMismatch,
        ErrEscapeHatchForbidden,
        ErrProfileUnsatisfiable,
        ErrTierUnavailable,
        SandboxError,
    )
    from kis.limits import Limits
    from kis.profile import (
        Device,
        EscapeHatch,
        Mount,
        NetworkPolicy,
        Profile,
        Secret,
        Tmpfs,
    )
    from kis.receipt import Entry, Receipt
    from kis.vocabulary import UNLIMITED, Demand, MountMode, NetworkMode, Reason, Status, Tier

__version__ = "0.1.0"

_ROOMS = {
    "command": ("Command", "CommandFailed", "Outcome", "Usage"),
    "errors": (
        "Code",
        "ErrEnforcementMismatch",
        "ErrEscapeHatchForbidden",
        "ErrProfileUnsatisfiable",
        "ErrTierUnavailable",
        "SandboxError",
    ),
    "api": ("AsyncEngine", "Engine"),
    "limits": ("Limits",),
    "profile": (
        "Device",
        "EscapeHatch",
        "Mount",
        "NetworkPolicy",
        "Profile",
        "Secret",
        "Tmpfs",
    ),
    "receipt": ("Entry", "Receipt"),
    "vocabulary": (
        "UNLIMITED",
        "Demand",
        "MountMode",
        "NetworkMode",
        "Reason",
        "Status",
        "Tier",
    ),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "UNLIMITED",
    "AsyncEngine",
    "Code",
    "Command",
    "CommandFailed",
    "Demand",
    "Device",
    "Engine",
    "Entry",
    "ErrEnforcementMismatch",
    "ErrEscapeHatchForbidden",
    "ErrProfileUnsatisfiable",
    "ErrTierUnavailable",
    "EscapeHatch",
    "Limits",
    "Mount",
    "MountMode",
    "NetworkMode",
    "NetworkPolicy",
    "Outcome",
    "Profile",
    "Reason",
    "Receipt",
    "SandboxError",
    "Secret",
    "Status",
    "Tier",
    "Tmpfs",
    "Usage",
    "__version__",
]


def __getattr__(name: str) -> object:
    room = _ROOM_OF.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{room}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
