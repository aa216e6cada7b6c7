"""The life of a sandbox and of its command, as a state machine without I/O.

Knows: which event leads to which action and when a wait is over. Must not know: descriptors,
clocks, loops. Called by: sandbox, which feeds it events and carries out the actions it returns.
"""

from __future__ import annotations

import errno
import os

from kis.engine import channel
from kis.errors import Code, SandboxError, escaped
from kis.vocabulary import Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Final

    from kis.engine.channel import Exited, Failed, Fault, Hello

    Sink = Callable[[bytes], object]
    # What the driver must do next; a command's packets go with its three pipe ends.
    Action = tuple[str, object]

# Actions.
SEND: Final = "send"  # bytes: one packet
ADOPT: Final = "adopt"  # int: open a pidfd of the first process, which has this pid
LOOK: Final = "look"  # int: read the place that the first process, of this pid, is in
OBSERVE: Final = "observe"  # (pid, Ready): read the waiting command, then say released or refused
HANG_UP: Final = "hang_up"  # None: close the control socket, at which the agent ends everything
RELEASE: Final = "release"  # None: open the gate, at which the waiting command executes
KILL: Final = "kill"  # None: SIGKILL to the agent
END: Final = "end"  # None: the command is over; take what its pipes still hold

START_SECONDS = 30.0  # from the launch to the command that waits; a loaded machine takes a while
END_SECONDS = 5.0  # from hanging up to SIGKILL
KILL_SECONDS = 10.0  # from SIGKILL to giving up
SIGTERM, SIGKILL = 15, 9
STDOUT, STDERR = 0, 1

_SET_UP = {
    channel.STAGE_IDS: "the command's ids",
    channel.STAGE_LIMITS: "the command's limits",
    channel.STAGE_DESCRIPTORS: "the command's descriptors",
    channel.STAGE_MALFORMED: "a command of this form",
}


class Run:
    """One command: its bounds, its output so far, and how it ended."""

    def __init__(
        self,
        id: int,
        *,
        wall_seconds: float | None,
        grace_seconds: float,
        output_bytes: int | None,
        sinks: tuple[Sink | None, Sink | None] = (None, None),
    ) -> None:
        self.id = id
        self.wall_seconds = wall_seconds
        self.grace_seconds = grace_seconds
        self.output_bytes = output_bytes
        self.sinks = sinks
        # Not one object for each read: a payload decides how little is in one (pipe(2), O_DIRECT).
        self.kept = (bytearray(), bytearray())
        self.counts = [0, 0]
        self.truncated = False
        self.reason: Reason | None = None  # set where we ended it
        self.exited: Exited | None = None
        self.failed: Failed | None = None
        self.failure: SandboxError | None = None  # where this run alone came to nothing
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.deadline: float | None = None
        self.over = False

    def take(self, stream: int, data: bytes) -> bool:
        """Keep or hand on what came out; return whether the limit is now exceeded."""
        room = None if self.output_bytes is None else self.output_bytes - sum(self.counts)
        exceeded = room is not None and len(data) > room
        if exceeded:
            self.truncated = True
            self.reason = self.reason or Reason.OUTPUT_LIMIT
            data = data[:room]
        self.counts[stream] += len(data)
        sink = self.sinks[stream]
        if not data:
            return exceeded
        if sink is None:
            self.kept[stream].extend(data)
        else:
            sink(data)
        return exceeded


