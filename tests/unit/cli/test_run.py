"""Output is passed on whole, and nobody who does not read it keeps the engine from its clock."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from kis.cli import render
from kis.cli.run import PassedOn


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A pipe in the place of both standard streams; its ends."""
    reader, writer = os.pipe()
    monkeypatch.setattr(render, "STANDARD_OUTPUT", writer)
    monkeypatch.setattr(render, "STANDARD_ERROR", writer)
    yield reader, writer
    for end in (reader, writer):
        try:
            os.close(end)
        except OSError:
            continue


def everything(reader: int, count: int) -> bytes:
    found = b""
    while len(found) < count:
        found += os.read(reader, 1 << 16)
    return found


@pytest.mark.timeout(60)
@pytest.mark.parametrize("blocking", [True, False])
def test_wait_for_a_reader_ends_with_the_wall_time(output: tuple[int, int], blocking: bool) -> None:
    os.set_blocking(output[1], blocking)
    began = time.monotonic()
    passed = PassedOn(0.3)
    for _ in range(40):
        passed.to_standard_output(b"x" * 65_536)
    assert time.monotonic() - began < 20
    passed.finish(ended_by_itself=False)  # it was ended: what nobody reads is dropped


@pytest.mark.timeout(60)
def test_output_of_a_command_that_ended_reaches_a_slow_reader_whole(
    output: tuple[int, int],
) -> None:
    content = os.urandom(1 << 20)
    passed = PassedOn(0.1)
    for at in range(0, len(content), 65_536):
        passed.to_standard_output(content[at : at + 65_536])
    received: list[bytes] = []
    thread = threading.Thread(target=lambda: received.append(everything(output[0], len(content))))
    thread.start()
    passed.finish(ended_by_itself=True)
    thread.join()
    assert received == [content]


def test_closed_output_is_told_once(output: tuple[int, int]) -> None:
    """What the engine still finds while it kills the sandbox for it goes nowhere."""
    os.close(output[0])
    passed = PassedOn(None)
    with pytest.raises(render.OutputClosed):
        passed.to_standard_output(b"x")
    passed.to_standard_error(b"y")


def test_what_is_held_does_not_grow_with_the_number_of_reads(output: tuple[int, int]) -> None:
    """A payload decides how little comes in one read; a byte must not cost a hundred."""
    passed = PassedOn(0.0)
    passed.to_standard_output(bytes(1 << 20))  # more than the pipe takes, and nobody reads
    [before] = map(len, passed._held.values())
    for _ in range(1000):
        passed.to_standard_output(b"y")
    [held] = passed._held.values()
    assert held[before:] == bytearray(b"y" * 1000)
