"""Compares what the kernel shows of a sandbox and its waiting command with what the plan says.

Knows: plans, observations, and which of them must be equal. Must not know: how either was got.
Called by: link, before the command's first instruction. Pure.
"""

from __future__ import annotations

import errno

from kis.engine import blob
from kis.engine.limits import RLIMIT_CORE, RLIMIT_NOFILE
from kis.engine.observe import CAPABILITY_SETS, CLOSE_ON_EXEC, Unreadable
from kis.errors import Code, SandboxError, escaped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Final, Literal

    from kis.engine.backend import Plan
    from kis.engine.blob import Step
    from kis.engine.channel import Hello, Ready
    from kis.engine.host import Host
    from kis.engine.observe import MountPoint, Place, Waiting

    Source = Literal["observed", "self_reported"]
    # Field, mechanism, expected, observed, whether it holds (None: the kernel would not let us
    # look, and ``observed`` says so), and who says it. A tuple, for it is made on the way to
    # the command's start; it is put into words later, if at all.
    Check = tuple[str, str, object, object, bool | None, Source]
    Planned = tuple[bytes, frozenset[bytes], bool]
    PlannedMounts = tuple[dict[bytes, Planned], list[tuple[bytes, frozenset[bytes]]]]

# What each probe must be answered with: its name and errno (docs/wire.md, "Filter probes").
PROBES: Final = {
    1: ("keyctl", errno.EPERM),
    2: ("ptrace", errno.EPERM),
    3: ("bpf", errno.EPERM),
    4: ("unshare", errno.EPERM),
    5: ("socket(AF_VSOCK)", errno.EAFNOSUPPORT),
    6: ("ioctl(TIOCSTI)", errno.EPERM),
    7: ("chmod(S_ISUID)", errno.EPERM),
    8: ("io_uring_setup", errno.EPERM),
    9: ("prlimit64(1)", errno.EPERM),
    10: ("clone3", errno.ENOSYS),
}
_FILTER_MODE = 2  # SECCOMP_MODE_FILTER
_SPACE = frozenset({b"nosuid", b"nodev"})  # how the launcher mounts the sandbox's own tmpfs
_RESTRICTIONS = frozenset({b"ro", b"nosuid", b"nodev", b"noexec"})
_BIND_FLAGS = (
    (blob.RDONLY, b"ro"),
    (blob.NOSUID, b"nosuid"),
    (blob.NODEV, b"nodev"),
    (blob.NOEXEC, b"noexec"),
)


class Expected:
    """What a command was started with, as far as it shows.

    ``pipes`` are the inodes of standard input, output and error; ``names`` the environment's
    names, or ``None`` where they are too many to be reported; ``hello`` is set on its arrival.
    """

    __slots__ = ("cwd", "gid", "hello", "names", "pipes", "uid")

    def __init__(
        self,
        uid: int,
        gid: int,
        pipes: tuple[int, ...],
        names: tuple[bytes, ...] | None,
        cwd: bytes,
    ) -> None:
        self.uid = uid
        self.gid = gid
        self.pipes = pipes
        self.names = names
        self.cwd = cwd
        self.hello: Hello | None = None


def compare_place(plan: Plan, mounts: PlannedMounts, host: Host, seen: Place) -> list[Check]:
    """Return what all commands of a sandbox share, compared."""
    own = dict(host.namespaces)
    checks: list[Check] = []
    for kind, inode in seen.namespaces:
        shared = kind == "net" and bool(plan.mode & blob.NET_HOST)
        wanted = "the host's" if shared else "the sandbox's own"
        holds = (inode == own.get(kind)) == shared
        checks.append((f"namespace.{kind}", "clone", wanted, inode, holds, "observed"))
    checks += [
        _equal("uid_map", "user namespace", _planned_map(plan, blob.UID_MAP), seen.uid_map),
        _equal("gid_map", "user namespace", _planned_map(plan, blob.GID_MAP), seen.gid_map),
    ]
    if not plan.mode & blob.NET_HOST:
        is_up = bool(plan.mode & blob.LOOPBACK)
        checks += [
            _equal("interfaces", "network namespace", (b"lo",), seen.interfaces),
            _equal("loopback_up", "network namespace", is_up, seen.loopback_is_up),
        ]
    checks.append(_mount_table(mounts, seen.mounts))
    root = next((options for path, options, _, _ in seen.mounts if path == b"/"), frozenset())
    writable = not plan.mode & blob.ROOT_READONLY
    checks.append(_equal("root_writable", "root mount", writable, b"rw" in root))
    return checks


