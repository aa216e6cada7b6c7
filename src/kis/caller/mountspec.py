"""The two ways to write a mount on a command line.

Knows: ``SRC[:DST][:ro|rw]`` and ``source=…,target=…,mode=…,owner=…``, and how to open SRC.
Must not know: flags, files, what is mounted how. Called by: config and profilefile.
"""

from __future__ import annotations

import os

from kis.caller.files import config_invalid, nearest_hint
from kis.errors import Code, SandboxError, os_reason, quoted
from kis.frozen import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    Admitted = TypeVar("Admitted")

_LONG_KEYS = ("source", "target", "mode", "owner")
_LONG_HINT = 'Write --mount source=SRC,target=DST; quote as in CSV: "source=a,b".'


class MountSpec(Frozen):
    """A mount as it was written: paths as bytes, ``owner`` as host uid and gid."""

    __slots__ = ("mode", "owner", "source", "target")
    source: bytes
    target: bytes
    mode: str
    owner: tuple[int, int] | None

    def __init__(
        self,
        source: bytes,
        target: bytes | None = None,
        mode: str = "ro",
        owner: tuple[int, int] | None = None,
    ) -> None:
        self._set("source", source, "target", target or os.path.abspath(source))
        self._set("mode", mode, "owner", owner)


def short_mount(text: str, flag: str) -> MountSpec:
    """Read ``SRC[:DST][:ro|rw]``. DST is SRC's absolute path when not said.

    Nothing is guessed: a path with a colon does not fit here and is refused with
    ``config_invalid`` pointing to the long form.
    """
    parts = text.split(":")
    mode = parts.pop() if len(parts) > 1 and parts[-1] in ("ro", "rw") else "ro"
    fits = len(parts) == 1 or (len(parts) == 2 and parts[1].startswith("/"))
    if not fits or not parts[0]:
        raise config_invalid(flag, f"{quoted(text)} is not SRC[:DST][:ro|rw]", _LONG_HINT)
    target = _encoded(parts[1]) if len(parts) == 2 else None
    return MountSpec(_encoded(parts[0]), target, mode)


def either_mount(text: str, flag: str) -> MountSpec:
    """Read the long form where the text starts like one, else the short form."""
    first = text.removeprefix('"').partition("=")[0]
    if first in _LONG_KEYS and "=" in text:
        return long_mount(text, flag)
    return short_mount(text, flag)


def long_mount(text: str, flag: str) -> MountSpec:
    """Read ``source=SRC[,target=DST][,mode=ro|rw][,owner=UID[:GID]]`` with CSV quoting."""
    values: dict[str, str] = {}
    for field in _csv_fields(text, flag):
        key, equals, value = field.partition("=")
        if key not in _LONG_KEYS:
            hint = nearest_hint(key, _LONG_KEYS)
            raise config_invalid(flag, f"unknown key {quoted(key)} in {quoted(text)}", hint)
        if key in values or not equals or not value:
            raise config_invalid(flag, f"{key} must be said once, with a value, in {quoted(text)}")
        values[key] = value
    if "source" not in values:
        raise config_invalid(flag, f"source is missing in {quoted(text)}", _LONG_HINT)
    mode = values.get("mode", "ro")
    if mode not in ("ro", "rw"):
        raise config_invalid(flag, f"mode must be ro or rw in {quoted(text)}")
    target = _encoded(values["target"]) if "target" in values else None
    owner = parse_owner(values["owner"], flag) if "owner" in values else None
    return MountSpec(_encoded(values["source"]), target, mode, owner)


def parse_owner(text: str, field: str) -> tuple[int, int]:
    """Read ``UID[:GID]``; GID is UID when not said."""
    uid, colon, gid = text.partition(":")
    numbers = (uid, gid if colon else uid)
    if not all(part.isascii() and part.isdigit() and len(part) <= 10 for part in numbers):
        raise config_invalid(field, f"owner {quoted(text)} is not UID[:GID]")
    return int(numbers[0]), int(numbers[1])


def open_path(path: bytes, what: str) -> int:
    """Open a mount source or device as ``O_PATH``; a link is followed, here and never again.

    Raises ``mount_invalid`` naming the path.
    """
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else "a NUL in the path"
        raise SandboxError(
            Code.MOUNT_INVALID,
            f"{what} {quoted(path)} cannot be opened: {reason}",
            details={"field": what, "source": quoted(path)},
        ) from error


def admitted(descriptor: int, admit: Callable[[int], Admitted]) -> Admitted:
    """Have the engine admit a descriptor. It keeps a copy of its own; ours is closed."""
    try:
        return admit(descriptor)
    finally:
        os.close(descriptor)


def _csv_fields(text: str, flag: str) -> Iterator[str]:
    """Yield the fields of one CSV record (RFC 4180): a field in quotes doubles quotes within."""
    at = 0
    while True:
        if text[at : at + 1] == '"':
            value, end = _quoted_field(text, at + 1, flag)
        else:
            end = text.find(",", at)
            end = len(text) if end < 0 else end
            value = text[at:end]
        yield value
        if end == len(text):
            return
        if text[end] != ",":
            raise config_invalid(flag, f"text follows a closing quote in {quoted(text)}")
        at = end + 1


def _quoted_field(text: str, at: int, flag: str) -> tuple[str, int]:
    """Return the field that starts after an opening quote, and where its closing quote ends."""
    value = ""
    while (end := text.find('"', at)) >= 0:
        value, at = value + text[at:end], end + 1
        if text[at : at + 1] != '"':
            return value, at
        value, at = value + '"', at + 1
    raise config_invalid(flag, f"a quote is not closed in {quoted(text)}")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
