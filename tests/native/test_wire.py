"""Both sides of docs/wire.md: what Python writes is what the C readers read, and numbers agree.

Knows: the program `read_wire` of native/tests, built on demand. Must not know: sandboxes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kis.engine import blob, channel

NATIVE = Path(__file__).parents[2] / "native"
each_a_process = settings(deadline=None, max_examples=100)

u32 = st.integers(0, 0xFFFFFFFF)
u64 = st.integers(0, 0xFFFFFFFFFFFFFFFF)
index = st.integers(0, 0xFFFFFFFE)
mode = st.integers(0, 0o1777)
attributes = st.integers(0, 15)
no_nul = st.binary(min_size=1, max_size=60).map(lambda raw: raw.replace(b"\0", b"0"))
parts = no_nul.map(lambda raw: raw.replace(b"/", b"_")).filter(
    lambda part: part not in (b".", b"..")
)
path = st.lists(parts, min_size=1, max_size=4).map(lambda names: b"/" + b"/".join(names))
source_path = st.just(b"/") | path
maps = st.lists(st.tuples(st.integers(0, 1), u32, u32, u32), min_size=1, max_size=8)

record = st.one_of(
    st.tuples(st.sampled_from([blob.UID_MAP, blob.GID_MAP]), u32, u32, st.integers(1, 0xFFFFFFFF)),
    st.tuples(st.just(blob.AGENT), u32, u32),
    st.tuples(st.just(blob.HOSTNAME), no_nul),
    st.tuples(st.just(blob.SPACE), st.integers(1, 2**63), st.integers(1, 2**63)),
    st.builds(blob.idmap, st.integers(1, 0xFFFFFFFE), maps),
    st.just((blob.ROOT, 0, blob.NONE, blob.NONE, b"")),
    st.tuples(st.just(blob.ROOT), st.just(1), index, u32, source_path),
    st.tuples(st.just(blob.DIR), mode, u32, u32, path),
    st.tuples(st.just(blob.FILE), mode, u32, u32, path, st.binary(max_size=200)),
    st.tuples(st.just(blob.LINK), path, no_nul),
    st.tuples(st.just(blob.BIND), index, attributes, u32, path, source_path),
    st.tuples(st.just(blob.SPACE_BIND), mode, u32, u32, attributes, path),
    st.tuples(st.sampled_from([blob.PROC, blob.DEVPTS, blob.MASK]), path),
    st.tuples(st.just(blob.CAPS), u64),
    st.tuples(
        st.just(blob.RLIMIT), st.integers(0, 15), st.integers(0, 99), st.integers(99, 2**64 - 1)
    ),
    st.tuples(st.just(blob.FILTER), st.just(1)),
    st.tuples(st.just(blob.SYSCTL), no_nul, no_nul),
    st.tuples(st.just(blob.OVERLAY), index, u32, path, source_path),
)


@pytest.fixture(scope="session")
def reader() -> Path:
    """The C readers as a program."""
    for tool in ("gcc", "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    program = NATIVE / "build" / "read_wire"
    made = subprocess.run(
        ["make", "-C", NATIVE, "build/read_wire"], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return program


def read(reader: Path, what: str, raw: bytes) -> list[str] | None:
    """The lines that the program prints, or None where the reader refuses."""
    done = subprocess.run([reader, what], input=raw, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr.decode()
    return done.stdout.decode().splitlines() if done.returncode == 0 else None


def shown(*fields: int | bytes) -> str:
    return " ".join(
        f"x{field.hex()}" if isinstance(field, bytes) else str(field) for field in fields
    )


@each_a_process
@given(st.integers(0, 31), st.lists(record, max_size=12))
def test_a_plan_is_read_as_it_was_written(reader: Path, bits: int, steps: list[Any]) -> None:
    plan = [(blob.MODE, bits), *steps]
    assert read(reader, "plan", blob.encode(plan)) == [shown(*step) for step in plan]


@each_a_process
@given(st.data())
def test_a_damaged_plan_is_refused_or_another_plan(reader: Path, data: st.DataObject) -> None:
    """Whatever C accepts of a changed blob, it has read as records, to the last byte."""
    plan = [(blob.MODE, 0), data.draw(record), data.draw(record)]
    raw = bytearray(blob.encode(plan))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    lines = read(reader, "plan", bytes(raw))
    assert lines is None or (len(lines) == len(plan) and lines != [shown(*step) for step in plan])


strings = st.binary(max_size=60).map(lambda raw: raw.replace(b"\0", b"0"))


@each_a_process
@given(
    numbers=st.tuples(u32, u32, u64, st.integers(0, 3), st.integers(0, 0o777)),
    cwd=strings,
    argv=st.lists(no_nul, min_size=1, max_size=5),
    environment=st.lists(strings, max_size=5),
    limits=st.lists(st.tuples(u32, u64, u64), max_size=16),
)
def test_a_command_is_read_as_it_was_written(
    reader: Path,
    numbers: tuple[int, int, int, int, int],
    cwd: bytes,
    argv: list[bytes],
    environment: list[bytes],
    limits: list[tuple[int, int, int]],
) -> None:
    names = ("uid", "gid", "capabilities", "flags", "umask")
    numbered: dict[str, Any] = dict(zip(names, numbers, strict=True))
    packets = channel.encode_exec(
        7,
        **numbered,
        cwd=cwd,
        argv=argv,
        environment=environment,
        limits=limits,
    )
    fields: list[int | bytes] = [*numbers, cwd, len(argv), *argv, len(environment), *environment]
    fields += [len(limits), *(number for limit in limits for number in limit)]
    assert read(reader, "command", payload_of(packets)) == [f"command {shown(*fields)}"]


def payload_of(packets: list[bytes]) -> bytes:
    return b"".join(packet[16:] for packet in packets)


def test_a_long_command_comes_in_several_packets(reader: Path) -> None:
    argv = [b"true", *(b"%0100d" % number for number in range(2000))]
    packets = channel.encode_exec(
        7, uid=1, gid=2, capabilities=0, flags=0, umask=0, cwd=b"/", argv=argv, environment=[]
    )
    assert len(packets) > 1
    assert all(len(packet) <= channel.MAX_PACKET_BYTES for packet in packets)
    assert read(reader, "command", payload_of(packets)) == [
        f"command {shown(1, 2, 0, 0, 0, b'/', len(argv), *argv, 0, 0)}"
    ]


def c_numbers() -> dict[str, int]:
    """Every enumerator of wire.h."""
    text = re.sub(r"/\*.*?\*/", "", (NATIVE / "wire.h").read_text(), flags=re.DOTALL)
    found: dict[str, int] = {}
    for body in re.findall(r"enum \w+ \{(.*?)\}", text, re.DOTALL):
        following = 0
        for entry in filter(None, map(str.strip, body.split(","))):
            name, _, value = (part.strip() for part in entry.partition("="))
            found[name] = int(value, 0) if value else following
            following = found[name] + 1
    return found


def python_name(name: str) -> tuple[object, str] | None:
    """Where Python keeps what C calls so; None for what has no counterpart by name."""
    family, _, rest = name.partition("_")
    if rest == "ALL":
        return None
    places: dict[str, tuple[object, str]] = {
        "REC": (blob, rest),
        "MODE": (blob, rest),
        "BIND": (blob, rest),
        "FRAME": (channel, rest),
        "STEP": (channel, name),
        "STAGE": (channel, name),
        "SCOPE": (channel, name),
        "COMMAND": (channel, rest),
    }
    return places.get(family)


def test_both_sides_use_the_same_numbers() -> None:
    numbers = c_numbers()
    assert len(numbers) > 60
    compared = 0
    for name, value in numbers.items():
        place = python_name(name)
        if place is not None:
            assert (name, getattr(*place)) == (name, value)
            compared += 1
    assert compared > 50
    kinds = [name.removeprefix("KIND_").lower() for name in numbers if name.startswith("KIND_")]
    assert tuple(kinds) == channel.EXEC_KINDS
    steps = [name.removeprefix("STEP_").lower() for name in numbers if name.startswith("STEP_")]
    assert tuple(steps) == channel.STEP_NAMES
