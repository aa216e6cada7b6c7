"""Frames: what is well-formed is understood, everything else is refused with one typed error."""

from __future__ import annotations

import struct

import pytest

from kis.engine import channel
from kis.errors import Code, SandboxError


def packet(
    kind: int, payload: bytes = b"", id: int = 1, flags: int = 0, generation: int = 1
) -> bytes:
    return struct.pack("<IHHII", len(payload), kind, flags, id, generation) + payload


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


HELLO = packet(0x81, struct.pack("<III", 1, 11, 12), id=0)
READY = packet(
    0x82,
    struct.pack("<III", 7, 0, 2)
    + struct.pack("<IIII", 1, 1, 10, 38)
    + struct.pack("<I", 2)
    + text(b"PATH")
    + text(b"HOME"),
)
FAILED = packet(0x83, struct.pack("<III", 2, 2, 4) + text(b"/nope"))
EXITED = packet(0x84, struct.pack("<IIQQQ", 3, 0, 10, 20, 30))
SIGNALED = packet(0x84, struct.pack("<IIQQQ", 0xFFFFFFFF, 9, 10, 20, 30))
FAULT = packet(0x85, struct.pack("<III", 7, 22, 5) + text(b"overlay"), id=0)
GOOD = [HELLO, READY, FAILED, EXITED, SIGNALED, FAULT]


def test_hello() -> None:
    assert channel.decode(HELLO) == channel.Hello(11, 12)


def test_ready() -> None:
    assert channel.decode(READY) == channel.Ready(1, 7, 0, ((1, 1), (10, 38)), (b"PATH", b"HOME"))


def test_failed() -> None:
    assert channel.decode(FAILED) == channel.Failed(1, 2, 2, "interpreter_missing", b"/nope")


def test_exited_and_signaled() -> None:
    assert channel.decode(EXITED) == channel.Exited(1, 3, None, 10, 20, 30)
    assert channel.decode(SIGNALED) == channel.Exited(1, None, 9, 10, 20, 30)


def test_fault() -> None:
    fault = channel.decode(FAULT)
    assert fault == channel.Fault(7, 22, 5, b"overlay")
    assert isinstance(fault, channel.Fault)
    assert fault.step_name == "mount"


def refused(data: bytes) -> None:
    with pytest.raises(SandboxError) as caught:
        channel.decode(data)
    assert caught.value.code is Code.AGENT_UNREACHABLE


@pytest.mark.parametrize("good", GOOD)
def test_every_cut_and_every_tail_is_refused(good: bytes) -> None:
    for length in range(len(good)):
        refused(good[:length])
        # The same with a header that admits the shorter payload.
        if length >= 16:
            refused(struct.pack("<I", length - 16) + good[4:length])
    refused(good + b"\0")
    refused(struct.pack("<I", len(good) - 15) + good[4:] + b"\0")


@pytest.mark.parametrize(
    "bad",
    [
        packet(0x81, struct.pack("<III", 2, 0, 0)),  # another version
        packet(0x81, struct.pack("<III", 1, 0, 0), flags=1),
        packet(0x81, struct.pack("<III", 1, 0, 0), generation=2),
        packet(0x01),  # a frame of the engine's own
        packet(0x86),
        packet(0x82, struct.pack("<III", 0, 0, 65)),  # too many probes
        packet(0x82, struct.pack("<IIII", 0, 0, 0, 0xFFFFFFFF)),  # too many names
        packet(0x82, struct.pack("<IIII", 0, 0, 0, 1) + text(b"A\0B")),
        packet(0x82, struct.pack("<IIII", 0, 0, 0, 1) + struct.pack("<I", 0xFFFFFFFF)),
        packet(0x83, struct.pack("<III", 7, 0, 0) + text(b"")),  # no such stage
        packet(0x83, struct.pack("<III", 1, 0, 6) + text(b"")),  # no such kind
        packet(0x84, struct.pack("<IIQQQ", 256, 0, 0, 0, 0)),  # no such code
        packet(0x84, struct.pack("<IIQQQ", 0xFFFFFFFF, 0, 0, 0, 0)),  # neither code nor signal
        packet(0x84, struct.pack("<IIQQQ", 1, 9, 0, 0, 0)),  # both
        packet(0x84, struct.pack("<IIQQQ", 0xFFFFFFFF, 65, 0, 0, 0)),
        packet(0x85, struct.pack("<III", 0, 0, 0) + text(b"")),
        packet(0x85, struct.pack("<III", 18, 0, 0) + text(b"")),
        packet(0x84, bytes(65_537)),
    ],
)
def test_hostile_packets_are_refused(bad: bytes) -> None:
    refused(bad)


def command(**changes: object) -> list[bytes]:
    given: dict[str, object] = {
        "uid": 1000,
        "gid": 1001,
        "capabilities": 5,
        "flags": 3,
        "umask": 0o22,
        "cwd": b"/home/user",
        "argv": [b"echo", b"-n", b""],
        "environment": [b"A=b=c"],
        "limits": [(7, 1024, 1024)],
        **changes,
    }
    return channel.encode_exec(4, **given)  # type: ignore[arg-type]


def test_exec_is_laid_out_as_documented() -> None:
    [one] = command(last=True)
    assert struct.unpack_from("<IHHII", one) == (len(one) - 16, 1, 2, 4, 1)
    assert one[16:] == (
        struct.pack("<IIQII", 1000, 1001, 5, 3, 0o22)
        + text(b"/home/user")
        + struct.pack("<I", 3)
        + text(b"echo")
        + text(b"-n")
        + text(b"")
        + struct.pack("<I", 1)
        + text(b"A=b=c")
        + struct.pack("<IIQQ", 1, 7, 1024, 1024)
    )


def test_a_long_command_goes_in_pieces_and_only_the_final_one_is_last() -> None:
    argv = [b"x" * 100_000] * 3
    packets = command(argv=argv, last=True)
    flags = [struct.unpack_from("<IHHII", one)[2] for one in packets]
    assert flags == [1] * (len(packets) - 1) + [2]
    assert all(len(one) <= channel.MAX_PACKET_BYTES for one in packets)
    whole = b"".join(one[16:] for one in packets)
    assert whole.count(b"x" * 100_000) == 3


def test_a_command_beyond_the_agent_is_refused() -> None:
    with pytest.raises(SandboxError) as caught:
        command(argv=[b"x" * 131_000] * 70)
    assert caught.value.code is Code.ARGUMENT_TOO_LONG


def test_signal() -> None:
    assert channel.encode_signal(3, 15, 2) == packet(4, struct.pack("<II", 15, 2), id=3)
