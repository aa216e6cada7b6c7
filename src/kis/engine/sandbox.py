"""A live sandbox, driven by poll(2): the blocking driver.

Knows: how to wait for a link. Must not know: what the events mean (life), how it was planned.
Called by: engine, and by those who hold a sandbox.
"""

from __future__ import annotations

import _thread
import math
import select

from kis.engine.admission import refuse_wrong_types
from kis.engine.exchange import Exchange
from kis.engine.select import helps_for
from kis.errors import Code, SandboxError
from kis.vocabulary import Demand, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from kis.command import Command, Outcome
    from kis.engine.life import Sink
    from kis.engine.link import Link
    from kis.profile import Profile
    from kis.vocabulary import Tier


# Of ``ended_by``: what a sandbox ended by, in words.
_ENDS = {
    "closed": "it was closed",
    "time_limit": "its last command ran into the time limit",
    "output_limit": "its last command ran into the output limit",
    "failure": "it could not keep a promise to its last command",
    "interruption": "its last command was broken off by an exception",
    "death": "it died",
}
_REASON_ENDS = {Reason.TIMED_OUT: "time_limit", Reason.OUTPUT_LIMIT: "output_limit"}


def drive(link: Link, done: Callable[[], bool]) -> None:
    """Wait for a link's descriptors and deadlines, and let it act, until ``done``."""
    poll = select.poll()
    registered: dict[int, int] = {}
    while not done():
        wanted = link.wanted()
        if wanted != registered:
            for descriptor in registered.keys() - wanted.keys():
                poll.unregister(descriptor)
            for descriptor, events in wanted.items():
                poll.register(descriptor, events)
            registered = wanted
        left = link.seconds_left()
        for descriptor, _ in poll.poll(None if left is None else math.ceil(left * 1000)):
            link.handle(descriptor)
        link.tick()


def end(link: Link) -> None:
    """Kill what is left of a sandbox, wait for it to be dead, and close every descriptor.

    In a fork of the process that launched it only the last: the sandbox is the other's.
    """
    try:
        if link.is_ours():
            link.kill()
            drive(link, link.is_gone)
    finally:
        link.close()


