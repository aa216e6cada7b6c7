"""The plan's records and their encoding: what the native launcher executes.

Knows: docs/wire.md, "Plan blob". Must not know: why a record is in a plan, or any descriptor.
Called by: linux and backends (make records), launch (encodes), readback (reads them).
"""

from __future__ import annotations

import struct

from kis.errors import Code, SandboxError, escaped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    # A record: its type, then its fields, ints or bytes. ``encode`` checks what they are.
    Step = tuple[Any, ...]

MAGIC = b"KISPLAN1"
MAX_BLOB_BYTES = 8 << 20
MAX_RECORDS = 4096
NONE = 0xFFFFFFFF

# Bits of MODE.
PRIVILEGED, LOOPBACK, NET_HOST, ROOT_READONLY, SUPERVISE = 1, 2, 4, 8, 16
# Attributes of a bind.
RDONLY, NOSUID, NODEV, NOEXEC = 1, 2, 4, 8
# Filters.
FILTER_PAYLOAD = 1
# Kinds of IDMAP entries.
MAP_UID, MAP_GID = 0, 1

(
    MODE,
    UID_MAP,
    GID_MAP,
    AGENT,
    HOSTNAME,
    SPACE,
    IDMAP,
    ROOT,
    DIR,
    FILE,
    LINK,
    BIND,
    SPACE_BIND,
    PROC,
    DEVPTS,
    MASK,
    CAPS,
    RLIMIT,
    FILTER,
    SYSCTL,
    OVERLAY,
) = range(1, 22)

# Per record: its name, the kinds of its fields (I u32, Q u64, s str without NUL, b any bytes,
# * the rest are u32), and the fields' names.
_LAYOUT: dict[int, tuple[str, str, tuple[str, ...]]] = {
    MODE: ("mode", "I", ("bits",)),
    UID_MAP: ("uid_map", "III", ("inside", "outside", "count")),
    GID_MAP: ("gid_map", "III", ("inside", "outside", "count")),
    AGENT: ("agent", "II", ("uid", "gid")),
    HOSTNAME: ("hostname", "s", ("name",)),
    SPACE: ("space", "QQ", ("bytes", "inodes")),
    IDMAP: ("idmap", "II*", ("index", "count", "entries")),
    ROOT: ("root", "IIIs", ("kind", "source", "idmap", "path")),
    DIR: ("dir", "IIIs", ("mode", "uid", "gid", "path")),
    FILE: ("file", "IIIsb", ("mode", "uid", "gid", "path", "content")),
    LINK: ("link", "ss", ("path", "target")),
    BIND: ("bind", "IIIss", ("source", "attributes", "idmap", "target", "path")),
    SPACE_BIND: ("space_bind", "IIIIs", ("mode", "uid", "gid", "attributes", "target")),
    PROC: ("proc", "s", ("target",)),
    DEVPTS: ("devpts", "s", ("target",)),
    MASK: ("mask", "s", ("target",)),
    CAPS: ("caps", "Q", ("mask",)),
    RLIMIT: ("rlimit", "IQQ", ("resource", "soft", "hard")),
    FILTER: ("filter", "I", ("number",)),
    SYSCTL: ("sysctl", "ss", ("name", "value")),
    OVERLAY: ("overlay", "IIss", ("source", "idmap", "target", "path")),
}
_OCTAL = frozenset({"mode"})
# Words for bits, lowest first, and for kinds.
_BITS = {
    "bits": ("privileged", "loopback", "host network", "root read-only", "supervise"),
    "attributes": ("ro", "nosuid", "nodev", "noexec"),
}
_ROOT_KINDS = ("skeleton", "overlay")

# Numbers come first in every record: one structure packs the record's head and all of them.
# Per record: that structure, how many numbers there are, and the kinds of the texts that follow.
_HEADS = {
    record: (
        struct.Struct("<HHI" + kinds.rstrip("sb*")),
        len(kinds.rstrip("sb*")),
        kinds.lstrip("IQ").rstrip("*"),
    )
    for record, (_, kinds, _) in _LAYOUT.items()
}
_HEAD_BYTES = 8
_u32 = struct.Struct("<I").pack


def idmap(index: int, entries: Sequence[tuple[int, int, int, int]]) -> Step:
    """Return an IDMAP record; each entry is kind, id on the file system, id outside, count."""
    return (IDMAP, index, len(entries), *(number for entry in entries for number in entry))


def encode(steps: Sequence[Step]) -> bytes:
    """Return the blob of these records, in their order.

    Raises ``invariant_failed`` for a record that docs/wire.md does not know, and
    ``profile_invalid`` where the whole is more than the launcher takes.
    """
    return assemble([record(step) for step in steps])


def record(step: Step) -> bytes:
    """Return one record, encoded. Raises as ``encode``."""
    parts: list[bytes] = []
    try:
        _encode_record(step, parts)
    except (struct.error, TypeError, KeyError, ValueError) as error:
        raise SandboxError(Code.INVARIANT_FAILED, f"a malformed plan record: {error}") from error
    return b"".join(parts)


def assemble(records: Sequence[bytes]) -> bytes:
    """Return the blob of encoded records. Raises as ``encode``."""
    body = b"".join(records)
    total = 16 + len(body)
    if total > MAX_BLOB_BYTES or len(records) > MAX_RECORDS:
        raise SandboxError(
            Code.PROFILE_INVALID,
            f"the plan takes {total} bytes in {len(records)} records; "
            f"{MAX_BLOB_BYTES} in {MAX_RECORDS} are the most",
            "Fewer mounts, or smaller secrets.",
        )
    return MAGIC + struct.pack("<II", total, len(records)) + body


def _encode_record(step: Step, parts: list[bytes]) -> None:
    head, numbers, kinds = _HEADS[step[0]]
    if step[0] == IDMAP:
        numbers = len(step) - 1
        head = struct.Struct(f"<HHI{numbers}I")
    length = head.size - _HEAD_BYTES
    at = len(parts)
    parts.append(b"")
    for kind, text in zip(kinds, step[numbers + 1 :], strict=True):
        if type(text) is not bytes or (kind == "s" and b"\0" in text):
            raise ValueError(f"record {step[0]} has text of a wrong kind")
        length += 4 + len(text)
        parts += (_u32(len(text)), text)
    parts[at] = head.pack(step[0], 0, length, *step[1 : numbers + 1])


def describe(step: Step) -> str:
    """Return a record in words: one line, every character visible, a file's content only sized."""
    name, kinds, fields = _LAYOUT[step[0]]
    values = step[1:]
    shown = []
    for position, value in enumerate(values):
        field = fields[min(position, len(fields) - 1)]
        if kinds[min(position, len(kinds) - 1)] == "b" and isinstance(value, bytes):
            shown.append(f"{field}={len(value)} bytes")
        elif isinstance(value, bytes):
            shown.append(f"{field}={escaped(value, also=' ')}")
        elif field in _BITS:
            words = [word for bit, word in enumerate(_BITS[field]) if value >> bit & 1]
            text = ",".join(words) or "none"
            shown.append(text if field == "bits" else f"{field}={text}")
        elif field == "kind":
            shown.append(f"{field}={_ROOT_KINDS[value]}")
        elif field in _OCTAL:
            shown.append(f"{field}={value:04o}")
        elif value != NONE:
            shown.append(f"{field}={value}")
    return " ".join((name, *shown))
