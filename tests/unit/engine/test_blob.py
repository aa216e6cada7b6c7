"""The plan blob says what the records say; a second decoder, written from docs/wire.md, agrees."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from kis.engine import blob
from kis.errors import Code, SandboxError

# Every record of docs/wire.md with its fields: u32, u64, str, bytes; "map" is IDMAP's list.
WIRE = {
    1: ["u32"],
    2: ["u32"] * 3,
    3: ["u32"] * 3,
    4: ["u32"] * 2,
    5: ["str"],
    6: ["u64"] * 2,
    7: ["u32", "map"],
    8: ["u32"] * 3 + ["str"],
    9: ["u32"] * 3 + ["str"],
    10: ["u32"] * 3 + ["str", "bytes"],
    11: ["str"] * 2,
    12: ["u32"] * 3 + ["str"] * 2,
    13: ["u32"] * 4 + ["str"],
    14: ["str"],
    15: ["str"],
    16: ["str"],
    17: ["u64"],
    18: ["u32", "u64", "u64"],
    19: ["u32"],
    20: ["str"] * 2,
    21: ["u32"] * 2 + ["str"] * 2,
}
EXAMPLES: list[tuple[Any, ...]] = [
    (blob.MODE, 9),
    (blob.UID_MAP, 0, 0x70000000, 65536),
    (blob.GID_MAP, 1000, 1000, 1),
    (blob.AGENT, 65533, 65533),
    (blob.HOSTNAME, b"sandbox"),
    (blob.SPACE, 1 << 40, 65536),
    blob.idmap(1, [(0, 1000, 0x700003E8, 1), (1, 100, 0x700003E8, 1)]),
    (blob.ROOT, 1, 0, blob.NONE, b"/srv/root"),
    (blob.DIR, 0o755, 0, 0, b"/run"),
    (blob.FILE, 0o400, 1000, 1000, b"/run/secrets/x", b"a\0b"),
    (blob.LINK, b"/bin", b"usr/bin"),
    (blob.BIND, 2, 7, blob.NONE, b"/usr", b"/usr"),
    (blob.SPACE_BIND, 0o1777, 0, 0, 0, b"/tmp"),
    (blob.PROC, b"/proc"),
    (blob.DEVPTS, b"/dev/pts"),
    (blob.MASK, b"/proc/keys"),
    (blob.CAPS, 1 << 40),
    (blob.RLIMIT, 4, 1, 1),
    (blob.FILTER, 1),
    (blob.SYSCTL, b"net/ipv4/ping_group_range", b"0 1"),
    (blob.OVERLAY, 3, 0, b"/opt", b"/opt"),
]


class Decoder:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        assert len(self.data) >= count
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def field(self, kind: str) -> list[Any]:
        if kind == "u64":
            return [struct.unpack("<Q", self.take(8))[0]]
        number: int = struct.unpack("<I", self.take(4))[0]
        if kind == "u32":
            return [number]
        if kind == "map":
            return [number, *(self.field("u32")[0] for _ in range(4 * number))]
        return [self.take(number)]


def decoded(data: bytes) -> list[tuple[Any, ...]]:
    head = Decoder(data)
    assert head.take(8) == b"KISPLAN1"
    assert head.field("u32") == [len(data)]
    [count] = head.field("u32")
    steps = []
    for _ in range(count):
        kind, zero = struct.unpack("<HH", head.take(4))
        assert zero == 0
        body = Decoder(head.take(head.field("u32")[0]))
        steps.append((kind, *(value for name in WIRE[kind] for value in body.field(name))))
        assert body.data == b""
    assert head.data == b""
    return steps


def test_every_record_comes_back() -> None:
    assert {step[0] for step in EXAMPLES} == set(WIRE)
    assert decoded(blob.encode(EXAMPLES)) == EXAMPLES


@pytest.mark.parametrize(
    "step",
    [
        (blob.HOSTNAME, b"a\0b"),
        (blob.HOSTNAME, "text"),
        (blob.HOSTNAME, 5),
        (blob.MODE, b"9"),
        (blob.MODE,),
        (blob.MODE, 1, 2),
        (blob.MODE, -1),
        (blob.MODE, 1 << 32),
        (blob.CAPS, 1 << 64),
        (22, 1),
        (blob.FILE, 0o400, 0, 0, b"/x"),
    ],
)
def test_a_malformed_record_is_our_own_fault(step: tuple[Any, ...]) -> None:
    with pytest.raises(SandboxError) as caught:
        blob.encode([step])
    assert caught.value.code is Code.INVARIANT_FAILED


@pytest.mark.parametrize(
    "steps",
    [
        [(blob.MODE, 0)] * 4097,
        [(blob.FILE, 0o400, 0, 0, b"/x", bytes(8 << 20))],
    ],
)
def test_more_than_the_launcher_takes_is_refused(steps: list[tuple[Any, ...]]) -> None:
    with pytest.raises(SandboxError) as caught:
        blob.encode(steps)
    assert caught.value.code is Code.PROFILE_INVALID


@pytest.mark.parametrize("step", EXAMPLES)
def test_every_record_has_words_on_one_line(step: tuple[Any, ...]) -> None:
    text = blob.describe(step)
    assert text.isprintable()
    assert len(text.split()) > 1


def test_words_never_show_a_content_or_a_raw_byte() -> None:
    text = blob.describe((blob.FILE, 0o400, 0, 0, b"/a b\n\xff", b"hunter2"))
    assert "hunter2" not in text
    assert "content=7 bytes" in text
    assert r"path=/a\ b\n\xff" in text


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ((blob.MODE, 1 | 2 | 8), "mode privileged,loopback,root read-only"),
        ((blob.MODE, 4), "mode host network"),
        ((blob.MODE, 0), "mode none"),
        ((blob.BIND, 2, 7, blob.NONE, b"/usr", b"/usr"), "attributes=ro,nosuid,nodev "),
        ((blob.SPACE_BIND, 0o1777, 0, 0, 0, b"/tmp"), "mode=1777 uid=0 gid=0 attributes=none"),
        ((blob.ROOT, 0, blob.NONE, blob.NONE, b""), "root kind=skeleton"),
        ((blob.ROOT, 1, 0, blob.NONE, b"/srv"), "root kind=overlay"),
    ],
)
def test_bits_and_kinds_have_words(step: tuple[Any, ...], words: str) -> None:
    assert words in blob.describe(step)
