"""The suites' own promises: what they start ends, a lack is told, what is left behind is found."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import drive
import pytest

TESTS = drive.CHECKOUT / "tests"


def marked() -> tuple[str, list[str]]:
    """A number, and a shell with a child in the background that carry it on their command line."""
    mark = f"6{uuid.uuid4().int % 10**12}"
    return mark, ["sh", "-c", f"sleep {mark} & wait"]


def both_run(mark: str) -> bool:
    return drive.eventually(lambda: len(drive.processes_with(mark)) == 2)


def be_interrupted(started: drive.Started, mark: str, error: type[BaseException]) -> None:
    with started:
        assert both_run(mark)
        raise error("in the middle")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, pytest.fail.Exception])
def test_whole_group_dies_when_a_test_is_interrupted(
    starter: drive.Starter, error: type[BaseException]
) -> None:
    """pytest-timeout raises wherever the test stands: the child and its children end."""
    mark, argv = marked()
    with pytest.raises(error):
        be_interrupted(starter.start(argv), mark, error)
    assert drive.eventually(lambda: drive.processes_with(mark) == [])


def test_what_nobody_waited_for_ends_with_its_test(starter: drive.Starter) -> None:
    mark, argv = marked()
    starter.start(argv)
    assert both_run(mark)
    drive.end_started()
    assert drive.eventually(lambda: drive.processes_with(mark) == [])


def pytest_on(*words: object, before: tuple[str, ...] = (), **environment: str) -> tuple[int, str]:
    """Another run of pytest with the suites' hooks: its status and what it printed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KIS_")}
    inherited |= {"PYTHONPATH": f"{TESTS}:{drive.search_path()}", **environment}
    argv = [*before, sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *words]
    done = subprocess.run(argv, cwd=TESTS, env=inherited, capture_output=True, check=False)
    return done.returncode, (done.stdout + done.stderr).decode()


@pytest.mark.parametrize("required", ["", "container"])
def test_missing_tier_is_a_skip_or_a_failure(required: str) -> None:
    """Where namespaces are denied a test says why it was left out, unless it must not be."""
    wall = TESTS / "integration" / "wall.py"
    words = (TESTS / "integration" / "test_reports.py", "-k", "test_explain_in_json")
    before = (sys.executable, "-I", str(wall))
    status, text = pytest_on(*words, before=before, KIS_REQUIRE=required)
    assert status == (1 if required else 0), text
    assert "needs container: for " in text
    assert "seccomp" in text
    assert ("KIS_REQUIRE does not let this be skipped" in text) is bool(required)


UNTIDY = """
import fcntl, os, subprocess, sys, tempfile
import drive
from kis.caller import idranges
def test_that_leaves_everything():
    tempfile.mkdtemp(prefix=drive.ROOM_PREFIX)
    subprocess.run(["sh", "-c", '"$0" "$1" >/dev/null 2>&1 &', {program!r}, {mark!r}], check=True)
    child = os.posix_spawn("/bin/true", ["true"], dict(os.environ))
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    if os.getuid() == 0:
        os.makedirs(idranges.DIRECTORY, 0o700, exist_ok=True)
        last = os.path.join(idranges.DIRECTORY, b"%04d" % (idranges.RANGES - 1))
        fcntl.flock(os.open(last, os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)
"""


def test_whatever_is_left_behind_is_found(tmp_path: Path) -> None:
    """A run whose one test passes fails for what it left, and names each thing."""
    mark = f"4{uuid.uuid4().int % 10**12}"
    program = tmp_path / "kis-init"
    shutil.copy("/bin/sleep", program)
    (tmp_path / "test_untidy.py").write_text(UNTIDY.format(program=str(program), mark=mark))
    own_places = {"TMPDIR": str(tmp_path)}
    try:
        status, text = pytest_on("-p", "conftest", tmp_path / "test_untidy.py", **own_places)
    finally:
        for pid in drive.processes_with(mark):
            os.kill(pid, signal.SIGKILL)
    assert "1 passed" in text
    assert status == 1, text
    for what in ("kis-init with pid", "the directory", "a zombie of"):
        assert f"LEFT BEHIND {what}" in text
    assert ("LEFT BEHIND id range 4093, locked by pid" in text) is (os.getuid() == 0)
