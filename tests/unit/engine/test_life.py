"""The life of a sandbox, told by events alone: no process, no clock, no descriptor."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest

from kis.engine import channel
from kis.engine.life import (
    ADOPT,
    END,
    END_SECONDS,
    HANG_UP,
    KILL,
    KILL_SECONDS,
    LOOK,
    OBSERVE,
    RELEASE,
    SEND,
    START_SECONDS,
    Life,
    Run,
    exec_error,
)
from kis.errors import Code, SandboxError
from kis.vocabulary import Reason

AGENT, COMMAND = 100, 101


def frame(kind: int, payload: bytes, id: int = 1) -> bytes:
    return channel.encode(kind, id, payload)


BORN = frame(channel.BORN, b"", id=0)
HELLO = frame(channel.HELLO, struct.pack("<III", 1, 5, 6), id=0)
READY = frame(channel.READY, struct.pack("<IIII", 0, 0, 0, 0))
KILLED = frame(channel.EXITED, struct.pack("<IIQQQ", 0xFFFFFFFF, 9, 1, 1, 1))
EXITED = frame(channel.EXITED, struct.pack("<IIQQQ", 0, 0, 1, 1, 1))
FAILED = frame(channel.FAILED, struct.pack("<IIII", 2, 2, 1, 0))
FAULT = frame(channel.FAULT, struct.pack("<IIII", 3, 1, 0xFFFFFFFF, 0), id=0)


def run(**bounds: Any) -> Run:
    return Run(1, **{"wall_seconds": 10, "grace_seconds": 2, "output_bytes": 8, **bounds})


def life(one_shot: bool = True, kills_all: bool = True, **bounds: Any) -> tuple[Life, Run]:
    made, command = Life(0.0, one_shot=one_shot, kills_all=kills_all), run(**bounds)
    assert made.begin(command, [b"exec"], 0.0) == [(SEND, b"exec")]
    return made, command


def started(**how: Any) -> tuple[Life, Run]:
    made, command = life(**how)
    assert made.received(BORN, AGENT, 0.5) == [(ADOPT, AGENT)]
    assert made.received(HELLO, AGENT, 1.0) == [(LOOK, AGENT)]
    [(kind, value)] = made.received(READY, COMMAND, 2.0)
    assert kind == OBSERVE
    assert isinstance(value, tuple)
    assert value[0] == COMMAND
    assert made.released(3.0) == [(RELEASE, None)]
    return made, command


def test_one_shot_from_launch_to_death() -> None:
    made, command = started()
    assert made.received(EXITED, AGENT, 4.0) == [(END, None)]
    assert command.over
    assert not made.gone
    assert made.channel_ended(4.1) == [(HANG_UP, None)]
    assert made.agent_ended(4.2) == [(END, None)]
    assert made.gone
    assert made.due() is None
    assert (command.reason, command.started_at, command.ended_at) == (None, 3.0, 4.0)


def test_a_session_lives_on() -> None:
    made, command = started(one_shot=False)
    assert made.received(EXITED, AGENT, 4.0) == [(END, None)]
    assert made.live
    assert made.due() is None
    second = Run(2, wall_seconds=None, grace_seconds=0, output_bytes=None)
    made.begin(second, [b"exec"], 5.0)
    [(kind, _)] = made.received(
        frame(channel.READY, struct.pack("<IIII", 0, 0, 0, 0), id=2), COMMAND, 6.0
    )
    assert kind == OBSERVE
    assert command.over


def test_time_is_up_twice() -> None:
    made, command = started()
    assert made.due() == 13.0
    assert made.tick(12.9) == []
    [(kind, packet)] = made.tick(13.0)
    assert (kind, packet) == (SEND, channel.encode_signal(1, 15, channel.SCOPE_SANDBOX))
    assert made.due() == 15.0
    assert made.tick(15.0) == [(KILL, None), (HANG_UP, None)]
    assert made.agent_ended(15.1) == [(END, None)]
    assert command.reason is Reason.TIMED_OUT


def test_no_grace_kills_at_once() -> None:
    made, _ = started(grace_seconds=0)
    assert made.tick(13.0) == [(KILL, None), (HANG_UP, None)]


def test_a_time_out_ends_a_session() -> None:
    made, command = started(one_shot=False)
    made.tick(13.0)
    assert made.received(EXITED, AGENT, 13.5) == [(END, None), (KILL, None), (HANG_UP, None)]
    assert command.reason is Reason.TIMED_OUT
    assert not made.live


def test_unlimited_time() -> None:
    made, _ = started(wall_seconds=None)
    assert made.due() is None


def test_output_is_kept_to_the_byte_and_then_everything_dies() -> None:
    made, command = started()
    assert made.output(0, b"12345", 4.0) == []
    assert made.output(1, b"678", 4.0) == []
    assert not command.truncated
    assert made.output(1, b"9", 4.0) == [(KILL, None), (HANG_UP, None)]
    assert made.output(0, b"more", 4.1) == []
    assert (command.kept, command.truncated) == ((b"12345", b"678"), True)
    assert command.reason is Reason.OUTPUT_LIMIT


def test_output_beyond_the_limit_is_cut_within_a_chunk() -> None:
    made, command = started()
    made.output(0, b"123456789", 4.0)
    assert command.kept[0] == b"12345678"
    assert command.counts == [8, 0]


def test_a_sink_takes_bytes_that_are_then_not_kept() -> None:
    taken: list[bytes] = []
    command = run(sinks=(taken.append, None))
    assert not command.take(0, b"1234")
    assert command.take(0, b"56789")
    assert (taken, command.kept) == ([b"1234", b"5678"], (b"", b""))


def test_output_in_tiny_parts_takes_no_more_room_than_in_large_ones() -> None:
    """A payload with O_DIRECT on its standard output decides how much one read gives."""
    command = run(output_bytes=None)
    tracemalloc.start()
    try:
        for at in range(50_000):
            command.take(0, b"%02d" % (at % 100))  # a new object each time, as from read(2)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(command.kept[0]) == 100_000
    assert kept_bytes < 400_000


@pytest.mark.parametrize("kills_all", [True, False])
def test_whoever_is_no_pid_1_gets_time_to_kill_its_children(kills_all: bool) -> None:
    made, _ = started(kills_all=kills_all)
    actions = made.kill(5.0)
    assert actions == ([(KILL, None), (HANG_UP, None)] if kills_all else [(HANG_UP, None)])
    if not kills_all:
        assert made.tick(5.0 + END_SECONDS) == [(KILL, None)]


def test_stop_then_kill_then_give_up() -> None:
    made, _ = started(one_shot=False)
    assert made.stop(5.0) == [(HANG_UP, None)]
    assert made.stop(5.0) == []
    assert made.tick(5.0 + END_SECONDS) == [(KILL, None)]
    made.tick(5.0 + END_SECONDS + KILL_SECONDS)
    assert made.failure is not None
    assert made.failure.code is Code.CLEANUP_FAILED
    assert made.gone


def test_a_one_shot_whose_agent_lingers_is_killed() -> None:
    made, _ = started()
    made.received(EXITED, AGENT, 4.0)
    assert made.tick(4.0 + END_SECONDS) == [(KILL, None)]


def test_an_agent_that_never_greets() -> None:
    made, _ = life()
    assert made.tick(START_SECONDS) == [(KILL, None), (HANG_UP, None)]
    assert made.failure is not None
    assert made.failure.code is Code.AGENT_UNREACHABLE
    # It begins now, after all: it must end as well.
    assert made.received(BORN, AGENT, START_SECONDS + 1) == [(ADOPT, AGENT), (KILL, None)]


def test_a_command_that_never_gets_ready() -> None:
    made, _ = life()
    made.received(BORN, AGENT, 0.5)
    made.received(HELLO, AGENT, 1.0)
    assert made.tick(START_SECONDS) == [(KILL, None), (HANG_UP, None)]


def test_a_launch_that_fails_is_over_with_the_channel() -> None:
    made, command = life()
    assert made.received(FAULT, 99, 1.0) == []
    assert made.channel_ended(1.1) == [(END, None)]
    assert (made.gone, command.over) == (True, True)
    assert made.fault == channel.Fault(3, 1, None, b"")


def test_a_launch_that_fails_after_birth_waits_for_the_first_process() -> None:
    made, command = life()
    assert made.received(BORN, AGENT, 0.5) == [(ADOPT, AGENT)]
    assert made.received(FAULT, AGENT, 1.0) == []
    assert made.channel_ended(1.1) == [(HANG_UP, None)]
    assert not made.gone
    assert made.agent_ended(1.2) == [(END, None)]
    assert (made.gone, command.over) == (True, True)


def test_a_failed_command_still_exits() -> None:
    made, command = life()
    made.received(BORN, AGENT, 0.5)
    made.received(HELLO, AGENT, 1.0)
    assert made.received(FAILED, COMMAND, 2.0) == []
    assert made.received(EXITED, AGENT, 2.0) == [(END, None)]
    assert command.failed is not None


@pytest.mark.parametrize(
    ("packets", "what"),
    [
        ([(BORN, AGENT), (READY, COMMAND)], "before a greeting"),
        ([(HELLO, AGENT)], "a greeting before birth"),
        ([(BORN, AGENT), (BORN, AGENT)], "a second birth"),
        ([(BORN, AGENT), (HELLO, COMMAND)], "a greeting by another"),
        ([(BORN, AGENT), (HELLO, AGENT), (HELLO, AGENT)], "a second greeting"),
        ([(BORN, AGENT), (HELLO, AGENT), (READY, AGENT)], "the agent is no command"),
        ([(BORN, AGENT), (HELLO, AGENT), (EXITED, AGENT)], "an end before the beginning"),
        (
            [(BORN, AGENT), (HELLO, AGENT), (FAILED, COMMAND), (READY, COMMAND)],
            "ready after failing",
        ),
        ([(BORN, AGENT), (HELLO, AGENT), (b"junk", AGENT)], "no frame"),
        (
            [(BORN, AGENT), (HELLO, AGENT), (frame(channel.READY, bytes(16), id=9), COMMAND)],
            "another command",
        ),
    ],
)
def test_whatever_breaks_the_protocol_kills(packets: list[tuple[bytes, int]], what: str) -> None:
    made, _ = life()
    for packet, pid in packets[:-1]:
        made.received(packet, pid, 1.0)
    assert (KILL, None) in made.received(*packets[-1], 2.0), what
    assert made.failure is not None
    assert made.failure.code is Code.AGENT_UNREACHABLE


def test_the_end_of_a_command_is_told_by_the_agent_alone() -> None:
    made, _ = started()
    assert (KILL, None) in made.received(EXITED, COMMAND, 4.0)


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("one_shot", [False, True])
def test_a_command_killed_as_it_waits_breaks_no_protocol(ready: bool, one_shot: bool) -> None:
    """Another process of the sandbox did it; the sandbox can go on living."""
    made, command = life(one_shot=one_shot)
    made.received(BORN, AGENT, 0.5)
    made.received(HELLO, AGENT, 1.0)
    if ready:
        made.received(READY, COMMAND, 1.5)
    assert made.received(KILLED, AGENT, 2.0) == [(END, None)]
    assert (made.failure, made.killed, command.over) == (None, False, True)
    assert made.live
    assert command.failure is not None
    assert command.failure.code is Code.AGENT_UNREACHABLE
    assert "killed by signal 9 before it began" in command.failure.message


def test_only_the_agent_tells_of_a_command_killed_as_it_waited() -> None:
    made, _ = life()
    made.received(BORN, AGENT, 0.5)
    made.received(HELLO, AGENT, 1.0)
    assert (KILL, None) in made.received(KILLED, COMMAND, 2.0)
    assert made.failure is not None
    assert "protocol" in made.failure.message


def test_a_command_that_ran_and_was_killed_is_no_failure() -> None:
    made, command = started()
    assert made.received(KILLED, AGENT, 4.0) == [(END, None)]
    assert command.failure is None


def test_a_second_ready_kills() -> None:
    made, _ = started()
    assert (KILL, None) in made.received(READY, COMMAND, 4.0)


def test_a_refused_command_is_never_released() -> None:
    made, _ = life()
    made.received(BORN, AGENT, 0.5)
    made.received(HELLO, AGENT, 1.0)
    made.received(READY, COMMAND, 2.0)
    mismatch = SandboxError(Code.ENFORCEMENT_MISMATCH, "uid is 0")
    assert made.fail(mismatch, 2.0) == [(KILL, None), (HANG_UP, None)]
    assert made.failure is mismatch


@pytest.mark.parametrize(
    ("stage", "errno", "kind", "code"),
    [
        (1, 2, "other", Code.CWD_INVALID),
        (2, 2, "not_found", Code.EXEC_MISSING),
        (2, 2, "interpreter_missing", Code.EXEC_MISSING),
        (2, 13, "not_executable", Code.EXEC_FORBIDDEN),
        (2, 13, "is_directory", Code.EXEC_FORBIDDEN),
        (2, 8, "bad_format", Code.EXEC_FORBIDDEN),
        (2, 7, "other", Code.ARGUMENT_TOO_LONG),
        (3, 1, "other", Code.SETUP_FAILED),
        (6, 22, "other", Code.SETUP_FAILED),
    ],
)
def test_what_could_not_be_executed_is_told_apart(
    stage: int, errno: int, kind: str, code: Code
) -> None:
    failed = channel.Failed(1, stage, errno, kind, b"/nope/interp")
    error = exec_error(failed, b"prog\x1b[2J", b"/no\nwhere")
    assert error.code is code
    assert error.message.isprintable()
    if kind == "interpreter_missing":
        assert error.details["interpreter"] == "/nope/interp"


def test_a_supervisor_that_had_to_be_killed_has_not_cleaned_up() -> None:
    """In the process tier nobody else can: a promise was not kept, and that is said."""
    made, _ = started(kills_all=False)
    made.received(EXITED, AGENT, 4.0)
    assert made.tick(4.0 + END_SECONDS) == [(KILL, None)]
    assert made.failure is not None
    assert made.failure.code is Code.CLEANUP_FAILED
