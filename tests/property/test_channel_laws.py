"""Whatever comes out of a sandbox is a frame or one typed error, and never anything else."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from kis.engine import channel
from kis.engine.life import Life, Run
from kis.errors import Code, SandboxError

packets = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda kind, of, payload: struct.pack("<IHHII", len(payload), kind, 0, of, 1) + payload,
        st.sampled_from([0x81, 0x82, 0x83, 0x84, 0x85, 0x86]),
        st.integers(0, 2),
        st.one_of(
            st.binary(max_size=120),
            st.lists(st.integers(0, 40), max_size=12).map(
                lambda numbers: struct.pack(f"<{len(numbers)}I", *numbers)
            ),
        ),
    ),
)


@given(packets)
def test_decoding(packet: bytes) -> None:
    told: object
    try:
        told = channel.decode(packet)
    except SandboxError as error:
        told = error
    if isinstance(told, SandboxError):
        assert told.code is Code.AGENT_UNREACHABLE
        assert str(told).isprintable()
    else:
        assert type(told).__name__ in ("Hello", "Ready", "Failed", "Exited", "Fault")


@given(st.lists(st.tuples(packets, st.sampled_from([100, 101])), max_size=12), st.booleans())
def test_a_life_survives_any_packets(heard: list[tuple[bytes, int]], one_shot: bool) -> None:
    """It may kill; it never raises, and after a failure nothing is ever released."""
    life = Life(0.0, one_shot=one_shot, kills_all=True)
    run = Run(1, wall_seconds=5, grace_seconds=1, output_bytes=10)
    life.begin(run, [b"exec"], 0.0)
    failed = False
    for now, (packet, pid) in enumerate(heard):
        actions = life.received(packet, pid, float(now))
        if failed:
            assert all(kind in ("adopt", "kill") for kind, _ in actions)
        failed = life.failure is not None
    assert life.killed == failed
