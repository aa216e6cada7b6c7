"""A launched sandbox with its descriptors: carries out what its life calls for.

Knows: the control socket, the agent's pidfd, the pipes. Must not know: how one waits (a poll or
an event loop), what a profile is. Called by: sandbox (blocking) and aio, which tell it what is
ready and when.
"""

from __future__ import annotations

import _socket as socket  # the wrapper around it costs the command line 2 ms
import os
import select
import struct
import time

from kis.engine import life as life_actions
from kis.engine import readback
from kis.engine.channel import EXEC, MAX_PACKET_BYTES, MORE, Ready, broken
from kis.engine.life import Life
from kis.engine.observe import observe_command, observe_place
from kis.errors import Code, SandboxError, os_reason
from kis.vocabulary import Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from kis.engine.backend import Plan
    from kis.engine.host import Host
    from kis.engine.launch import Launched
    from kis.engine.life import Action, Run
    from kis.engine.observe import Place
    from kis.engine.readback import Check, Expected, PlannedMounts
    from kis.engine.streams import Streams

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: unix(7)
# Room for one set of credentials and nothing else: a descriptor from inside has no place.
_ANCILLARY_BYTES = socket.CMSG_SPACE(_CREDENTIALS.size)


class Link:
    """The engine's side of one sandbox. Not for two threads at once."""

    def __init__(
        self,
        launched: Launched,
        plan: Plan,
        mounts: PlannedMounts,
        host: Host,
        *,
        one_shot: bool,
    ) -> None:
        self.life = Life(time.monotonic(), one_shot=one_shot, kills_all=plan.confined)
        self.plan = plan
        self._mounts = mounts
        self.host = host
        self.checks: list[Check] = []
        self.streams: Streams | None = None
        self._control: socket.socket | None = launched.control
        self._owner = os.getpid()
        # By a pidfd: somebody else's wait (a host that reaps every child) frees the number.
        self._launcher = _held(launched)
        self._agent = -1
        self._place: Place | SandboxError | None = None
        self._place_checks: list[Check] = []
        self._outbox: list[bytes] = []
        self._expected: Expected | None = None

    def begin(
        self, run: Run, packets: Sequence[bytes], streams: Streams, expected: Expected
    ) -> None:
        """Start a command, or queue it for an agent that is not up yet."""
        self.streams = streams
        self.checks = []
        self._expected = expected
        self._perform(self.life.begin(run, packets, time.monotonic()))

    def is_ours(self) -> bool:
        """Whether this process launched it. A fork of that one has copies of the descriptors."""
        return os.getpid() == self._owner

    def is_greeted(self) -> bool:
        """Whether the agent is up, or will never be."""
        return self.life.hello is not None or self.life.gone

    def is_idle(self) -> bool:
        """Whether the command is over, and the sandbox dead where it died with it."""
        life = self.life
        ending = life.killed or life.hung_up
        return life.gone or (life.run is not None and life.run.over and not ending)

    def is_gone(self) -> bool:
        """Whether the sandbox is dead, with everything that was in it."""
        return self.life.gone

    def wanted(self) -> dict[int, int]:
        """Return what to wait for: descriptors and poll(2) events."""
        wanted = {} if self.streams is None else self.streams.wanted()
        if self._control is not None:
            events = select.POLLIN | (select.POLLOUT if self._outbox else 0)
            wanted[self._control.fileno()] = events
        elif self._agent >= 0 and not self.life.gone:
            wanted[self._agent] = select.POLLIN
        if self._agent >= 0 and self.life.hung_up and not self.life.gone:
            wanted[self._agent] = select.POLLIN
        return wanted

    def handle(self, descriptor: int) -> None:
        """Do what a descriptor is ready for."""
        if self._control is not None and descriptor == self._control.fileno():
            self._flush()
            self._receive()
        elif descriptor == self._agent:
            if self._has_ended():
                self._perform(self.life.agent_ended(time.monotonic()))
        elif self.streams is not None:
            self.streams.handle(descriptor, self._take)

    def seconds_left(self) -> float | None:
        """Return how long nothing needs to be done, or ``None`` for as long as nothing comes."""
        due = self.life.due()
        return None if due is None else max(0.0, due - time.monotonic())

    def tick(self) -> None:
        """Do what the clock calls for."""
        self._perform(self.life.tick(time.monotonic()))

    def stop(self) -> None:
        """End the sandbox in good order."""
        self._perform(self.life.stop(time.monotonic()))

    def kill_by_caller(self) -> None:
        """End the sandbox at once, and with it the command under way: ``killed``."""
        run = self.life.run
        if run is not None and not run.over:
            run.reason = run.reason or Reason.KILLED
        self.kill()

    def kill(self) -> None:
        """End the sandbox at once."""
        self._perform(self.life.kill(time.monotonic()))

    def _take(self, stream: int, data: bytes) -> None:
        self._perform(self.life.output(stream, data, time.monotonic()))

    def _perform(self, actions: list[Action]) -> None:
        for kind, value in actions:
            if kind == life_actions.SEND:
                assert isinstance(value, bytes)
                self._outbox.append(value)
                self._flush()
            elif kind == life_actions.ADOPT:
                assert isinstance(value, int)
                self._adopt(value)
            elif kind == life_actions.LOOK:
                assert isinstance(value, int)
                self._look_around(value)
            elif kind == life_actions.OBSERVE:
                assert isinstance(value, tuple)
                self._observe(*value)
            elif kind == life_actions.RELEASE and self.streams is not None:
                self.streams.open_gate()
            elif kind == life_actions.HANG_UP:
                self._hang_up()
            elif kind == life_actions.KILL:
                self._signal_kill()
            elif kind == life_actions.END and self.streams is not None:
                self._end_streams()

    def _end_streams(self) -> None:
        """In a one-shot the rest dies and may still write until then; else we are done."""
        if self.streams is not None and (self.life.gone or not self.life.one_shot):
            self.streams.drain(self._take)

    def _flush(self) -> None:
        while self._outbox and self._control is not None:
            packet = self._outbox[0]
            carries = self.streams is not None and _is_last_of_exec(packet)
            rights = self.streams.theirs if carries and self.streams else ()
            try:
                self._control.sendmsg([packet], _rights(rights), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:  # nobody reads any more; the end of file says the rest
                self._outbox.clear()
                return
            self._outbox.pop(0)
            if carries and self.streams is not None:
                self.streams.sent()

    def _receive(self) -> None:
        while self._control is not None:
            try:
                packet, ancillary, flags, _ = self._control.recvmsg(
                    MAX_PACKET_BYTES, _ANCILLARY_BYTES
                )
            except BlockingIOError:
                return
            except ConnectionResetError:
                # It ended with something of ours unread. The kernel tells that first, and once;
                # the last words still come, and then the end of file.
                continue
            now = time.monotonic()
            if not packet:
                self._control.close()
                self._control = None
                self._perform(self.life.channel_ended(now))
                return
            pid = _sender(ancillary)
            if pid is None or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                self._perform(self.life.fail(broken("a packet with more than its due"), now))
            else:
                self._perform(self.life.received(packet, pid, now))

    def _adopt(self, pid: int) -> None:
        """Hold the agent by a pidfd, having made sure that it is our own child."""
        try:
            self._agent = os.pidfd_open(pid)
            # Somebody else's wait (a host that reaps every child) may have freed the number.
            os.waitid(os.P_PIDFD, self._agent, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except OSError as error:
            if self._agent >= 0:
                os.close(self._agent)
                self._agent = -1
            failure = SandboxError(
                Code.AGENT_UNREACHABLE,
                f"the agent cannot be held: {os_reason(error)}",
                "Does this process wait for children that it did not start?",
            )
            self._perform(self.life.fail(failure, time.monotonic()))

    def _look_around(self, pid: int) -> None:
        """Read what all commands share from the first process, while the first command forks.

        It may be gone already, when its command could not even be made ready; that is for the
        frames to tell, and only a command that waits needs the place it is in.
        """
        self._reap_launcher()
        if not self.plan.confined:
            return
        try:
            self._place = observe_place(pid)
            self._place_checks = readback.compare_place(
                self.plan, self._mounts, self.host, self._place
            )
        except SandboxError as error:
            self._place = error

    def _observe(self, pid: int, ready: Ready) -> None:
        now = time.monotonic()
        self._reap_launcher()
        if self.plan.confined:
            try:
                self.checks = self._compared(pid, ready)
                readback.refuse_mismatch(self.checks)
            except SandboxError as error:
                # One that was killed as it waited cannot be read, nor go on: its end will be told.
                if _is_alive(pid):
                    self._perform(self.life.fail(error, now))
                return
        self._perform(self.life.released(now))

    def _compared(self, pid: int, ready: Ready) -> list[Check]:
        if isinstance(self._place, SandboxError):
            raise self._place
        if self._place is None or self._expected is None:
            raise SandboxError(Code.INVARIANT_FAILED, "a command waits that was not begun")
        seen = observe_command(pid)
        self._expected.hello = self.life.hello
        return [
            *self._place_checks,
            *readback.compare_command(
                self.plan, self.host, self._expected, seen, self._place, ready, pid
            ),
        ]

    def _hang_up(self) -> None:
        """Half a close: the agent sees the end, and we still hear its last words."""
        self._outbox.clear()
        if self._control is not None:
            try:
                self._control.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it is gone already, which is what we want

    def _signal_kill(self) -> None:
        import signal

        held = self._agent if self._agent >= 0 else self._launcher
        if held < 0:
            return
        try:
            signal.pidfd_send_signal(held, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _has_ended(self) -> bool:
        try:
            return os.waitid(os.P_PIDFD, self._agent, os.WEXITED | os.WNOHANG) is not None
        except ChildProcessError:  # reaped by somebody else, who thereby says that it has ended
            return True

    def _reap_launcher(self, *, wait: bool = False) -> None:
        """Leave no zombie of the launcher, which normally ends when the first process goes on."""
        if self._launcher < 0:
            return
        options = os.WEXITED | (0 if wait else os.WNOHANG)
        try:
            ended = os.waitid(os.P_PIDFD, self._launcher, options) is not None
        except ChildProcessError:  # reaped by somebody else, or as the agent, which it can be
            ended = True
        if ended:
            os.close(self._launcher)
            self._launcher = -1

    def close(self) -> None:
        """Close every descriptor. For a sandbox that is gone, or is abandoned to end by itself."""
        failure = self.life.failure
        stuck = failure is not None and failure.code is Code.CLEANUP_FAILED
        self._reap_launcher(wait=self.life.gone and not stuck)
        if self.streams is not None:
            self.streams.close()
        if self._control is not None:
            self._control.close()
            self._control = None
        for held in {self._agent, self._launcher} - {-1}:
            os.close(held)
        self._agent = self._launcher = -1


def _is_last_of_exec(packet: bytes) -> bool:
    return packet[4] == EXEC and not packet[6] & MORE


def _rights(descriptors: Sequence[int]) -> list[tuple[int, int, bytes]]:
    if not descriptors:
        return []
    packed = struct.pack(f"{len(descriptors)}i", *descriptors)
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)]


def _sender(ancillary: Sequence[tuple[int, int, bytes]]) -> int | None:
    """Return the pid that the kernel attests, if credentials and nothing else came along."""
    if len(ancillary) != 1:
        return None
    level, kind, data = ancillary[0]
    if level != socket.SOL_SOCKET or kind != socket.SCM_CREDENTIALS:
        return None
    pid: int = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0]
    return pid or None


def _is_alive(pid: int) -> bool:
    try:
        process = os.pidfd_open(pid)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    try:
        poll = select.poll()
        poll.register(process, select.POLLIN)  # pidfd_open(2): readable once it has ended
        return not poll.poll(0)
    finally:
        os.close(process)


def _held(launched: Launched) -> int:
    """Return a pidfd of the launcher, or -1 where somebody else has reaped it already."""
    try:
        return os.pidfd_open(launched.pid)
    except ProcessLookupError:
        return -1
    except OSError as error:
        launched.control.close()  # at which what was launched ends
        raise SandboxError(
            Code.SETUP_FAILED,
            f"the launcher cannot be held: {os_reason(error)}",
            "Is the limit on open files (ulimit -n) reached?",
            {"step": "agent"},
        ) from error
