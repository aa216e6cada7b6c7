"""Facts of this machine and of our own process, read once and handed on as data.

Knows: /proc and /sys (with observe, the only reader of them). Must not know: what follows from
a fact. Called by: engine (reads), backends (are handed a Host).
"""

from __future__ import annotations

import os
import sys

from kis.frozen import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

# The initial user namespace has this inode in every kernel (include/linux/proc_ns.h).
INITIAL_USER_NAMESPACE: Final = 0xEFFFFFFD
NAMESPACES: Final = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")

# Needed of root: maps of other ids (SETUID, SETGID), namespaces and id-mapped mounts (SYS_ADMIN),
# pipes given to the payload (CHOWN), signals to it (KILL), reading it from outside (SYS_PTRACE).
NEEDED_CAPABILITIES: Final = {
    "CHOWN": 0,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SYS_PTRACE": 19,
    "SYS_ADMIN": 21,
}

# Entries of /proc that are not about the sandbox but about the host's keys, hardware and users.
# What the owner alone may read needs no mask: a payload is never the host's root.
SENSITIVE_PROC: Final = (
    b"acpi",  # the machine's sleep and power switches
    b"asound",  # sound hardware, and whether it is in use
    b"interrupts",  # their timing tells keystrokes of other users
    b"kallsyms",  # addresses in the kernel, where kptr_restrict lets them show
    b"kcore",  # memory of the kernel
    b"key-users",  # who holds how many keys
    b"keys",  # keys that the host's users hold
    b"kmsg",
    b"latency_stats",
    b"modules",  # as kallsyms
    b"sched_debug",  # every process of the host
    b"scsi",
    b"softirqs",  # as interrupts
    b"sysrq-trigger",
    b"timer_list",  # pointers and every process's timers
    b"timer_stats",
)

_UNLIMITED = (1 << 64) - 1
_RLIMIT_LINES = {b"Max open files": "open_files", b"Max core file size": "core"}


class Machine(Frozen):
    """What does not change while we run: kernel and switches. ``None``: no such switch."""

    __slots__ = (
        "apparmor_restricts_user_namespaces",
        "architecture",
        "core_handler",
        "max_user_namespaces",
        "memfd_noexec",
        "release",
        "sensitive_proc",
        "system",
        "unprivileged_user_namespaces",
    )
    system: str
    release: str
    architecture: str
    max_user_namespaces: int | None
    unprivileged_user_namespaces: int | None
    apparmor_restricts_user_namespaces: int | None
    memfd_noexec: int | None
    core_handler: str
    sensitive_proc: tuple[bytes, ...]

    def __init__(
        self,
        system: str = "Linux",
        release: str = "",
        architecture: str = "x86_64",
        max_user_namespaces: int | None = None,
        unprivileged_user_namespaces: int | None = None,
        apparmor_restricts_user_namespaces: int | None = None,
        memfd_noexec: int | None = None,
        core_handler: str = "",
        sensitive_proc: tuple[bytes, ...] = (),
    ) -> None:
        self._set("system", system, "release", release, "architecture", architecture)
        self._set("max_user_namespaces", max_user_namespaces)
        self._set("unprivileged_user_namespaces", unprivileged_user_namespaces)
        self._set("apparmor_restricts_user_namespaces", apparmor_restricts_user_namespaces)
        self._set("memfd_noexec", memfd_noexec, "core_handler", core_handler)
        self._set("sensitive_proc", sensitive_proc)


class Host(Frozen):
    """The machine, and what the calling thread is and may do. Capabilities are a bit mask.

    ``namespaces`` pairs a kind with the inode that identifies it; ``seccomp_filters`` counts
    the filters already on us; limits are hard ones.
    """

    __slots__ = (
        "capabilities",
        "core_limit",
        "egid",
        "euid",
        "groups",
        "machine",
        "namespaces",
        "open_files_limit",
        "seccomp_filters",
    )
    machine: Machine
    euid: int
    egid: int
    groups: tuple[int, ...]
    capabilities: int
    namespaces: tuple[tuple[str, int], ...]
    seccomp_filters: int | None
    open_files_limit: int
    core_limit: int

    def __init__(
        self,
        machine: Machine,
        euid: int = 0,
        egid: int = 0,
        groups: tuple[int, ...] = (),
        capabilities: int = (1 << 41) - 1,
        namespaces: tuple[tuple[str, int], ...] = (("user", INITIAL_USER_NAMESPACE),),
        seccomp_filters: int | None = 0,
        open_files_limit: int = 1 << 20,
        core_limit: int = _UNLIMITED,
    ) -> None:
        self._set("machine", machine, "euid", euid, "egid", egid, "groups", groups)
        self._set("capabilities", capabilities, "namespaces", namespaces)
        self._set("seccomp_filters", seccomp_filters, "open_files_limit", open_files_limit)
        self._set("core_limit", core_limit)

    @property
    def is_initial_root(self) -> bool:
        """Whether we are the machine's root, not one inside somebody's user namespace."""
        return self.euid == 0 and dict(self.namespaces).get("user") == INITIAL_USER_NAMESPACE

    @property
    def missing_capabilities(self) -> tuple[str, ...]:
        """Names of the capabilities that root needs here and does not hold."""
        return tuple(
            name
            for name, number in NEEDED_CAPABILITIES.items()
            if not self.capabilities >> number & 1
        )

    @property
    def privileged(self) -> bool:
        """Whether sandboxes get id ranges of their own and id-mapped mounts."""
        return self.is_initial_root and not self.missing_capabilities


