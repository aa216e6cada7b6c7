"""Id ranges: one holder each, never an account's, free again however the holder ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kis.caller import idranges
from kis.caller.idranges import FIRST_ID, RANGE_IDS, RANGES, FlockedIdRanges
from kis.errors import Code, SandboxError


def ranges(tmp_path: Path) -> FlockedIdRanges:
    return FlockedIdRanges(os.fsencode(tmp_path / "kis" / "ids"), os.fsencode(tmp_path))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """Only four ranges, so that running out can be seen."""
    monkeypatch.setattr(idranges, "RANGES", 4)
    return 4


def test_ranges_are_within_bounds(tmp_path: Path) -> None:
    held = ranges(tmp_path).acquire()
    assert held.count == RANGE_IDS
    assert FIRST_ID <= held.start <= FIRST_ID + (RANGES - 1) * RANGE_IDS
    assert (held.start - FIRST_ID) % RANGE_IDS == 0
    assert FIRST_ID + RANGES * RANGE_IDS <= 1 << 31
    held.release()


def test_ranges_are_handed_out_once(tmp_path: Path, few: int) -> None:
    """Also to another holder in the same process: a thread, an engine beside this one."""
    one, two = ranges(tmp_path), ranges(tmp_path)
    held = [one.acquire(), two.acquire(), one.acquire(), two.acquire()]
    assert len({r.start for r in held}) == few
    with pytest.raises(SandboxError) as caught:
        one.acquire()
    assert caught.value.code is Code.SETUP_FAILED
    assert caught.value.details == {"step": "id_range"}
    held[2].release()
    held[2].release()
    assert two.acquire().start == held[2].start


def test_range_is_free_after_its_holder_was_killed(tmp_path: Path, few: int) -> None:
    pids = []
    for _ in range(few):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            kept = ranges(tmp_path).acquire()
            os.write(writer, kept.start.to_bytes(4, "little"))
            signal.pause()
        assert len(os.read(reader, 4)) == 4
        os.close(reader)
        os.close(writer)
        pids.append(pid)
    with pytest.raises(SandboxError):
        ranges(tmp_path).acquire()
    os.kill(pids[1], signal.SIGKILL)
    os.waitpid(pids[1], 0)
    ranges(tmp_path).acquire().release()
    for pid in (pids[0], *pids[2:]):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("passwd", f"big:x:{FIRST_ID + 7}:5::/:/bin/sh"),
        ("passwd", f"big:x:5:{FIRST_ID + 7}::/:/bin/sh"),
        ("group", f"big:x:{FIRST_ID + RANGE_IDS - 1}:"),
        ("subuid", f"user:{FIRST_ID - 10}:20"),
        ("subgid", f"user:{FIRST_ID + 1}:1"),
    ],
)
def test_range_of_an_account_is_skipped(tmp_path: Path, few: int, file: str, line: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / file).write_text(f"# comment\nroot:x:0:0::/:/bin/sh\n\n{line}\nbroken:::\n")
    source = ranges(tmp_path)
    held = [source.acquire() for _ in range(3)]
    assert FIRST_ID not in {r.start for r in held}
    with pytest.raises(SandboxError):
        source.acquire()


def test_range_of_a_new_account_is_skipped_by_a_running_engine(tmp_path: Path, few: int) -> None:
    source = ranges(tmp_path)
    source.acquire().release()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "subuid").write_text(f"user:{FIRST_ID}:{3 * RANGE_IDS}\n")
    assert source.acquire().start == FIRST_ID + 3 * RANGE_IDS


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_directory_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    """Who can open a lock file can hold every range."""
    directory = tmp_path / "kis" / "ids"
    directory.mkdir(parents=True)
    directory.chmod(mode)
    with pytest.raises(SandboxError) as caught:
        ranges(tmp_path).acquire()
    assert caught.value.details == {"step": "id_range"}


def test_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kis").mkdir()
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "kis" / "ids").symlink_to(tmp_path / "real")
    with pytest.raises(SandboxError):
        ranges(tmp_path).acquire()


def test_directory_is_made_closed_to_others(tmp_path: Path) -> None:
    ranges(tmp_path).acquire().release()
    assert (tmp_path / "kis" / "ids").stat().st_mode & 0o777 == 0o700