class Life:
    """A sandbox from launch to death. ``one_shot``: it ends with its one command.

    ``kills_all`` says that the agent's death is everybody's (it is pid 1); where not, it is given
    the time to kill what it started. Every method returns the actions that follow.
    """

    def __init__(self, now: float, *, one_shot: bool, kills_all: bool) -> None:
        self.one_shot = one_shot
        self.kills_all = kills_all
        self.agent_pid: int | None = None
        self.hello: Hello | None = None
        self.fault: Fault | None = None
        self.failure: SandboxError | None = None
        self.run: Run | None = None
        self.commands = 0
        self.hung_up = False
        self.killed = False
        self.gone = False
        self.deadline: float | None = now + START_SECONDS

    @property
    def live(self) -> bool:
        """Whether commands can be started."""
        return self.hello is not None and not (self.hung_up or self.killed or self.gone)

    def begin(self, run: Run, packets: Sequence[bytes], now: float) -> list[Action]:
        """Start a command: its packets are to be sent, in order."""
        self.run = run
        self.commands += 1
        run.deadline = now + START_SECONDS
        return [(SEND, packet) for packet in packets]

    def received(self, packet: bytes, pid: int, now: float) -> list[Action]:
        """Take a packet and the pid that its credentials name."""
        try:
            if self.failure or self.killed:
                return self._late(channel.decode(packet), pid)
            return self._frame(channel.decode(packet), pid, now)
        except SandboxError as error:
            return self.fail(error, now)

    def _late(self, frame: object, pid: int) -> list[Action]:
        """After a kill only one thing matters: an agent that begins now must end as well."""
        if isinstance(frame, channel.Born) and self.agent_pid is None:
            self.agent_pid = pid
            return [(ADOPT, pid), (KILL, None)]
        return []

    def _frame(self, frame: object, pid: int, now: float) -> list[Action]:
        run = self.run
        if isinstance(frame, channel.Fault):
            self.fault = self.fault or frame
            return []
        if isinstance(frame, channel.Born):
            if self.agent_pid is not None:
                raise channel.broken("a second birth")
            self.agent_pid = pid
            return [(ADOPT, pid)]
        if isinstance(frame, channel.Hello):
            if self.hello is not None or pid != self.agent_pid:
                raise channel.broken("a greeting out of place")
            self.hello, self.deadline = frame, None
            return [(LOOK, pid)]
        if self.hello is None or run is None or getattr(frame, "id", None) != run.id or run.over:
            raise channel.broken("a frame of no command")
        if isinstance(frame, channel.Ready):
            if pid == self.agent_pid or run.started_at is not None or run.failed:
                raise channel.broken("an unexpected ready")
            return [(OBSERVE, (pid, frame))]
        if isinstance(frame, channel.Failed):
            run.failed = frame
            return []
        assert isinstance(frame, channel.Exited)
        return self._exited(run, frame, pid, now)

    def _exited(self, run: Run, frame: Exited, pid: int, now: float) -> list[Action]:
        if pid != self.agent_pid:
            raise channel.broken("an end told by another than the agent")
        if run.started_at is None and run.failed is None:
            if frame.signal is None:
                raise channel.broken("an end before the beginning")
            run.failure = _killed_early(frame.signal)
        run.exited = frame
        self._over(run, now)
        actions: list[Action] = [(END, None)]
        if run.reason is Reason.TIMED_OUT and not self.one_shot:
            return [*actions, *self.kill(now)]
        if self.one_shot:
            # The agent ends by itself after its last command; it is only waited for.
            self.deadline = now + END_SECONDS
        return actions

    def _over(self, run: Run, now: float) -> None:
        run.over = True
        run.ended_at = now
        run.deadline = None

    def released(self, now: float) -> list[Action]:
        """The waiting command is what it must be: let it go. Its time starts to count."""
        run = self.run
        if run is None:
            return []
        run.started_at = now
        run.deadline = None if run.wall_seconds is None else now + run.wall_seconds
        return [(RELEASE, None)]

    def fail(self, error: SandboxError, now: float) -> list[Action]:
        """We cannot keep a promise: nothing of this sandbox may go on."""
        self.failure = self.failure or error
        return self.kill(now)

    def output(self, stream: int, data: bytes, now: float) -> list[Action]:
        """Take bytes of the command. Beyond the limit everything is killed."""
        if self.run is not None and self.run.take(stream, data):
            return self.kill(now)
        return []

    def stop(self, now: float) -> list[Action]:
        """End the sandbox: hang up, at which the agent kills what is left and ends."""
        if self.hung_up or self.killed or self.gone:
            return []
        self.hung_up = True
        self.deadline = now + END_SECONDS
        return [(HANG_UP, None)]

    def kill(self, now: float) -> list[Action]:
        """End the sandbox at once."""
        if not self.kills_all:
            return self.stop(now)
        if self.killed or self.gone:
            return []
        self.killed = True
        self.deadline = now + KILL_SECONDS
        # Both: without an agent yet there is nobody to signal, but somebody who reads the socket.
        hang_up: list[Action] = [] if self.hung_up else [(HANG_UP, None)]
        self.hung_up = True
        return [(KILL, None), *hang_up]

    def channel_ended(self, now: float) -> list[Action]:
        """The other end of the control socket is closed: the agent is ending, or never began."""
        if self.agent_pid is None:
            return self.agent_ended(now)
        if not self.hung_up:
            self.hung_up = True
            self.deadline = now + END_SECONDS
            return [(HANG_UP, None)]
        return []

    def agent_ended(self, now: float) -> list[Action]:
        """The agent is dead, and on a pid namespace's end everybody in it."""
        self.gone = True
        self.deadline = None
        if self.run is not None and not self.run.over:
            self._over(self.run, now)
        return [(END, None)]

    def due(self) -> float | None:
        """Return the moment of the next ``tick``, or ``None`` for never."""
        moments = [self.deadline, self.run.deadline if self.run is not None else None]
        return min((moment for moment in moments if moment is not None), default=None)

    def tick(self, now: float) -> list[Action]:
        """Do what the clock calls for."""
        if self.deadline is not None and now >= self.deadline:
            return self._waited_too_long(now)
        run = self.run
        if run is not None and run.deadline is not None and now >= run.deadline:
            return self._time_is_up(run, now)
        return []

    def _waited_too_long(self, now: float) -> list[Action]:
        if self.killed:
            self.failure = self.failure or SandboxError(
                Code.CLEANUP_FAILED, f"the sandbox is not dead {KILL_SECONDS:g} s after SIGKILL"
            )
            return self.agent_ended(now)
        if self.hung_up or (self.run is not None and self.run.over):
            if not self.kills_all:  # it had not killed everything, and nobody else can
                self.failure = self.failure or SandboxError(
                    Code.CLEANUP_FAILED,
                    f"not everything was killed within {END_SECONDS:g} s: processes may be left",
                    "In the process tier a command can start them faster than they are ended.",
                )
            self.killed = True
            self.deadline = now + KILL_SECONDS
            return [(KILL, None)]
        return self.fail(
            SandboxError(
                Code.AGENT_UNREACHABLE, f"the agent did not answer within {START_SECONDS:g} s"
            ),
            now,
        )

    def _time_is_up(self, run: Run, now: float) -> list[Action]:
        if run.started_at is None:
            run.deadline = None
            return self.fail(
                SandboxError(
                    Code.AGENT_UNREACHABLE,
                    f"the command was not ready to start within {START_SECONDS:g} s",
                ),
                now,
            )
        first = run.reason is None
        run.reason = run.reason or Reason.TIMED_OUT
        if first and run.grace_seconds > 0:
            run.deadline = now + run.grace_seconds
            signal = channel.encode_signal(run.id, SIGTERM, channel.SCOPE_SANDBOX)
            return [(SEND, signal)]
        run.deadline = None
        return self.kill(now)