class Sandbox:
    """A live sandbox: any number of commands, one after the other. A context manager.

    A command that runs into its time or output limit takes the whole sandbox with it. ``close``
    ends everything; a sandbox that is dropped without it warns and is ended all the same.
    """

    def __init__(
        self,
        id: str,
        link: Link,
        profile: Profile,
        claims: frozenset[Demand],
        uid: int,
        release: Callable[[], None],
    ) -> None:
        self.id = id
        self._link: Link | None = link
        self._profile = profile
        self._claims = claims
        self._uid = uid
        self._release = release
        self._ended_by = ""
        self._lock = _thread.allocate_lock()
        self._driver = 0  # the thread that holds the lock

    @property
    def tier(self) -> Tier:
        return self._live().plan.tier

    @property
    def backend(self) -> str:
        return self._live().plan.backend

    def run(
        self,
        command: Command,
        *,
        on_stdout: Sink | None = None,
        on_stderr: Sink | None = None,
        stdin_fd: int | None = None,
    ) -> Outcome:
        """Run one command to its end and return the outcome.

        With ``on_stdout`` or ``on_stderr`` that stream's bytes are handed on as they come, and
        not kept. ``stdin_fd`` is forwarded as standard input. Raises ``SandboxError`` where the
        command could not be started or a promise not be kept, never for a command that fails.
        """
        refuse_wrong_types(command=command)
        self._live()  # before the lock, which a fork may have caught held
        if self._driver == _thread.get_ident():
            raise SandboxError(
                Code.COMMAND_INVALID,
                "a command is being run by this very thread: from a sink or signal handler of it "
                "no other can be",
                "Run it when that one is over, or in another sandbox.",
                {"field": "command"},
            )
        with self._lock:
            self._driver = _thread.get_ident()
            try:
                return self._run(command, (on_stdout, on_stderr), stdin_fd)
            finally:
                self._driver = 0

    def _run(
        self, command: Command, sinks: tuple[Sink | None, Sink | None], stdin_fd: int | None
    ) -> Outcome:
        link = self._live()
        refuse_other_user(link, self._profile, self._claims, self._uid, command)
        exchange = Exchange(
            link, self._profile, command, sandbox=self.id, sinks=sinks, stdin_fd=stdin_fd
        )
        try:
            exchange.begin()
            drive(link, link.is_idle)
        except BaseException:
            self._end(cause_of_end(link, "interruption"))
            raise
        if link.life.gone:
            self._end(cause_of_end(link, "death"))
        return exchange.outcome()

    def close(self) -> None:
        """End the sandbox: every process in it dies. More than once does no harm.

        While another thread runs a command this waits for its end; from a sink or signal handler
        of the thread that runs it, the command is killed. In a fork of the process that made it,
        only the fork's copies of descriptors are closed.
        """
        if self._link is not None and not self._link.is_ours():
            self._end("closed")
            return
        if self._driver == _thread.get_ident():
            if self._link is not None:
                self._link.kill_by_caller()
            return
        with self._lock:
            self._end("closed", orderly=True)

    def _end(self, ended_by: str, *, orderly: bool = False) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        self._ended_by = ended_by
        if not link.is_ours():
            link.close()  # its ids stay taken as well
            return
        try:
            if orderly:
                link.stop()
                drive(link, link.is_gone)
            end(link)
        finally:
            self._release()
        if orderly and link.life.failure is not None:
            raise link.life.failure

    def _live(self) -> Link:
        return live(self._link, self._ended_by)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        link = getattr(self, "_link", None)
        if link is not None:
            if link.is_ours():
                warn_not_closed(self.id)
            self._end("closed")

    def __repr__(self) -> str:
        return f"<Sandbox {self.id}{'' if self._link else ' ended'}>"


def warn_not_closed(id: str) -> None:
    """Say that a sandbox was dropped: its owner cannot have meant that it lives until now."""
    import warnings

    warnings.warn(f"sandbox {id} was not closed", ResourceWarning, stacklevel=3)


def cause_of_end(link: Link, otherwise: str) -> str:
    """Return the ``ended_by`` of a sandbox that ends under its command."""
    life = link.life
    if life.failure is not None:
        return "failure"
    reason = None if life.run is None else life.run.reason
    return otherwise if reason is None else _REASON_ENDS.get(reason, otherwise)


def live(link: Link | None, ended_by: str) -> Link:
    """Return the link of a sandbox that a command can be run in, or raise with the cause."""
    if link is None:
        raise SandboxError(
            Code.AGENT_UNREACHABLE,
            f"the sandbox has ended: {_ENDS[ended_by]}",
            "Make another one.",
            {"ended_by": ended_by},
        )
    if not link.is_ours():
        raise SandboxError(
            Code.AGENT_UNREACHABLE,
            "the sandbox belongs to another process, which this one was forked from",
            "Make one in this process.",
        )
    return link


def refuse_other_user(
    link: Link, profile: Profile, claims: Iterable[Demand], uid: int, command: Command
) -> None:
    """Raise where a command's user is none that this sandbox was made for."""
    unmet = command.demands(link.plan.tier) - frozenset(claims)
    if unmet:
        raise SandboxError(
            Code.PROFILE_UNSATISFIABLE,
            f"this sandbox cannot give {', '.join(sorted(unmet))}",
            " ".join(helps_for(unmet, link.plan.tier)),
            {"field": "user", "unmet": sorted(map(str, unmet))},
        )
    if command.uid != uid and any(mount.writable for mount in profile.mounts):
        raise SandboxError(
            Code.COMMAND_INVALID,
            f"user must be {uid} in this sandbox: its rw mounts stand for one owner",
            "Make another sandbox for that user.",
            {"field": "user"},
        )
