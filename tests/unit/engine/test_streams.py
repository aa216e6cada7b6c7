"""Pipes: bytes are neither lost nor waited for, whatever the other end does."""

from __future__ import annotations

import fcntl
import os
import select

import pytest

from kis.engine.life import STDERR, STDOUT
from kis.engine.streams import Streams


class Taken:
    def __init__(self) -> None:
        self.bytes: dict[int, bytes] = {STDOUT: b"", STDERR: b""}

    def __call__(self, stream: int, data: bytes) -> None:
        self.bytes[stream] += data


def streams(stdin: bytes | None = None, source: int | None = None, merged: bool = False) -> Streams:
    return Streams(merged=merged, stdin=stdin, source=source, owner=None)


def turn(pipes: Streams, taken: Taken, times: int = 1) -> None:
    for _ in range(times):
        poll = select.poll()
        for number, events in pipes.wanted().items():
            poll.register(number, events)
        for number, _ in poll.poll(0):
            pipes.handle(number, taken)


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def nothing_left_open() -> object:
    before = open_descriptors()
    yield
    assert open_descriptors() == before


def test_empty_input_is_at_its_end_at_once() -> None:
    pipes = streams()
    assert os.read(pipes.theirs[0], 10) == b""
    pipes.close()


def test_input_goes_in_and_ends() -> None:
    pipes, taken = streams(b"x" * 200_000), Taken()
    got = b""
    while True:
        turn(pipes, taken)
        part = os.read(pipes.theirs[0], 50_000)
        got += part
        if not part:
            break
    assert got == b"x" * 200_000
    pipes.close()


def test_input_that_nobody_reads_is_no_error() -> None:
    pipes, taken = streams(b"x" * 200_000), Taken()
    turn(pipes, taken)
    pipes.sent()
    turn(pipes, taken, 3)
    assert set(pipes.wanted()) <= {n for n, events in pipes.wanted().items() if events}
    pipes.close()


def test_output_of_both_streams_and_their_ends() -> None:
    pipes, taken = streams(), Taken()
    os.write(pipes.theirs[1], b"out")
    os.write(pipes.theirs[2], b"err")
    turn(pipes, taken)
    pipes.sent()
    turn(pipes, taken)
    assert taken.bytes == {STDOUT: b"out", STDERR: b"err"}
    assert pipes.wanted() == {}
    pipes.close()


def test_merged_is_one_pipe_in_the_order_of_writing() -> None:
    pipes, taken = streams(merged=True), Taken()
    assert pipes.theirs[1] == pipes.theirs[2]
    assert pipes.inodes[1] == pipes.inodes[2]
    for part in (b"o1", b"e1", b"o2"):
        os.write(pipes.theirs[2], part)
    turn(pipes, taken)
    assert taken.bytes[STDOUT] == b"o1e1o2"
    pipes.close()


def test_drain_takes_what_is_there_and_waits_for_nobody() -> None:
    pipes, taken = streams(), Taken()
    os.write(pipes.theirs[1], b"last words")
    pipes.drain(taken)  # the other end stays open
    assert taken.bytes[STDOUT] == b"last words"
    assert pipes.wanted() == {}
    pipes.close()


def test_drain_is_not_held_by_a_writer_of_tiny_packets() -> None:
    """A process left behind that goes on for ever, a byte at a time (pipe(2), O_DIRECT)."""
    pipes, reads = streams(), 0
    writer = pipes.theirs[1]
    fcntl.fcntl(writer, fcntl.F_SETFL, os.O_DIRECT)

    def take(stream: int, data: bytes) -> None:
        nonlocal reads
        reads += 1
        assert (stream, data) == (STDOUT, b"x")
        if reads < 10_000:
            os.write(writer, b"x")

    os.write(writer, b"x")
    pipes.drain(take)
    pipes.close()
    assert 1 < reads < 1000


def test_drain_takes_a_full_pipe_of_packets() -> None:
    pipes, taken = streams(), Taken()
    writer = pipes.theirs[1]
    fcntl.fcntl(writer, fcntl.F_SETFL, os.O_DIRECT | os.O_NONBLOCK)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)  # as much as anybody without privilege can
    packets = 0
    while select.select([], [writer], [], 0)[1]:
        packets += os.write(writer, b"x")
    pipes.drain(taken)
    pipes.close()
    assert packets > 16
    assert taken.bytes[STDOUT] == b"x" * packets


def test_drain_closes_the_gate_of_a_command_that_never_began() -> None:
    pipes = streams()
    pipes.drain(Taken())
    poll = select.poll()
    poll.register(pipes.theirs[3], 0)
    assert poll.poll(0) == [(pipes.theirs[3], select.POLLHUP)]
    pipes.close()


def test_a_source_is_forwarded_until_its_end() -> None:
    read_end, write_end = os.pipe()
    pipes, taken = streams(source=read_end), Taken()
    os.write(write_end, b"typed")
    turn(pipes, taken)
    assert os.read(pipes.theirs[0], 100) == b"typed"
    os.close(write_end)
    turn(pipes, taken)
    assert os.read(pipes.theirs[0], 100) == b""
    pipes.close()
    os.close(read_end)


def test_a_source_is_left_alone_once_its_reader_is_gone() -> None:
    read_end, write_end = os.pipe()
    pipes, taken = streams(source=read_end), Taken()
    pipes.sent()
    turn(pipes, taken)
    assert read_end not in pipes.wanted()
    pipes.close()
    os.close(read_end)
    os.close(write_end)
