"""The profile file: TOML, strictly decoded.

Knows: its keys and types. Must not know: flags, and what a setting grants.
Called by: config, and only when there is a file: msgspec is imported here.
"""

from __future__ import annotations

import os
import re
import tomllib

import msgspec

from kis.caller.bases import NAMED_BASES
from kis.caller.files import config_invalid, nearest_hint, one_of, read_named_file
from kis.caller.mountspec import MountSpec, parse_owner
from kis.errors import escaped, quoted
from kis.vocabulary import MountMode, NetworkMode, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kis.caller.config import Settings

MOST_BYTES = 64 << 10
# The decoder takes time that grows with the cube of a dotted key's parts.
MOST_DOTS = 16
# Texts and comments, where a dot parts no key. What is not closed reaches to its end at most once.
_NO_KEY = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"{3,5}|\Z)'
    r"|'''.*?(?:'{3,5}|\Z)"
    r'|"(?:\\[^\n]|[^"\\\n])*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)


class NetworkTable(msgspec.Struct, forbid_unknown_fields=True):
    mode: str | None = None
    allow: list[str] = []


class MountTable(msgspec.Struct, forbid_unknown_fields=True):
    source: str
    target: str | None = None
    mode: str = "ro"
    owner: str | int | None = None


class TmpfsTable(msgspec.Struct, forbid_unknown_fields=True):
    target: str


class SecretTable(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    file: str


class LimitsTable(msgspec.Struct, forbid_unknown_fields=True):
    open_files: int | None = None
    wall_seconds: float | str | None = None
    grace_seconds: float | str | None = None
    output_bytes: int | str | None = None
    unlimited: list[str] = []


class EscapeHatchTable(msgspec.Struct, forbid_unknown_fields=True):
    allow_process_tier: bool = False
    allow_net_host: bool = False
    allow_emulation: bool = False


class ProfileTable(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file; see docs/profile.md for what each key grants."""

    tier: str | None = None
    backend: str | None = None
    base: str | None = None
    user: str | int | None = None
    cwd: str | None = None
    writable_root: bool = False
    capabilities: list[str] = []
    devices: list[str] = []
    network: NetworkTable = msgspec.field(default_factory=NetworkTable)
    mounts: list[MountTable] = []
    tmpfs: list[TmpfsTable] = []
    secrets: list[SecretTable] = []
    env: dict[str, str] = {}
    limits: LimitsTable = msgspec.field(default_factory=LimitsTable)
    escape_hatch: EscapeHatchTable = msgspec.field(default_factory=EscapeHatchTable)


_TABLES: dict[str, type[msgspec.Struct]] = {
    "network": NetworkTable,
    "mounts": MountTable,
    "tmpfs": TmpfsTable,
    "secrets": SecretTable,
    "limits": LimitsTable,
    "escape_hatch": EscapeHatchTable,
}


def read_profile_file(path: bytes) -> ProfileTable:
    """Return the decoded file.

    Raises ``config_invalid`` naming the field: no regular file, not TOML, larger than
    64 KiB, an unknown key (with the nearest known one), a wrong type. Values are never part of
    the message.
    """
    content = read_named_file(path, MOST_BYTES, "--profile", only_regular=True)
    try:
        text = content.decode("utf-8")
        _refuse_deep_keys(text, path)
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise config_invalid("--profile", f"{quoted(path)} is not TOML{_place(error)}") from None
    _refuse_unknown_keys(raw)
    try:
        return msgspec.convert(raw, ProfileTable)
    except msgspec.ValidationError as error:
        what, _, field = str(error).partition(" - at `$.")
        raise config_invalid(escaped(field.rstrip("`")) or "--profile", escaped(what)) from None


def apply_profile_file(settings: Settings, path: bytes) -> None:
    """Put what the file says into the settings; its relative paths start at its directory."""
    table = read_profile_file(path)
    directory = os.path.dirname(os.path.abspath(path))

    def here(text: str) -> bytes:
        return os.path.join(directory, _encoded(text))

    _apply_words(settings, table)
    if table.base is not None:
        named = table.base in NAMED_BASES
        settings.base = _encoded(table.base) if named else here(table.base)
    for at, mount in enumerate(table.mounts):
        settings.mount(_mount_spec(mount, here(mount.source), f"mounts[{at}]"))
    settings.tmpfs.update({_encoded(row.target): None for row in table.tmpfs})
    settings.devices.update({here(device): None for device in table.devices})
    settings.secrets.update({row.name: here(row.file) for row in table.secrets})
    settings.env.update({_encoded(k): _encoded(v) for k, v in table.env.items()})
    _apply_limits(settings, table.limits)


def _apply_words(settings: Settings, table: ProfileTable) -> None:
    if table.tier is not None:
        settings.tier = Tier(one_of(table.tier, Tier, "tier"))
    if table.network.mode is not None:
        settings.network_mode = one_of(table.network.mode, NetworkMode, "network.mode")
    settings.allow.extend(table.network.allow)
    settings.backend = table.backend
    settings.user = table.user
    settings.cwd = None if table.cwd is None else _encoded(table.cwd)
    settings.writable_root = table.writable_root
    settings.capabilities.extend(table.capabilities)
    settings.hatches.update(msgspec.structs.asdict(table.escape_hatch))


def _apply_limits(settings: Settings, limits: LimitsTable) -> None:
    for name in ("open_files", "wall_seconds", "grace_seconds", "output_bytes"):
        value = getattr(limits, name)
        if value is not None:
            settings.limit(name, value, f"limits.{name}")
    settings.lift(limits.unlimited, "limits.unlimited")


def _mount_spec(row: MountTable, source: bytes, field: str) -> MountSpec:
    target = None if row.target is None else _encoded(row.target)
    owner = None if row.owner is None else parse_owner(str(row.owner), f"{field}.owner")
    return MountSpec(source, target, one_of(row.mode, MountMode, f"{field}.mode"), owner)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8")


def _place(error: Exception) -> str:
    """Return where the TOML ends to be TOML, from the decoder's own "(at line 3, column 9)"."""
    _, found, place = str(error).rpartition(" (at ")
    return f" (at {escaped(place)}" if found else ""


def _refuse_deep_keys(text: str, path: bytes) -> None:
    """Raise for a line outside of texts that no profile has, before it is decoded."""
    keys = _NO_KEY.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(keys.split("\n"), 1):
        if line.count(".") > MOST_DOTS:
            what = f"line {number} of {quoted(path)} has more than {MOST_DOTS} dots in its keys"
            raise config_invalid("--profile", what)


def _refuse_unknown_keys(raw: dict[str, Any]) -> None:
    _refuse_unknown(raw, ProfileTable, "")
    for name, table in _TABLES.items():
        value = raw.get(name)
        rows = value if isinstance(value, list) else [value]
        for at, row in enumerate(rows):
            if isinstance(row, dict):
                place = f"{name}[{at}]." if isinstance(value, list) else f"{name}."
                _refuse_unknown(row, table, place)


def _refuse_unknown(row: dict[str, Any], table: type[msgspec.Struct], place: str) -> None:
    known = table.__struct_fields__
    for key in row:
        if key not in known:
            raise config_invalid(f"{place}{escaped(key)}", "unknown key", nearest_hint(key, known))
