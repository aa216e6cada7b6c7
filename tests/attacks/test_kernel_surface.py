"""Attacks on the kernel by calls that no payload needs, by every number and every door."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import arena
import drive
import pytest

NO_CONTROL: dict[str, str] = {
    "call_a_number_nobody_knows": "nobody knows it outside either",
    "call_a_number_of_tomorrow": "the answer is the kernel's own",
}
GARBLED = "this kernel was built without that door"


@arena.ways
def test_kernel_surface_is_closed(way: arena.Way) -> None:
    """Every call is denied before the kernel looks at its arguments."""
    given = {"capabilities": f"{way.capabilities:x}"}
    arena.assert_contained(arena.attack(way, "kernel_surface", given))


@arena.ways
def test_missing_calls_look_missing(way: arena.Way) -> None:
    """What libraries probe for answers ENOSYS, so that they fall back instead of failing."""
    report = arena.attack(way, "kernel_surface", {"capabilities": f"{way.capabilities:x}"})
    for name in ("call_clone3", "call_openat2", "call_fchmodat2", "call_a_number_nobody_knows"):
        assert report[name] == ("contained", "ENOSYS"), (name, report[name])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="doors of x86_64")
@arena.ways
def test_other_doors_kill(way: arena.Way) -> None:
    """The 32-bit entry and x32 end the process, whatever they ask for."""
    report = arena.attack(way, "kernel_surface", {"capabilities": f"{way.capabilities:x}"})
    doors = [name for name in report if name.endswith(("32_bit_entry", "x32_entry"))]
    assert len(doors) == 6
    for name in doors:
        assert report[name] == ("contained", "SIGSYS"), (name, report[name])


def test_kernel_surface_is_open_without_protection() -> None:
    """The same calls reach the kernel from an unconfined process of root's."""
    arena.need_root_for_control()
    report = arena.unprotected([], "kernel_surface", {"capabilities": "0"})
    doors = {
        name: GARBLED
        for name, row in report.items()
        if name.endswith("32_bit_entry") and row.detail in ("wait status 11", "wait status 139")
    }
    arena.assert_gets_out(report, {**NO_CONTROL, **doors})


@arena.ways
def test_killing_everybody_ends_at_the_border(way: arena.Way) -> None:
    """`kill(-1, SIGKILL)` inside touches no process outside, not even one of the same user."""
    starter = arena.who(way.starter)
    with starter.start(["sleep", "300"]) as bystander:
        try:
            script = "sleep 100 & python3 -I -c 'import os; os.kill(-1, 9)'; echo $?; wait $!"
            done = starter.container("sh", "-c", script, flags=way.flags)
            # The shell, which waits, is among those that are killed.
            assert (done.returncode, done.stdout) == (137, b""), done.stderr
            assert bystander.poll() is None
        finally:
            bystander.kill()


@arena.ways
def test_crash_leaves_no_core(way: arena.Way) -> None:
    """A crash in a writable mount is a signal in the outcome and no file on the host."""
    starter = arena.who(way.starter)
    with starter.room() as room:
        if starter.is_root:
            import os

            os.chown(room, drive.ORDINARY_UID, drive.ORDINARY_UID)
        started = time.time()
        crash = "ulimit -c unlimited; cd /out; exec python3 -c 'import os; os.abort()'"
        flags = (*way.flags, "--mount", f"source={room},target=/out,mode=rw")
        done = starter.container("sh", "-c", crash, flags=flags)
        assert done.returncode == 128 + 6, (done.returncode, done.stderr)
        assert list(room.iterdir()) == []
        fresh = [path for path in Path("/").glob("core*") if path.lstat().st_mtime >= started]
        assert fresh == []


def test_crash_leaves_a_core_without_protection() -> None:
    """The control: unconfined, the same crash leaves a file (where the pattern is a plain name)."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith("|") or "/" in pattern or not pattern:
        pytest.skip(f"core_pattern is {pattern!r}, so nothing lands in the working directory")
    with arena.who("user").room() as room:
        crash = f"ulimit -c unlimited && cd {room} && exec python3 -c 'import os; os.abort()'"
        done = arena.who("user").call(["sh", "-c", crash])
        if b"ulimit" in done.stderr:
            pytest.skip("the hard limit for cores is already down")
        assert done.returncode in (-6, 134)
        assert [path for path in room.iterdir() if path.name.startswith("core")]
