"""The one place that starts a process: kis-init, with nothing but the descriptors of its plan.

Knows: how the launcher is started (docs/wire.md). Must not know: what is in a plan, or what
happens next. Called by: sandbox.
"""

from __future__ import annotations

import _socket as socket  # the wrapper around it costs the command line 2 ms
import _thread
import errno
import fcntl
import os

from kis.errors import Code, SandboxError, os_reason, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_MFD_EXEC = 0x10  # since Linux 6.3; memfd_create(2)
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_FIRST_FREE = 3  # below lie the standard streams, which a start overwrites


class Agent:
    """The installed kis-init, and its sealed copy that no payload can reach by a path.

    One for each process: a fork gets copies of its own, for the pidfd names a process.
    """

    def __init__(self, path: str | bytes) -> None:
        self.path = os.fsencode(path)
        self._sealed = -1
        self._engine = -1
        self._owner = 0
        self._lock = _thread.allocate_lock()

    def descriptors(self) -> tuple[int, int]:
        """Return the sealed copy and a pidfd of this process, made at the first call.

        Raises ``tier_unavailable`` where the kernel lets no sealed file be executed, and
        ``setup_failed`` where kis-init cannot be read.
        """
        if self._owner != os.getpid() or self._sealed < 0:
            with self._lock:
                self._make()
        return self._sealed, self._engine

    def _make(self) -> None:
        if self._owner != os.getpid():
            if self._engine >= 0:
                os.close(self._engine)
            self._engine = _above_standard(os.pidfd_open(os.getpid()))
        if self._sealed < 0:
            self._sealed = _sealed("kis-init", self._content(), executable=True)
        self._owner = os.getpid()

    def _content(self) -> bytes:
        try:
            with open(self.path, "rb", buffering=0) as file:
                return file.readall()
        except OSError as error:
            raise SandboxError(
                Code.SETUP_FAILED,
                f"kis-init at {quoted(self.path)} cannot be read: {os_reason(error)}",
                "Reinstall kis; its package builds kis-init.",
                {"step": "agent"},
            ) from error

    def close(self) -> None:
        """Close both descriptors; the next launch would make new ones."""
        for descriptor in (self._sealed, self._engine):
            if descriptor >= 0:
                os.close(descriptor)
        self._sealed = self._engine = -1
        self._owner = 0

    def __del__(self) -> None:
        self.close()


class Launched:
    """A launcher under way: its pid, and the engine's end of the control socket."""

    __slots__ = ("control", "pid")

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = control


def launch(
    agent: Agent,
    plan: bytes,
    sources: Sequence[int],
    *,
    supervise: bool,
    privileged: bool,
    lease: int | None = None,
) -> Launched:
    """Start kis-init on an encoded plan and return at once; what follows comes as frames.

    Without privilege the installed file is started, since a security module may allow namespaces
    to that path alone. As root it is the sealed copy, which is then the agent without an exec.
    ``lease`` is a descriptor that the sandbox keeps open as long as it lives.

    The environment is empty, the standard streams are /dev/null; the launcher itself resets
    signals and closes what was not passed. No parent-death signal: the calling thread may end;
    the control socket keeps it alive.
    """
    try:
        return _launch(agent, plan, sources, supervise, privileged, lease)
    except OSError as error:
        raise SandboxError(
            Code.HOST_OUT_OF_SPACE if error.errno == errno.ENOSPC else Code.SETUP_FAILED,
            f"the launch cannot be made ready: {os_reason(error)}",
            "Is the limit on open files (ulimit -n) or on their size (ulimit -f) reached?",
            {"step": "agent"},
        ) from error


def _launch(
    agent: Agent,
    plan: bytes,
    sources: Sequence[int],
    supervise: bool,
    privileged: bool,
    lease: int | None,
) -> Launched:
    sealed, engine = agent.descriptors()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    blob = -1
    try:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        ours.setblocking(False)
        blob = _sealed("kis-plan", plan)
        control = theirs.fileno()
        if control < _FIRST_FREE:
            control = _above_standard(theirs.detach())
            theirs = socket.socket(fileno=control)
        held = engine if lease is None else lease
        passed = [blob, control, engine] if supervise else [blob, control, sealed, engine, held]
        passed.extend(sources)
        path = b"/proc/self/fd/%d" % sealed if privileged else agent.path
        return Launched(_spawn(path, b"supervise" if supervise else b"launch", passed), ours)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        if blob >= 0:
            os.close(blob)


def _spawn(path: bytes, verb: bytes, passed: Sequence[int]) -> int:
    null = os.devnull
    actions: list[tuple[int, int, str, int, int] | tuple[int, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, null, os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_DUP2, 0, 2),
    ]
    # A descriptor dup2ed onto itself loses close-on-exec in the child alone (POSIX 2024, glibc
    # 2.29): no other thread's child can inherit it meanwhile.
    actions.extend((os.POSIX_SPAWN_DUP2, number, number) for number in dict.fromkeys(passed))
    argv = [b"kis-init", verb, *(b"%d" % number for number in passed)]
    try:
        return os.posix_spawn(path, argv, {}, file_actions=actions)
    except OSError as error:
        raise SandboxError(
            Code.SETUP_FAILED,
            f"kis-init at {quoted(path)} cannot be started: {os_reason(error)}",
            "Reinstall kis; its package builds kis-init.",
            {"step": "agent"},
        ) from error


def _sealed(name: str, content: bytes, *, executable: bool = False) -> int:
    """Return a file in memory that nobody can change any more."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        try:
            descriptor = os.memfd_create(name, flags | (_MFD_EXEC if executable else 0))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            descriptor = os.memfd_create(name, flags)  # before 6.3 every memfd is executable
    except PermissionError as error:
        raise SandboxError(
            Code.TIER_UNAVAILABLE,
            "no sealed file can be executed here: vm.memfd_noexec is 2",
            "Set it to 1 or 0: sysctl vm.memfd_noexec=1.",
            {"step": "agent"},
        ) from error
    descriptor = _above_standard(descriptor)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _above_standard(descriptor: int) -> int:
    """Return the descriptor, moved if it took the place of a closed standard stream."""
    if descriptor >= _FIRST_FREE:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    finally:
        os.close(descriptor)
