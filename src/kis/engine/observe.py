"""Reads processes of a sandbox from outside, out of /proc/PID: what the kernel says they are.

Knows: the files of proc(5). Must not know: what they ought to say. Called by: link.
The pid comes from the credentials of a packet, never from its content; what is read stays bound
to that very process by the open directory, whatever becomes of the number.
"""

from __future__ import annotations

import os

from kis.engine.host import (
    NAMESPACES,
    hard_limits,
    namespace_number,
    read_small,
    read_whole,
    status_field,
)
from kis.errors import Code, SandboxError, os_reason
from kis.frozen import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final, TypeVar

    Read = TypeVar("Read")
    MountPoint = tuple[bytes, frozenset[bytes], bytes, tuple[bytes, ...]]

CAPABILITY_SETS: Final = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
CLOSE_ON_EXEC = 0o2000000  # O_CLOEXEC as fdinfo shows it on x86 and ARM
_MOST_DESCRIPTORS = 64


class Unreadable(Frozen):
    """A file that the kernel would not let us read from outside, and why."""

    __slots__ = ("reason",)
    reason: str

    def __init__(self, reason: str) -> None:
        self._set("reason", reason)


class Place(Frozen):
    """A sandbox as its first process shows it: what all its commands share.

    Interfaces and routes are those of its network namespace; a mount has a path, its own
    options, a type, and tags where it propagates.
    """

    __slots__ = (
        "gid_map",
        "interfaces",
        "loopback_is_up",
        "mounts",
        "namespaces",
        "uid_map",
    )
    namespaces: tuple[tuple[str, int], ...]
    uid_map: tuple[tuple[int, ...], ...]
    gid_map: tuple[tuple[int, ...], ...]
    interfaces: tuple[bytes, ...]
    loopback_is_up: bool
    mounts: tuple[MountPoint, ...]

    def __init__(
        self,
        namespaces: tuple[tuple[str, int], ...],
        uid_map: tuple[tuple[int, ...], ...],
        gid_map: tuple[tuple[int, ...], ...],
        interfaces: tuple[bytes, ...],
        loopback_is_up: bool,
        mounts: tuple[MountPoint, ...],
    ) -> None:
        self._set("namespaces", namespaces, "uid_map", uid_map, "gid_map", gid_map)
        self._set("interfaces", interfaces, "loopback_is_up", loopback_is_up, "mounts", mounts)


class Waiting(Frozen):
    """A command before its execve. Ids are the host's; ``root`` is its root directory's path in
    its own mount namespace; ``descriptors`` maps a number to inode and flags."""

    __slots__ = (
        "capabilities",
        "core_limit",
        "cwd",
        "descriptors",
        "gids",
        "groups",
        "namespaces",
        "no_new_privs",
        "open_files",
        "pids",
        "root",
        "seccomp_filters",
        "seccomp_mode",
        "session",
        "terminal",
        "uids",
    )
    uids: tuple[int, ...]
    gids: tuple[int, ...]
    groups: tuple[int, ...]
    capabilities: tuple[int, ...]
    no_new_privs: int
    seccomp_mode: int
    seccomp_filters: int | None
    pids: tuple[int, ...]
    namespaces: tuple[tuple[str, int], ...]
    root: bytes
    cwd: bytes
    descriptors: dict[int, tuple[int, int]] | Unreadable
    session: int
    terminal: int
    open_files: int
    core_limit: int

    def __init__(self, **fields: object) -> None:
        for name, value in fields.items():
            self._set(name, value)


def observe_place(pid: int) -> Place:
    """Return what a sandbox's first process shows. Raises ``agent_unreachable``."""
    return _read(pid, _place)


def observe_command(pid: int) -> Waiting:
    """Return what a waiting command is. Raises ``agent_unreachable`` if it cannot be read."""
    return _read(pid, _command)


def _read(pid: int, take: Callable[[int], Read]) -> Read:
    try:
        process = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return take(process)
        finally:
            os.close(process)
    except (OSError, ValueError, IndexError) as error:
        why = os_reason(error) if isinstance(error, OSError) else "an unknown form"
        raise SandboxError(
            Code.AGENT_UNREACHABLE, f"a process of the sandbox cannot be read from outside: {why}"
        ) from error