def compare_command(
    plan: Plan, host: Host, expected: Expected, seen: Waiting, place: Place, ready: Ready, pid: int
) -> list[Check]:
    """Return what is a command's own, compared."""
    return [
        *_identity(plan, host, expected, seen, pid),
        *_privileges(plan, host, seen),
        # Same namespaces and root as the first process: what was seen of that holds here.
        _equal("same_place", "fork", (place.namespaces, b"/"), (seen.namespaces, seen.root)),
        *_surroundings(plan, expected, seen, pid),
        *_self_reported(expected, ready),
    ]


def refuse_mismatch(checks: Iterable[Check]) -> None:
    """Raise ``enforcement_mismatch`` for the first comparison that does not hold."""
    for field, _, expected, observed, holds, _ in checks:
        if holds is False:
            want, have = _text(shown(expected)), _text(shown(observed))
            raise SandboxError(
                Code.ENFORCEMENT_MISMATCH,
                f"{field} is {have}, must be {want}",
                "The sandbox was killed before the command's first instruction.",
                {"field": field, "expected": want, "observed": have},
            )


def _equal(
    field: str, mechanism: str, expected: object, observed: object, source: Source = "observed"
) -> Check:
    holds = None if isinstance(observed, Unreadable) else expected == observed
    return (field, mechanism, expected, observed, holds, source)


def _planned_map(plan: Plan, record: int) -> tuple[tuple[int, ...], ...]:
    return tuple(step[1:] for step in plan.steps if step[0] == record)


def _identity(plan: Plan, host: Host, expected: Expected, seen: Waiting, pid: int) -> list[Check]:
    uid = plan.outside(blob.UID_MAP, expected.uid)
    gid = plan.outside(blob.GID_MAP, expected.gid)
    # Without privilege setgroups(2) is denied for good: the caller's groups cannot be dropped.
    privileged = bool(plan.mode & blob.PRIVILEGED)
    groups = () if privileged else host.groups
    kept = "setgroups" if privileged else "kept: only root can drop groups"
    pids = seen.pids
    is_inside = len(pids) == 2 and pids[0] == pid and pids[1] != 1
    return [
        _equal("uid", "setresuid", (uid,) * 4, seen.uids),
        _equal("gid", "setresgid", (gid,) * 4, seen.gids),
        _equal("groups", kept, groups, seen.groups),
        ("pids", "pid namespace", "a pid inside other than 1", pids, is_inside, "observed"),
    ]


def _privileges(plan: Plan, host: Host, seen: Waiting) -> list[Check]:
    mask = plan.capability_mask()
    checks: list[Check] = [
        (f"capabilities.{name}", "capset, securebits", mask, held, mask == held, "observed")
        for name, held in zip(CAPABILITY_SETS, seen.capabilities, strict=True)
    ]
    planned = sum(step[0] == blob.FILTER for step in plan.steps)
    count: object = Unreadable("this kernel does not count filters")
    if host.seccomp_filters is not None and seen.seccomp_filters is not None:
        count = seen.seccomp_filters - host.seccomp_filters
    return [
        *checks,
        _equal("no_new_privs", "prctl", 1, seen.no_new_privs),
        _equal("seccomp_mode", "seccomp", _FILTER_MODE, seen.seccomp_mode),
        _equal("seccomp_filters", "seccomp", planned, count),
    ]


def _surroundings(plan: Plan, expected: Expected, seen: Waiting, pid: int) -> list[Check]:
    limits = {number: hard for number, _, hard in plan.limits}
    return [
        _open_descriptors(expected.pipes, seen.descriptors),
        _equal("session", "setsid", pid, seen.session),
        _equal("terminal", "setsid", 0, seen.terminal),
        # Told, not compared: the directory asked for may be reached through a link.
        ("cwd", "chdir", expected.cwd, seen.cwd, None, "observed"),
        _equal("open_files", "RLIMIT_NOFILE", limits.get(RLIMIT_NOFILE), seen.open_files),
        _equal("core_bytes", "RLIMIT_CORE", limits.get(RLIMIT_CORE), seen.core_limit),
    ]


def _open_descriptors(
    pipes: tuple[int, ...], seen: dict[int, tuple[int, int]] | Unreadable
) -> Check:
    """Three pipes of ours, and what ends with execve. Anything else has leaked in."""
    staying: object = seen
    if not isinstance(seen, Unreadable):
        staying = tuple(
            sorted((n, inode) for n, (inode, flags) in seen.items() if not flags & CLOSE_ON_EXEC)
        )
    return _equal("descriptors", "close_range, own pipes", tuple(enumerate(pipes)), staying)


