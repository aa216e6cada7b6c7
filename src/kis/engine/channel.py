"""The frames of the control channel, as bytes in and records out; no I/O.

Knows: docs/wire.md, "Frames". Must not know: sockets, processes, what a frame leads to.
Called by: life. Everything decoded here comes from inside a sandbox and is taken as hostile.
"""

from __future__ import annotations

import struct

from kis.errors import Code, SandboxError
from kis.frozen import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_PAYLOAD_BYTES = 65_536
MAX_PACKET_BYTES = 16 + MAX_PAYLOAD_BYTES
MAX_COMMAND_BYTES = 8 << 20
GENERATION = 1
VERSION = 1
UNCHANGED_ID = 0xFFFFFFFF

EXEC, SIGNAL, SHUTDOWN = 0x01, 0x04, 0x05
BORN, HELLO, READY, FAILED, EXITED, FAULT = 0x80, 0x81, 0x82, 0x83, 0x84, 0x85

MORE, LAST = 1, 2  # flags of EXEC
NEW_SESSION, REPORT_NAMES = 1, 2
SCOPE_PROCESS, SCOPE_GROUP, SCOPE_SANDBOX = 0, 1, 2

STAGE_CWD, STAGE_EXEC, STAGE_IDS, STAGE_LIMITS, STAGE_DESCRIPTORS, STAGE_MALFORMED = range(1, 7)
EXEC_KINDS = (
    "other",
    "not_found",
    "not_executable",
    "is_directory",
    "interpreter_missing",
    "bad_format",
)

(
    STEP_PLAN,
    STEP_DESCRIPTORS,
    STEP_NAMESPACES,
    STEP_IDMAP,
    STEP_SOURCE,
    STEP_ROOT,
    STEP_MOUNT,
    STEP_TARGET,
    STEP_PROC,
    STEP_NETWORK,
    STEP_IDENTITY,
    STEP_CAPABILITIES,
    STEP_SECCOMP,
    STEP_AGENT,
    STEP_KEYRING,
    STEP_LIMITS,
    STEP_PROTOCOL,
) = range(1, 18)
STEP_NAMES = (
    "plan",
    "descriptors",
    "namespaces",
    "idmap",
    "source",
    "root",
    "mount",
    "target",
    "proc",
    "network",
    "identity",
    "capabilities",
    "seccomp",
    "agent",
    "keyring",
    "limits",
    "protocol",
)
_MAX_PROBES = 64
_MAX_NAMES = 65_536
_MAX_ERRNO = 4095

_header = struct.Struct("<IHHII")
_u32 = struct.Struct("<I")


class Born(Frozen):
    """The sandbox has its first process: the one whose credentials the packet bears."""

    __slots__ = ()


class Hello(Frozen):
    """The sandbox's place is complete. Serials of the launcher's and its session keyring, or 0."""

    __slots__ = ("agent_keyring", "launcher_keyring")
    launcher_keyring: int
    agent_keyring: int

    def __init__(self, launcher_keyring: int, agent_keyring: int) -> None:
        self._set("launcher_keyring", launcher_keyring, "agent_keyring", agent_keyring)


class Ready(Frozen):
    """A command waits before its execve, and says what only it can know."""

    __slots__ = ("dumpable", "id", "keyring", "names", "probes")
    id: int
    keyring: int
    dumpable: int
    probes: tuple[tuple[int, int], ...]
    names: tuple[bytes, ...]

    def __init__(
        self,
        id: int,
        keyring: int,
        dumpable: int,
        probes: tuple[tuple[int, int], ...],
        names: tuple[bytes, ...],
    ) -> None:
        self._set("id", id, "keyring", keyring, "dumpable", dumpable)
        self._set("probes", probes, "names", names)


class Failed(Frozen):
    """A command that could not be executed; ``kind`` is one of ``EXEC_KINDS``."""

    __slots__ = ("detail", "errno", "id", "kind", "stage")
    id: int
    stage: int
    errno: int
    kind: str
    detail: bytes

    def __init__(self, id: int, stage: int, errno: int, kind: str, detail: bytes) -> None:
        self._set("id", id, "stage", stage, "errno", errno, "kind", kind, "detail", detail)


class Exited(Frozen):
    """A command's end: exactly one of ``code`` and ``signal`` is a number."""

    __slots__ = ("code", "id", "peak_rss_kib", "signal", "system_us", "user_us")
    id: int
    code: int | None
    signal: int | None
    user_us: int
    system_us: int
    peak_rss_kib: int

    def __init__(
        self,
        id: int,
        code: int | None,
        signal: int | None,
        user_us: int,
        system_us: int,
        peak_rss_kib: int,
    ) -> None:
        self._set("id", id, "code", code, "signal", signal)
        self._set("user_us", user_us, "system_us", system_us, "peak_rss_kib", peak_rss_kib)


class Fault(Frozen):
    """The launcher or the agent could not go on. ``record`` is the plan's record, or None."""

    __slots__ = ("detail", "errno", "record", "step")
    step: int
    errno: int
    record: int | None
    detail: bytes

    def __init__(self, step: int, errno: int, record: int | None, detail: bytes) -> None:
        self._set("step", step, "errno", errno, "record", record, "detail", detail)

    @property
    def step_name(self) -> str:
        return STEP_NAMES[self.step - 1]


