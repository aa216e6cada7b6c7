"""The one error type, its codes, and how foreign text enters a message.

Knows: the stable codes and their shape on a terminal and in JSON.
Must not know: who raises what. Called by: everything.
"""

from __future__ import annotations

import os
from enum import StrEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_SHOWN_CHARACTERS = 4096


class Code(StrEnum):
    """Stable names of what went wrong: ``subject_state``. Messages may change, codes do not."""

    ESCAPE_HATCH_FORBIDDEN = "escape_hatch_forbidden"
    PROFILE_UNSATISFIABLE = "profile_unsatisfiable"
    TIER_UNAVAILABLE = "tier_unavailable"
    PROFILE_INVALID = "profile_invalid"
    COMMAND_INVALID = "command_invalid"
    CONFIG_INVALID = "config_invalid"
    BASE_INVALID = "base_invalid"
    MOUNT_INVALID = "mount_invalid"
    EXEC_MISSING = "exec_missing"
    EXEC_FORBIDDEN = "exec_forbidden"
    CWD_INVALID = "cwd_invalid"
    ARGUMENT_TOO_LONG = "argument_too_long"
    SETUP_FAILED = "setup_failed"
    AGENT_UNREACHABLE = "agent_unreachable"
    ENFORCEMENT_MISMATCH = "enforcement_mismatch"
    CLEANUP_FAILED = "cleanup_failed"
    HOST_OUT_OF_SPACE = "host_out_of_space"
    INVARIANT_FAILED = "invariant_failed"


class SandboxError(Exception):
    """We could not keep a promise, or were asked for one that cannot be given.

    Raise by code, ``SandboxError(Code.MOUNT_INVALID, …)``; codes that callers often catch have
    a subclass, and raising the code raises that subclass. ``details`` holds only what JSON can.
    """

    code: Code
    message: str
    hint: str
    details: dict[str, object]

    def __new__(cls, code: Code, *_rest: object, **_named: object) -> SandboxError:
        chosen = _CLASS_OF_CODE.get(code, SandboxError)
        if cls in _CLASS_OF_CODE.values() and cls is not chosen:
            raise TypeError(f"{cls.__name__} does not stand for {code}")
        return Exception.__new__(chosen if cls is SandboxError else cls)

    def __init__(
        self,
        code: Code,
        message: str,
        hint: str = "",
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(code, message)
        self.code = Code(code)
        self.message = message
        self.hint = hint
        self.details = dict(details or {})

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        return (SandboxError, (self.code, self.message, self.hint, self.details))

    def to_dict(self) -> dict[str, object]:
        """Return ``code``, ``message``, ``hint``, ``details`` as JSON-ready values."""
        return {
            "code": str(self.code),
            "message": self.message,
            "hint": self.hint,
            "details": dict(self.details),
        }


class ErrEscapeHatchForbidden(SandboxError):  # noqa: N818 (the ordered name)
    """Confinement would end without the named hatch."""


class ErrProfileUnsatisfiable(SandboxError):  # noqa: N818 (the ordered name)
    """The chosen backend cannot enforce something that the profile relies on."""


class ErrTierUnavailable(SandboxError):  # noqa: N818 (the ordered name)
    """No usable backend for the tier on this machine."""


class ErrEnforcementMismatch(SandboxError):  # noqa: N818 (the ordered name)
    """What the kernel reports differs from the plan; the sandbox was killed."""


_CLASS_OF_CODE: dict[Code, type[SandboxError]] = {
    Code.ESCAPE_HATCH_FORBIDDEN: ErrEscapeHatchForbidden,
    Code.PROFILE_UNSATISFIABLE: ErrProfileUnsatisfiable,
    Code.TIER_UNAVAILABLE: ErrTierUnavailable,
    Code.ENFORCEMENT_MISMATCH: ErrEnforcementMismatch,
}


def escaped(text: bytes | str, *, also: str = "") -> str:
    r"""Return text in which every character is visible and none can steer a terminal.

    Bytes that are no UTF-8 become ``\xNN``, unprintable characters ``\n``-style or ``\uNNNN``,
    backslashes are doubled, so that two different inputs never look alike (the lesson of
    CVE-2023-28101, where escape codes hid permissions). Longer than 4096 characters is cut.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    shown = "".join(_visible(character, also) for character in text[:_SHOWN_CHARACTERS])
    return shown + "…" if len(text) > _SHOWN_CHARACTERS else shown


def quoted(text: bytes | str) -> str:
    """Return ``escaped`` text between single quotes, for a name or a path in a message."""
    return f"'{escaped(text, also=chr(39))}'"


def _visible(character: str, also: str) -> str:
    if character == "\\" or character in also:
        return "\\" + character
    if character.isprintable():
        return character
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    short = {9: "\\t", 10: "\\n", 13: "\\r"}.get(number)
    if short:
        return short
    if number < 0x80:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def os_reason(error: OSError) -> str:
    """Return the kernel's words for an errno, without the path (paths are quoted by us)."""
    return os.strerror(error.errno) if error.errno else type(error).__name__