def _mount_table(mounts: PlannedMounts, seen: tuple[MountPoint, ...]) -> Check:
    """Every mount is planned, or carried along below a bound tree and at least as restricted."""
    planned, trees = mounts
    wrong = []
    missing = set(planned)
    for mount in seen:
        path, options, kind, tags = mount
        restrictions = options & _RESTRICTIONS
        want = planned.get(path)
        if want is not None:
            missing.discard(path)
            alike = restrictions == want[1] if want[2] else restrictions >= want[1]
            fits = alike and want[0] in (b"", kind)
        else:
            fits = any(
                path.startswith(tree + b"/") and restrictions >= least for tree, least in trees
            )
        if tags or not fits:
            wrong.append(_mount_text(path, kind, restrictions, tags))
    wrong += [escaped(path) + " is missing" for path in sorted(missing)]
    observed: object = tuple(wrong) if wrong else f"{len(seen)} mounts"
    return ("mounts", "mount namespace", "as planned", observed, not wrong, "observed")


def _mount_text(
    path: bytes, kind: bytes, restrictions: frozenset[bytes], tags: tuple[bytes, ...]
) -> str:
    options = ",".join(sorted(map(escaped, restrictions))) or "rw"
    return " ".join((escaped(path), escaped(kind), options, *map(escaped, tags)))


def planned_mounts(plan: Plan) -> PlannedMounts:
    """Return per mount point its type, restrictions, and whether exactly those; and the bound
    trees, which may carry further mounts along."""
    planned: dict[bytes, Planned] = {}
    trees: list[tuple[bytes, frozenset[bytes]]] = []
    root = _SPACE | {b"ro"} if plan.mode & blob.ROOT_READONLY else _SPACE
    for step in plan.steps:
        record = step[0]
        if record == blob.ROOT:
            planned[b"/"] = (b"overlay" if step[1] else b"tmpfs", root, True)
        elif record in _MOUNTED:
            path, kind, restrictions, exactly = _MOUNTED[record](step)
            planned[path] = (kind, restrictions, exactly)
            if record == blob.BIND:
                trees.append((path, restrictions))
    return planned, trees


def _attributes(bits: int) -> frozenset[bytes]:
    return frozenset(name for bit, name in _BIND_FLAGS if bits & bit)


# How each record that mounts something shows: path, type, restrictions, and if exactly those.
_MOUNTED: Final[dict[int, Callable[[Step], tuple[bytes, bytes, frozenset[bytes], bool]]]] = {
    blob.BIND: lambda step: (step[4], b"", _attributes(step[2]), False),
    blob.OVERLAY: lambda step: (step[3], b"overlay", _SPACE | {b"ro"}, True),
    blob.SPACE_BIND: lambda step: (step[5], b"tmpfs", _SPACE | _attributes(step[4]), True),
    blob.PROC: lambda step: (step[1], b"proc", _SPACE | {b"ro", b"noexec"}, True),
    blob.DEVPTS: lambda step: (step[1], b"devpts", frozenset({b"nosuid", b"noexec"}), True),
    blob.MASK: lambda step: (step[1], b"tmpfs", _SPACE | {b"ro", b"noexec"}, True),
}


def _self_reported(expected: Expected, ready: Ready) -> list[Check]:
    checks = [
        _equal("dumpable", "prctl", 0, ready.dumpable, "self_reported"),
        _session_keyring(expected.hello, ready.keyring),
    ]
    answers = dict(ready.probes)
    for number, (call, error) in PROBES.items():
        # An answer that was not given counts as allowed.
        answer = answers.get(number, 0)
        holds = answer == error
        wanted, given = errno.errorcode[error], errno.errorcode.get(answer, "allowed")
        checks.append((f"filter.{call}", "seccomp", wanted, given, holds, "self_reported"))
    names: object = tuple(sorted(ready.names))
    wanted_names: object = "as given"
    if expected.names is None:
        names = Unreadable("too many names to report")
    else:
        wanted_names = tuple(sorted(expected.names))
    checks.append(_equal("environment", "execve", wanted_names, names, "self_reported"))
    return checks


def _session_keyring(hello: Hello | None, of_command: int) -> Check:
    """Not the launcher's, and the same from the agent to its commands.

    A serial is 0 where keyctl(2) cannot be called: by the agent where an outer filter denies it,
    by a command always, for ours does.
    """
    own, launchers = (0, 0) if hello is None else (hello.agent_keyring, hello.launcher_keyring)
    holds = (own == 0 or own != launchers) and of_command in (0, own)
    observed = own if of_command == 0 else of_command
    return ("session_keyring", "keyctl", "a fresh one", observed, holds, "self_reported")


def shown(value: object) -> str | tuple[str, ...]:
    """Return what was expected or observed as text for people."""
    if isinstance(value, Unreadable):
        return f"not readable: {value.reason}"
    if isinstance(value, bytes):
        return escaped(value)
    if isinstance(value, tuple):
        return tuple(_text(shown(part)) for part in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _text(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else " ".join(value) or "empty"
