"""What a payload may do: frozen, and deny-all when nothing is said.

Knows: the fields, their bounds, and which demands they make. Must not know: any backend, any
file or flag. Called by: caller (makes it), engine and backends (read it).
"""

from __future__ import annotations

from kis.errors import Code, SandboxError, quoted
from kis.frozen import Frozen
from kis.identity import MountSource
from kis.limits import Limits
from kis.vocabulary import (
    GRANTABLE_CAPABILITIES,
    ISOLATION,
    REFUSED_CAPABILITIES,
    Demand,
    MountMode,
    NetworkMode,
    Tier,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeVar

    RecordType = TypeVar("RecordType", bound=Frozen)

MAX_SECRET_BYTES = 1 << 20
MAX_PATH_BYTES = 4095  # PATH_MAX less its NUL
MAX_NAME_BYTES = 255
MAX_ID = 0xFFFFFFFE  # (uid_t)-1 means "leave unchanged" to the kernel

SECRETS_DIRECTORY = b"/run/secrets"
_GRANTABLE_HINT = f"Capabilities that can be granted: {' '.join(GRANTABLE_CAPABILITIES)}."

# Isolation that every payload of a tier relies on without asking. What a tier is not for is not
# demanded there: the host tier confines on the host's own tree, the process tier not at all.
_ASKED_FOR_BY_NAME = frozenset(
    {
        Demand.NETWORK_OFF,
        Demand.NETWORK_LOOPBACK,
        Demand.NETWORK_EGRESS,
        Demand.NETWORK_EGRESS_ALLOW,
        Demand.NETWORK_HOST,
        Demand.MOUNT_READ_ONLY,
        Demand.MOUNT_READ_WRITE,
        Demand.MOUNT_ELSEWHERE,
        Demand.WRITABLE_ROOT,
        Demand.CAPABILITIES_GRANTED,
        Demand.DEVICES_GRANTED,
        Demand.OTHER_USER,
    }
)
_ALWAYS = ISOLATION - _ASKED_FOR_BY_NAME
_NOT_ON_HOST_TREE = frozenset(
    {
        Demand.OWN_ROOT,
        Demand.OWN_PROCESSES,
        Demand.OWN_IPC,
        Demand.OWN_HOSTNAME,
        Demand.MINIMAL_DEVICES,
    }
)


def tier_isolation(tier: Tier) -> frozenset[Demand]:
    """Return the isolation that ``Profile()`` relies on in a tier, the network aside."""
    if tier is Tier.PROCESS:
        return frozenset()
    return _ALWAYS - _NOT_ON_HOST_TREE if tier is Tier.HOST else _ALWAYS


class NetworkPolicy(Frozen):
    """What the payload can reach; nothing when ``mode`` is not said.

    ``allow`` lists ``HOST[:PORT]`` or ``NETWORK[:PORT]`` and belongs to mode ``egress``.
    ``named`` is true where the mode was said, be it ``off``. Raises ``profile_invalid``.
    """

    __slots__ = ("allow", "mode", "named")
    mode: NetworkMode
    allow: tuple[str, ...]
    named: bool

    def __init__(self, mode: NetworkMode | str | None = None, allow: Sequence[str] = ()) -> None:
        if mode is not None and mode not in tuple(NetworkMode):
            choices = " ".join(NetworkMode)
            raise _invalid("network.mode", f"must be one of: {choices}")
        chosen = NetworkMode(mode or NetworkMode.OFF)
        if isinstance(allow, str) or not all(_is_word(entry) for entry in allow):
            raise _invalid("network.allow", "must be a sequence of HOST[:PORT] texts")
        if allow and chosen is not NetworkMode.EGRESS:
            raise _invalid("network.allow", "needs network.mode egress")
        self._set("mode", chosen, "allow", tuple(allow), "named", mode is not None)

    def _arguments(self) -> dict[str, object]:
        return {"mode": self.mode if self.named else None, "allow": self.allow}

    def demands(self, tier: Tier) -> frozenset[Demand]:
        """Return the network demands; the process tier is asked only for what was named."""
        if tier is Tier.PROCESS and not self.named:
            return frozenset()
        demands = {Demand(f"network_{self.mode}")}
        if self.allow:
            demands.add(Demand.NETWORK_EGRESS_ALLOW)
        return frozenset(demands)


class Mount(Frozen):
    """A host file or directory at an absolute path of the sandbox.

    ``mode`` is ``ro`` or ``rw``. New files of a rw mount belong to ``owner`` (host uid, gid), or
    to the owner of the source; where that is uid or gid 0 the owner must be named.
    Raises ``mount_invalid``.
    """

    __slots__ = ("mode", "owner", "source", "target")
    source: MountSource
    target: bytes
    mode: MountMode
    owner: tuple[int, int] | None

    def __init__(
        self,
        source: MountSource,
        target: bytes | str,
        mode: MountMode | str = MountMode.RO,
        owner: tuple[int, int] | None = None,
    ) -> None:
        if not _is_source(source):
            raise _mount_invalid("source", "must be a mount source that the engine admitted")
        if source.kind == "device":
            raise _mount_invalid("source", f"{quoted(source.path)} is a device: grant it as one")
        if mode not in tuple(MountMode):
            raise _mount_invalid("mode", "must be ro or rw")
        path = checked_target(target)
        if owner is not None and not _is_id_pair(owner):
            raise _mount_invalid("owner", "must be two numbers, uid and gid")
        if owner is not None and mode == MountMode.RO:
            raise _mount_invalid("owner", f"of {quoted(path)} needs mode rw")
        if mode == MountMode.RW and owner is None and 0 in (source.owner_uid, source.owner_gid):
            raise SandboxError(
                Code.MOUNT_INVALID,
                f"{quoted(source.path)} belongs to {source.owner_uid}:{source.owner_gid}: where "
                "one is root's, the owner of new files must be named",
                "Name the owner: owner=UID[:GID] in the long form of --mount. The directory itself "
                "must let that owner write (chown).",
                {"field": "mounts.owner", "source": quoted(source.path)},
            )
        self._set("source", source, "target", path, "mode", MountMode(mode), "owner", owner)

    @property
    def writable(self) -> bool:
        return self.mode is MountMode.RW

    @property
    def file_owner(self) -> tuple[int, int]:
        """Host uid and gid of the files that the payload makes in a rw mount."""
        return self.owner or (self.source.owner_uid, self.source.owner_gid)


class Device(Frozen):
    """A device node of the host, at the same path below ``/dev``. Raises ``mount_invalid``."""

    __slots__ = ("source",)
    source: MountSource

    def __init__(self, source: MountSource) -> None:
        if not _is_source(source) or source.kind != "device":
            raise SandboxError(
                Code.MOUNT_INVALID,
                "devices: must be device nodes that the engine admitted",
                details={"field": "devices"},
            )
        self._set("source", source)

    @property
    def target(self) -> bytes:
        path = self.source.path
        return path if path.startswith(b"/dev/") else b"/dev/" + path.rpartition(b"/")[2]


class Tmpfs(Frozen):
    """An empty, private, writable directory. It takes its space from the sandbox's one tmpfs."""

    __slots__ = ("target",)
    target: bytes

    def __init__(self, target: bytes | str) -> None:
        self._set("target", checked_target(target))


class Secret(Frozen):
    """A file ``/run/secrets/NAME``, mode 0400, of at most 1 MiB. Its content is never shown."""

    __slots__ = ("content", "name")
    _hidden = frozenset({"content"})
    name: str
    content: bytes

    def __init__(self, name: str, content: bytes) -> None:
        if not _is_word(name) or "/" in name or name in (".", ".."):
            raise _invalid("secrets.name", "must be a file name")
        if len(name.encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES:
            raise _invalid("secrets.name", f"is longer than {MAX_NAME_BYTES} bytes")
        if not _is_bytes(content) or len(content) > MAX_SECRET_BYTES:
            raise _invalid(
                "secrets.content", f"of {quoted(name)} must be bytes, {MAX_SECRET_BYTES} at most"
            )
        self._set("name", name, "content", content)

    @property
    def target(self) -> bytes:
        return SECRETS_DIRECTORY + b"/" + self.name.encode("utf-8", "surrogateescape")


class EscapeHatch(Frozen):
    """The named ways out of confinement; all shut when nothing is said."""

    __slots__ = ("allow_emulation", "allow_net_host", "allow_process_tier")
    allow_process_tier: bool
    allow_net_host: bool
    allow_emulation: bool

    def __init__(
        self,
        allow_process_tier: bool = False,
        allow_net_host: bool = False,
        allow_emulation: bool = False,
    ) -> None:
        self._set(
            "allow_process_tier",
            _flag(allow_process_tier, "escape_hatch.allow_process_tier"),
            "allow_net_host",
            _flag(allow_net_host, "escape_hatch.allow_net_host"),
            "allow_emulation",
            _flag(allow_emulation, "escape_hatch.allow_emulation"),
        )


class Profile(Frozen):
    """What a payload may do. ``Profile()`` is the most restrictive thing a tier can express.

    Raises ``profile_invalid`` naming the field, ``mount_invalid`` for a target that is taken
    twice, ``profile_unsatisfiable`` for a capability that would end the confinement.
    """

    __slots__ = (
        "capabilities",
        "devices",
        "escape_hatch",
        "limits",
        "mounts",
        "network",
        "secrets",
        "tmpfs",
        "writable_root",
    )
    network: NetworkPolicy
    mounts: tuple[Mount, ...]
    devices: tuple[Device, ...]
    tmpfs: tuple[Tmpfs, ...]
    capabilities: tuple[str, ...]
    limits: Limits
    writable_root: bool
    escape_hatch: EscapeHatch
    secrets: tuple[Secret, ...]

    def __init__(
        self,
        network: NetworkPolicy | None = None,
        mounts: Iterable[Mount] = (),
        devices: Iterable[Device] = (),
        tmpfs: Iterable[Tmpfs] = (),
        capabilities: Iterable[str] = (),
        limits: Limits | None = None,
        writable_root: bool = False,
        escape_hatch: EscapeHatch | None = None,
        secrets: Iterable[Secret] = (),
    ) -> None:
        self._set("network", _record(network, NetworkPolicy, "network"))
        self._set("mounts", _records(mounts, Mount, "mounts"))
        self._set("devices", _records(devices, Device, "devices"))
        self._set("tmpfs", _records(tmpfs, Tmpfs, "tmpfs"))
        self._set("capabilities", _capabilities(capabilities))
        self._set("limits", _record(limits, Limits, "limits"))
        self._set("writable_root", _flag(writable_root, "writable_root"))
        self._set("escape_hatch", _record(escape_hatch, EscapeHatch, "escape_hatch"))
        self._set("secrets", _records(secrets, Secret, "secrets"))
        self._refuse_taken_targets()

    def _refuse_taken_targets(self) -> None:
        targets = [mount.target for mount in self.mounts]
        targets += [device.target for device in self.devices]
        targets += [tmpfs.target for tmpfs in self.tmpfs]
        targets += [secret.target for secret in self.secrets]
        taken: set[bytes] = set()
        for target in targets:
            if target in taken:
                raise _mount_invalid("target", f"{quoted(target)} is used twice")
            taken.add(target)

    def demands(self, tier: Tier) -> frozenset[Demand]:
        """Return every property that the caller relies on when this profile runs in ``tier``.

        A backend fits when it claims them all. The process tier's hatch waives what nobody
        named; what was named, and every limit, is demanded there too.
        """
        demands = set(tier_isolation(tier))
        demands |= self.network.demands(tier) | self.limits.demands(tier)
        for mount in self.mounts:
            demands.add(Demand.MOUNT_READ_WRITE if mount.writable else Demand.MOUNT_READ_ONLY)
            if mount.target != mount.source.path:
                demands.add(Demand.MOUNT_ELSEWHERE)
        if self.tmpfs or self.secrets:
            demands.add(Demand.MOUNT_ELSEWHERE)
        if self.writable_root:
            demands.add(Demand.WRITABLE_ROOT)
        if self.capabilities:
            demands.add(Demand.CAPABILITIES_GRANTED)
        if self.devices:
            demands.add(Demand.DEVICES_GRANTED)
        return frozenset(demands)


def checked_target(target: bytes | str) -> bytes:
    """Return the target as normalised absolute bytes, or raise ``mount_invalid``."""
    if not isinstance(target, (bytes, str)):
        raise _mount_invalid("target", "must be text or bytes")
    # As os.fsencode, but the same on every platform.
    path = target.encode("utf-8", "surrogateescape") if isinstance(target, str) else target
    if not path.startswith(b"/"):
        raise _mount_invalid("target", f"{quoted(path)} must be absolute")
    if b"\0" in path:
        raise _mount_invalid("target", f"{quoted(path)} holds a NUL")
    names = [name for name in path.split(b"/") if name not in (b"", b".")]
    normal = b"/" + b"/".join(names)
    if b".." in names:
        raise _mount_invalid("target", f"{quoted(path)} must not hold '..'")
    if not names:
        raise _mount_invalid("target", "must not be the root itself")
    if names[0] in (b"proc", b"sys", b"dev"):
        raise _mount_invalid("target", f"{quoted(path)} must not lie below /proc, /sys or /dev")
    if len(normal) > MAX_PATH_BYTES or max(map(len, names)) > MAX_NAME_BYTES:
        raise _mount_invalid("target", f"{quoted(path)} is too long for a path")
    return normal


def _invalid(field: str, what: str) -> SandboxError:
    return SandboxError(Code.PROFILE_INVALID, f"{field} {what}", details={"field": field})


def _mount_invalid(part: str, what: str) -> SandboxError:
    return SandboxError(
        Code.MOUNT_INVALID, f"mount {part} {what}", details={"field": f"mounts.{part}"}
    )


def _is_word(value: object) -> bool:
    """Whether it is text with something in it that can be printed and holds no NUL or control."""
    return isinstance(value, str) and bool(value) and not any(ord(c) < 32 for c in value)


def _is_source(value: object) -> bool:
    return isinstance(value, MountSource)


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes)


def _is_id_pair(owner: object) -> bool:
    return (
        isinstance(owner, tuple)
        and len(owner) == 2
        and all(type(number) is int and 0 <= number <= MAX_ID for number in owner)
    )


def _flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise _invalid(field, "must be true or false")
    return value


def _record(value: RecordType | None, kind: type[RecordType], field: str) -> RecordType:
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise _invalid(field, f"must be a {kind.__name__}")
    return value


def _records(
    values: Iterable[RecordType], kind: type[RecordType], field: str
) -> tuple[RecordType, ...]:
    records = tuple(values)
    if not all(isinstance(record, kind) for record in records):
        raise _invalid(field, f"must hold {kind.__name__} records")
    return records


def _capabilities(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names without ``CAP_``, in upper case, once each, in kernel order."""
    if isinstance(names, str):
        raise _invalid("capabilities", "must be a sequence of names")
    granted: set[str] = set()
    for name in names:
        if not isinstance(name, str):
            raise _invalid("capabilities", "must be a sequence of names")
        plain = name.upper().removeprefix("CAP_")
        if plain in REFUSED_CAPABILITIES:
            broken = REFUSED_CAPABILITIES[plain]
            raise SandboxError(
                Code.PROFILE_UNSATISFIABLE,
                f"capability {plain} would break the demand {broken}",
                _GRANTABLE_HINT,
                {"field": "capabilities", "capability": plain, "unmet": [str(broken)]},
            )
        if plain not in GRANTABLE_CAPABILITIES:
            raise SandboxError(
                Code.PROFILE_INVALID,
                f"capabilities {quoted(name)} is no capability of capabilities(7)",
                _GRANTABLE_HINT,
                {"field": "capabilities"},
            )
        granted.add(plain)
    return tuple(name for name in GRANTABLE_CAPABILITIES if name in granted)
