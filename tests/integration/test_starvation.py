"""A payload that keeps pid 1 busy must not outlive its engine, nor lend its ids to anybody."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from pathlib import Path

import drive
import pytest

SOURCE = Path(__file__).parent.parent / "attacks" / "payloads" / "zombies.c"


@pytest.fixture
def storm(starter: drive.Starter, room: Path) -> Path:
    """The storm under a name of this test's own, by which its processes can be told."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc: the storm is a C program")
    program = room / f"storm-{uuid.uuid4().hex}"
    subprocess.run([compiler, "-O1", "-static", "-o", program, SOURCE], check=True)
    starter.give(program)
    return program


def test_storm_of_zombies_ends_with_the_engine(starter: drive.Starter, storm: Path) -> None:
    """Reaping without end would keep pid 1 from hearing that the engine was killed."""
    argv = starter.kis_argv(
        "sandbox",
        "run",
        "--tier",
        "container",
        "-v",
        f"{storm.parent}:/b",
        "--",
        f"/b/{storm.name}",
    )
    with starter.start([*argv, "40"]) as process:
        # kis itself, the first process and its forty; the zombies come and go
        assert drive.eventually(lambda: len(drive.processes_with(storm.name)) >= 42)
        process.kill()
    assert drive.eventually(lambda: drive.processes_with(storm.name) == [])


def test_storm_of_zombies_ends_with_the_time_in_the_process_tier(
    starter: drive.Starter, storm: Path
) -> None:
    """Without a PID namespace too everything is dead when the run is over, and nobody is killed
    half-way: a supervisor that had to be would be ``cleanup_failed``."""
    done = starter.unconfined(storm, "20", flags=("--timeout", "1", "--grace", "0.1"))
    assert done.returncode == 124, done.stderr
    assert b"cleanup_failed" not in done.stderr
    assert drive.processes_with(storm.name) == []


HELD = """
import sys
from kis import Command, Engine, Profile
from kis.caller.idranges import FlockedIdRanges
engine = Engine()
sandbox = engine.create(Profile(), engine.admit_host_base(), tier="container")
uid_map = sandbox.run(Command(["cat", "/proc/self/uid_map"])).text().split()
sandbox._release()  # as if this process had died: the lock that is left is the sandbox's own
fresh = FlockedIdRanges(b"/run/kis/ids")
ranges = [fresh.acquire() for _ in range(40)]
assert int(uid_map[1]) not in [held.start for held in ranges], "a live sandbox lost its ids"
for held in ranges:
    held.release()
sandbox.close()
for _ in range(40):
    ranges.append(fresh.acquire())
print("ok")
"""


def test_ids_stay_taken_as_long_as_the_sandbox_lives(root: drive.Starter) -> None:
    done = root.script(HELD)
    assert (done.returncode, done.stdout) == (0, b"ok\n"), done.stderr