def _killed_early(signal: int) -> SandboxError:
    """Payloads share a sandbox and may kill each other: no fault of the agent, nor its end."""
    return SandboxError(
        Code.AGENT_UNREACHABLE,
        f"the command was killed by signal {signal} before it began, by another process in its "
        "sandbox",
        "A background process of an earlier command can do so. Or the host's out-of-memory killer.",
        {"signal": signal},
    )


def exec_error(failed: Failed, name: bytes, cwd: bytes) -> SandboxError:
    """Return the error for a command that could not be executed, blaming what is to blame."""
    details: dict[str, object] = {"kind": failed.kind}
    shown, reason = f"'{escaped(name)}'", _reason(failed.errno)
    if failed.stage == channel.STAGE_CWD:
        return SandboxError(
            Code.CWD_INVALID,
            f"the working directory '{escaped(cwd)}' cannot be entered: {reason}",
            "It must exist inside the sandbox.",
            {"field": "cwd", "cwd": escaped(cwd)},
        )
    if failed.stage != channel.STAGE_EXEC:
        step = _SET_UP[failed.stage]
        return SandboxError(
            Code.SETUP_FAILED, f"the agent could not set up {step}: {reason}", "", {"step": step}
        )
    if failed.errno == errno.E2BIG:
        return SandboxError(
            Code.ARGUMENT_TOO_LONG,
            "argv and env are together more than the kernel takes",
            "It takes a quarter of the stack limit (ulimit -s). Pass them by standard input "
            "or in a mounted file.",
            {"field": "argv"},
        )
    if failed.kind == "interpreter_missing":
        interpreter = escaped(failed.detail)
        return SandboxError(
            Code.EXEC_MISSING,
            f"{shown} needs the interpreter '{interpreter}', which is not in the sandbox",
            "A base must hold the program's loader and interpreter.",
            {**details, "interpreter": interpreter},
        )
    if failed.kind == "not_found":
        return SandboxError(
            Code.EXEC_MISSING, f"{shown} is not in the sandbox", "Is it in the base?", details
        )
    words = {"is_directory": "is a directory", "bad_format": "has no format that can be executed"}
    what = words.get(failed.kind, f"cannot be executed: {reason}")
    return SandboxError(Code.EXEC_FORBIDDEN, f"{shown} {what}", "", details)


def _reason(number: int) -> str:
    return os.strerror(number) if number else "unknown"