def read_machine() -> Machine:
    """Return the machine's facts. On anything but Linux only its name."""
    if sys.platform != "linux":
        return Machine(system=sys.platform)
    name = os.uname()
    return Machine(
        name.sysname,
        name.release,
        name.machine,
        _switch("/proc/sys/user/max_user_namespaces"),
        _switch("/proc/sys/kernel/unprivileged_userns_clone"),
        _switch("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        _switch("/proc/sys/vm/memfd_noexec"),
        _core_handler(_content("/proc/sys/kernel/core_pattern") or b"@"),
        tuple(entry for entry in SENSITIVE_PROC if _others_may_read(b"/proc/" + entry)),
    )


def read_host(machine: Machine, before: Host | None = None) -> Host:
    """Return the calling thread's facts.

    Ids, capabilities and filters are read for every launch anew: a service may well give up root
    after it made its engine. Namespaces and limits are taken over from ``before``.
    """
    if machine.system != "Linux":
        return Host(machine, namespaces=())
    status = read_whole("/proc/thread-self/status")
    filters = status_field(status, b"Seccomp_filters")
    if before is None:
        limits = hard_limits(read_whole("/proc/thread-self/limits"))
        open_files, core = limits["open_files"], limits["core"]
        namespaces = tuple((kind, _own_namespace(kind)) for kind in NAMESPACES)
    else:
        open_files, core = before.open_files_limit, before.core_limit
        namespaces = before.namespaces
    now = Host(
        machine,
        os.geteuid(),
        os.getegid(),
        tuple(sorted(os.getgroups())),
        int(status_field(status, b"CapEff") or b"0", 16),
        namespaces,
        None if filters is None else int(filters),
        open_files,
        core,
    )
    return before if before is not None and now == before else now


def _own_namespace(kind: str) -> int:
    return namespace_number(os.readlink(f"/proc/thread-self/ns/{kind}"))


def namespace_number(link: str) -> int:
    """Return the inode in the text of a namespace's link: ``net:[4026531840]``."""
    return int(link[link.index("[") + 1 : -1])


def status_field(text: bytes, name: bytes) -> bytes | None:
    """Return the value of one line of a ``status`` file of proc(5), or ``None``.

    No process can write such a line itself: its name, the first, has its newlines escaped.
    """
    start = text.find(b"\n%s:" % name)
    if start < 0:
        return None
    start += len(name) + 2
    return text[start : text.index(b"\n", start)].strip()


def hard_limits(text: bytes) -> dict[str, int]:
    """Return the hard limits that we use, of a ``limits`` file of proc(5)."""
    limits = {"open_files": 0, "core": 0}
    for line in text.split(b"\n"):
        name = _RLIMIT_LINES.get(line[:26].rstrip())
        if name:
            value = line[47:68].strip()
            limits[name] = _UNLIMITED if value == b"unlimited" else int(value)
    return limits


def resolved_path(descriptor: int) -> bytes:
    """Return the path that the kernel knows an open file by."""
    return os.readlink(b"/proc/self/fd/%d" % descriptor)


def read_whole(path: str | bytes, directory: int | None = None) -> bytes:
    """Return all of a small file, by path or relative to an open directory. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
    try:
        parts = []
        while part := os.read(descriptor, 65_536):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def read_small(path: str | bytes, directory: int) -> bytes:
    """Return all of a file that the kernel makes in one piece, as most of proc(5): one read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
    try:
        return os.read(descriptor, 65_536)
    finally:
        os.close(descriptor)


def _content(path: str) -> bytes | None:
    try:
        return read_whole(path)
    except OSError:
        return None


def _core_handler(pattern: bytes) -> str:
    """Return who takes a core dump, core(5): nobody (it is a file), a program, a socket."""
    return {b"|": "program", b"@": "socket"}.get(pattern[:1], "")


def _switch(path: str) -> int | None:
    content = _content(path)
    return None if content is None else int(content)


def _others_may_read(path: bytes) -> bool:
    try:
        return bool(os.stat(path).st_mode & 0o004)
    except OSError:
        return False