class _Reader:
    """Takes numbers and strings off a payload and refuses to go past its end."""

    __slots__ = ("_at", "_payload")

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def u32(self, most: int = 0xFFFFFFFF) -> int:
        value = int.from_bytes(self._take(4), "little")
        if value > most:
            raise broken(f"a number is {value}, {most} is the most")
        return value

    def u64(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def str(self) -> bytes:
        text = self._take(self.u32(MAX_PAYLOAD_BYTES))
        if b"\0" in text:
            raise broken("a string holds a NUL")
        return text

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._payload):
            raise broken("a payload ends too early")
        taken = self._payload[self._at : end]
        self._at = end
        return taken

    def done(self) -> None:
        if self._at != len(self._payload):
            raise broken("a payload goes on after its end")


def broken(what: str) -> SandboxError:
    """Return the error for an agent that does not keep to the protocol."""
    return SandboxError(
        Code.AGENT_UNREACHABLE,
        f"the agent broke the protocol: {what}",
        "The sandbox was killed. This is a fault of kis or an attack on it; please report it.",
    )


def decode(packet: bytes) -> Born | Hello | Ready | Failed | Exited | Fault:
    """Return the frame that a packet holds. Raises ``agent_unreachable`` for anything odd."""
    if len(packet) < _header.size:
        raise broken("a packet is shorter than its header")
    length, kind, flags, id, generation = _header.unpack_from(packet)
    if length != len(packet) - _header.size or length > MAX_PAYLOAD_BYTES:
        raise broken("a packet has another length than it says")
    if flags or generation != GENERATION:
        raise broken("a packet has unknown flags or another generation")
    reader = _Reader(packet[_header.size :])
    frame = _decode_payload(kind, id, reader)
    reader.done()
    return frame


def _decode_payload(
    kind: int, id: int, reader: _Reader
) -> Born | Hello | Ready | Failed | Exited | Fault:
    if kind == BORN:
        return Born()
    if kind == READY:
        return _ready(id, reader)
    if kind == EXITED:
        return _exited(id, reader)
    if kind == FAILED:
        stage = reader.u32(STAGE_MALFORMED)
        errno = reader.u32(_MAX_ERRNO)
        return Failed(id, stage, errno, EXEC_KINDS[reader.u32(len(EXEC_KINDS) - 1)], reader.str())
    if kind == HELLO:
        version = reader.u32()
        if version != VERSION:
            raise broken(f"the agent speaks version {version}, the engine {VERSION}")
        return Hello(reader.u32(), reader.u32())
    if kind == FAULT:
        step = reader.u32(STEP_PROTOCOL)
        errno = reader.u32(_MAX_ERRNO)
        record = reader.u32()
        if not step:
            raise broken("a fault names no step")
        return Fault(step, errno, None if record == UNCHANGED_ID else record, reader.str())
    raise broken(f"a frame of the unknown type {kind}")


def _ready(id: int, reader: _Reader) -> Ready:
    keyring = reader.u32()
    dumpable = reader.u32()
    probes = tuple((reader.u32(), reader.u32(_MAX_ERRNO)) for _ in range(reader.u32(_MAX_PROBES)))
    names = tuple(reader.str() for _ in range(reader.u32(_MAX_NAMES)))
    return Ready(id, keyring, dumpable, probes, names)


def _exited(id: int, reader: _Reader) -> Exited:
    code, signal = reader.u32(), reader.u32(64)
    if (code == 0xFFFFFFFF) != (signal != 0) or (not signal and code > 255):
        raise broken("a command ended in no possible way")
    return Exited(
        id, None if signal else code, signal or None, reader.u64(), reader.u64(), reader.u64()
    )


def encode(kind: int, id: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    """Return one packet."""
    return _header.pack(len(payload), kind, flags, id, GENERATION) + payload


def encode_signal(id: int, signal: int, scope: int) -> bytes:
    """Return a SIGNAL packet."""
    return encode(SIGNAL, id, struct.pack("<II", signal, scope))


def encode_exec(
    id: int,
    *,
    uid: int,
    gid: int,
    capabilities: int,
    flags: int,
    umask: int,
    cwd: bytes,
    argv: Sequence[bytes],
    environment: Sequence[bytes],
    limits: Sequence[tuple[int, int, int]] = (),
    last: bool = False,
) -> list[bytes]:
    """Return the packets of an EXEC; the descriptors go with the last one.

    With ``last`` the sandbox ends with this command. ``environment`` holds ``NAME=value``,
    ``limits`` resource, soft, hard (setrlimit(2)).
    Raises ``argument_too_long`` where the command is more than the agent takes.
    """
    parts = [struct.pack("<IIQII", uid, gid, capabilities, flags, umask), _u32.pack(len(cwd)), cwd]
    for strings in (argv, environment):
        parts.append(_u32.pack(len(strings)))
        for text in strings:
            parts.append(_u32.pack(len(text)))
            parts.append(text)
    parts.append(_u32.pack(len(limits)))
    parts.extend(struct.pack("<IQQ", *limit) for limit in limits)
    whole = b"".join(parts)
    if len(whole) > MAX_COMMAND_BYTES:
        raise SandboxError(
            Code.ARGUMENT_TOO_LONG,
            f"the command takes {len(whole)} bytes, {MAX_COMMAND_BYTES} are the most",
        )
    pieces = [whole[at : at + MAX_PAYLOAD_BYTES] for at in range(0, len(whole), MAX_PAYLOAD_BYTES)]
    final = pieces.pop()
    packets = [encode(EXEC, id, piece, MORE) for piece in pieces]
    return [*packets, encode(EXEC, id, final, LAST if last else 0)]
