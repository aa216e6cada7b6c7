"""Small files that a caller names: read whole, bounded, with the path in the error.

Knows: how to open and how much to read. Must not know: what is in them.
Called by: config and profilefile.
"""

from __future__ import annotations

import os
import stat

from kis.errors import Code, SandboxError, os_reason, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def read_named_file(
    path: bytes, most_bytes: int, what: str, *, only_regular: bool = False
) -> bytes:
    """Return the content of a file of at most ``most_bytes``.

    ``what`` names the flag or field in the error. Raises ``config_invalid``; a longer file is
    refused without reading further, and no content is ever part of the message. ``only_regular``
    refuses a pipe or device at once, without waiting for whoever may write to it.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK | os.O_NOCTTY if only_regular else 0)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else "a NUL in the path"
        raise config_invalid(what, f"{quoted(path)} cannot be opened: {reason}") from None
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise config_invalid(what, f"{quoted(path)} is a directory")
        if only_regular and not stat.S_ISREG(found.st_mode):
            raise config_invalid(what, f"{quoted(path)} is no regular file")
        content = _read(descriptor, most_bytes + 1) if found.st_size <= most_bytes else None
    except OSError as error:
        reason = os_reason(error)
        raise config_invalid(what, f"{quoted(path)} cannot be read: {reason}") from error
    finally:
        os.close(descriptor)
    if content is None or len(content) > most_bytes:
        raise config_invalid(what, f"{quoted(path)} is larger than {most_bytes} bytes")
    return content


def config_invalid(field: str, what: str, hint: str = "") -> SandboxError:
    """Return the error of a flag or a key of a profile file."""
    return SandboxError(Code.CONFIG_INVALID, f"{field}: {what}", hint, {"field": field})


def one_of(value: str, words: Iterable[str], field: str) -> str:
    """Return the value if it is one of the words, else raise ``config_invalid``."""
    known = [str(word) for word in words]
    if value not in known:
        hint = nearest_hint(value, known)
        raise config_invalid(field, f"{quoted(value)} is none of: {' '.join(known)}", hint)
    return value


def nearest_hint(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the nearest known word, or all of them."""
    from difflib import get_close_matches

    words = sorted(known)
    near = get_close_matches(word, words, n=1)
    return f"Did you mean {near[0]}?" if near else f"Known: {' '.join(words)}."


def _read(descriptor: int, most_bytes: int) -> bytes:
    chunks: list[bytes] = []
    rest = most_bytes
    while rest > 0 and (chunk := os.read(descriptor, min(rest, 1 << 16))):
        chunks.append(chunk)
        rest -= len(chunk)
    return b"".join(chunks)