def _place(process: int) -> Place:
    return Place(
        _namespaces(process),
        _map(read_small("uid_map", process)),
        _map(read_small("gid_map", process)),
        _interfaces(read_whole("net/dev", process)),
        # A link that is up has its addresses in the table of local routes, one down has none.
        b"127.0.0.1" in read_whole("net/fib_trie", process),
        _mounts(read_whole("mountinfo", process)),
    )


def _command(process: int) -> Waiting:
    status = read_small("status", process)
    limits = hard_limits(read_small("limits", process))
    filters = status_field(status, b"Seccomp_filters")
    session, terminal = _session_and_terminal(read_small("stat", process))
    return Waiting(
        uids=_numbers(_field(status, b"Uid")),
        gids=_numbers(_field(status, b"Gid")),
        groups=tuple(sorted(_numbers(_field(status, b"Groups")))),
        capabilities=tuple(int(_field(status, name.encode()), 16) for name in CAPABILITY_SETS),
        no_new_privs=int(_field(status, b"NoNewPrivs")),
        seccomp_mode=int(_field(status, b"Seccomp")),
        seccomp_filters=None if filters is None else int(filters),
        pids=_numbers(_field(status, b"NSpid")),
        namespaces=_namespaces(process),
        root=os.readlink(b"root", dir_fd=process),
        cwd=os.readlink(b"cwd", dir_fd=process),
        descriptors=_descriptors(process),
        session=session,
        terminal=terminal,
        open_files=limits["open_files"],
        core_limit=limits["core"],
    )


def _field(status: bytes, name: bytes) -> bytes:
    value = status_field(status, name)
    if value is None:
        raise ValueError(f"no {name.decode()} in a status file")
    return value


def _namespaces(process: int) -> tuple[tuple[str, int], ...]:
    return tuple(
        (kind, namespace_number(os.readlink("ns/" + kind, dir_fd=process))) for kind in NAMESPACES
    )


def _numbers(text: bytes) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


def _map(text: bytes) -> tuple[tuple[int, ...], ...]:
    return tuple(_numbers(line) for line in text.splitlines())


def _interfaces(text: bytes) -> tuple[bytes, ...]:
    """Names out of net/dev: two lines of headings, then ``name: counters``."""
    return tuple(line.partition(b":")[0].strip() for line in text.splitlines()[2:])


def _mounts(text: bytes) -> tuple[MountPoint, ...]:
    """Mount point, options, type and tags out of mountinfo, proc_pid_mountinfo(5)."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(b" - ")
        fields = before.split(b" ")
        path = fields[4]
        mounts.append(
            (
                _unescaped(path) if b"\\" in path else path,
                frozenset(fields[5].split(b",")),
                after[: after.index(b" ")],
                tuple(fields[6:]),
            )
        )
    return tuple(mounts)


def _unescaped(path: bytes) -> bytes:
    r"""Undo the kernel's escapes: space, tab, newline and backslash as ``\ooo``."""
    first, *rest = path.split(b"\\")
    return first + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in rest)


def _descriptors(process: int) -> dict[int, tuple[int, int]] | Unreadable:
    """Inode and flags of every open file. An ordinary user may read them since Linux 5.14."""
    try:
        directory = os.open("fdinfo", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
    except PermissionError as error:
        return Unreadable(os_reason(error))
    try:
        found = {}
        for name in os.listdir(directory)[:_MOST_DESCRIPTORS]:
            info = b"\n" + read_small(name, directory)
            inode = status_field(info, b"ino")
            if inode is None:
                return Unreadable("this kernel shows no inodes in fdinfo")
            found[int(name)] = (int(inode), int(_field(info, b"flags"), 8))
        return found
    finally:
        os.close(directory)


def _session_and_terminal(stat: bytes) -> tuple[int, int]:
    """Fields 6 and 7 of stat; the second, a name, may itself hold blanks and parentheses."""
    fields = stat[stat.rindex(b")") + 2 :].split(b" ", 6)
    return int(fields[3]), int(fields[4])
