"""Mounts on a command line: a short form that guesses nothing and a long form for all paths."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kis.caller.mountspec import MountSpec, either_mount, long_mount, open_path, short_mount
from kis.errors import Code, SandboxError

HERE = os.getcwdb()


@pytest.mark.parametrize(
    ("text", "source", "target", "mode"),
    [
        ("/a", b"/a", b"/a", "ro"),
        ("./docs", b"./docs", HERE + b"/docs", "ro"),
        ("/a:ro", b"/a", b"/a", "ro"),
        ("/a:rw", b"/a", b"/a", "rw"),
        ("/a:/b", b"/a", b"/b", "ro"),
        ("a:/b:rw", b"a", b"/b", "rw"),
        ("a,b:/m/a,b", b"a,b", b"/m/a,b", "ro"),
        ("-v:/m/-v", b"-v", b"/m/-v", "ro"),
        ("a\nb:/m/n", b"a\nb", b"/m/n", "ro"),
        ("\udcff:/m/日本", b"\xff", "/m/日本".encode(), "ro"),
        ("ro", b"ro", HERE + b"/ro", "ro"),
    ],
)
def test_short_mount_reads(text: str, source: bytes, target: bytes, mode: str) -> None:
    assert short_mount(text, "-v") == MountSpec(source, target, mode)


@pytest.mark.parametrize("text", ["", ":", ":/b", "a:", "a:b", "a b:c", "a:/b:", "a:/b:wo",
                                  "a:/b:/c", "a:/b:rw:ro", "a b:c:/m", ":ro"])  # fmt: skip
def test_short_mount_refuses_what_it_cannot_say(text: str) -> None:
    """A11: a colon in a path is refused, quoted, with the form that takes it."""
    with pytest.raises(SandboxError) as caught:
        short_mount(text, "-v")
    assert caught.value.code is Code.CONFIG_INVALID
    assert f"'{text}'" in caught.value.message
    assert "source=" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("source=/a", MountSpec(b"/a", b"/a")),
        ("source=a b:c,target=/m/a b:c", MountSpec(b"a b:c", b"/m/a b:c")),
        ('"source=a,b",target=/x', MountSpec(b"a,b", b"/x")),
        ('"source=say ""hi"", all",target=/x', MountSpec(b'say "hi", all', b"/x")),
        ('source=a"b,target=/x', MountSpec(b'a"b', b"/x")),
        ("source=a=b,target=/x=y", MountSpec(b"a=b", b"/x=y")),
        ('"source=two\nlines",target=/x', MountSpec(b"two\nlines", b"/x")),
        ("target=/x,mode=rw,owner=5:6,source=\udcff", MountSpec(b"\xff", b"/x", "rw", (5, 6))),
        ("source=/a,owner=5,mode=rw", MountSpec(b"/a", b"/a", "rw", (5, 5))),
    ],
)
def test_long_mount_reads(text: str, spec: MountSpec) -> None:
    assert either_mount(text, "--mount") == spec


@pytest.mark.parametrize(
    "text",
    ["source=", "source=/a,", "source=/a,source=/b", "target=/x", "source=/a,mode=wo",
     "source=/a,owner=me", "source=/a,owner=1:", "source=/a,owner=-1", "source=/a,readonly=1",
     'source=/a,"target=/x', '"source=/a"x,target=/x', "source=/a,target", "mode=ro",
     "source=/a,owner=99999999999"],
)  # fmt: skip
def test_long_mount_refuses(text: str) -> None:
    with pytest.raises(SandboxError) as caught:
        either_mount(text, "--mount")
    assert caught.value.code is Code.CONFIG_INVALID


def test_long_mount_names_nearest_key() -> None:
    with pytest.raises(SandboxError) as caught:
        long_mount("sorce=/a", "--mount")
    assert caught.value.hint == "Did you mean source?"


def test_mount_flag_falls_back_to_short_form() -> None:
    assert either_mount("/a:/b", "--mount") == MountSpec(b"/a", b"/b")


def test_open_path_follows_a_link_once(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    descriptor = open_path(os.fsencode(tmp_path / "link"), "mount source")
    assert os.fstat(descriptor).st_ino == (tmp_path / "real").stat().st_ino
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_open_path_names_what_is_gone(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (os.fsencode(tmp_path) + b"/g\xffne\n", os.fsencode(tmp_path / "loop"), b"a\0b"):
        with pytest.raises(SandboxError) as caught:
            open_path(path, "mount source")
        assert caught.value.code is Code.MOUNT_INVALID
        assert "\n" not in caught.value.message
    with pytest.raises(SandboxError, match=r"g\\xffne\\n"):
        open_path(os.fsencode(tmp_path) + b"/g\xffne\n", "mount source")
