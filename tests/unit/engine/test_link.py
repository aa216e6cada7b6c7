"""A launcher is held by a pidfd alone: its number may be another's after somebody else's wait."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from made_up import ROOT, plan_of

from kis.engine import channel, readback
from kis.engine.launch import Launched
from kis.engine.link import Link

BORN = channel.encode(channel.BORN, 0, b"")
HELLO = channel.encode(channel.HELLO, 0, struct.pack("<III", 1, 5, 6))


class World:
    """Children of this process and links to them; all of it ends with the test."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.ours.setblocking(False)
        stack.callback(self.theirs.close)
        stack.callback(self.ours.close)

    def child(self, act: Callable[[], object]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                act()
            finally:
                os._exit(0)
        self.stack.callback(reap, pid)
        return pid

    def ended_child(self) -> int:
        """A child that has ended and that nobody has waited for."""
        pid = self.child(lambda: None)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return pid

    def link(self, launcher: int) -> Link:
        plan = plan_of()
        launched = Launched(launcher, self.ours)  # type: ignore[arg-type]
        made = Link(launched, plan, readback.planned_mounts(plan), ROOT, one_shot=False)
        self.stack.callback(made.close)
        return made

    def greet(self, link: Link) -> None:
        """Let a first process be born and greet."""

        def agent() -> None:
            self.theirs.send(BORN)
            self.theirs.send(HELLO)
            signal.pause()

        self.child(agent)
        while not link.is_greeted():
            link.handle(self.ours.fileno())
        assert link.life.live


def reap(pid: int) -> None:
    if is_child(pid):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def is_child(pid: int) -> bool:
    """Whether it is there to be waited for, be it alive or a zombie."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


@pytest.fixture
def world() -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack)


def test_a_launcher_that_has_ended_is_reaped_at_the_greeting(world: World) -> None:
    """No zombie for the life of a session."""
    launcher = world.ended_child()
    link = world.link(launcher)
    assert is_child(launcher)
    world.greet(link)
    assert not is_child(launcher)


def test_a_launcher_that_ends_later_is_reaped_with_the_sandbox(world: World) -> None:
    launcher = world.child(signal.pause)
    link = world.link(launcher)
    world.greet(link)
    assert is_child(launcher)
    os.kill(launcher, signal.SIGKILL)
    link.life.gone = True
    link.close()
    assert not is_child(launcher)


def test_without_a_first_process_it_is_the_launcher_that_is_killed(world: World) -> None:
    launcher = world.child(signal.pause)
    world.link(launcher).kill()
    ended = os.waitid(os.P_PID, launcher, os.WEXITED)
    assert ended is not None
    assert ended.si_status == signal.SIGKILL


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_number_of_a_launcher_reaped_by_another_is_let_be(
    world: World, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host application that waits for any child frees the number for a stranger."""
    launcher = world.ended_child()
    if when == "before":
        os.waitpid(launcher, 0)
    link = world.link(launcher)
    if when == "after":
        os.waitpid(launcher, 0)
    waitid = os.waitid

    def by_pidfd_only(kind: int, *rest: Any) -> Any:
        assert kind == os.P_PIDFD
        return waitid(kind, *rest)

    def never(*_: object) -> None:
        pytest.fail("a number was signalled")

    with monkeypatch.context() as patched:
        patched.setattr(os, "waitid", by_pidfd_only)
        patched.setattr(os, "kill", never)
        link.kill()
        link.life.gone = True
        link.close()


def test_no_descriptor_is_left(world: World) -> None:
    before = len(os.listdir("/proc/self/fd"))
    link = world.link(world.child(signal.pause))
    world.greet(link)
    link.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1  # the control socket, which it was given


def test_a_command_that_was_killed_as_it_waited_is_no_mismatch(world: World) -> None:
    """What cannot be read of it any more is no sign of a weaker sandbox; it is not let go."""
    link = world.link(world.ended_child())
    world.greet(link)
    killed = world.ended_child()
    link._observe(killed, channel.Ready(1, 0, 0, (), ()))
    assert link.life.failure is None
    link._observe(world.child(signal.pause), channel.Ready(1, 0, 0, (), ()))
    assert link.life.failure is not None
