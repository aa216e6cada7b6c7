"""What every suite shares: what may not be skipped, and the sweeps after each test and at the end.

Knows: how a test says what it needs. A skip whose reason begins with ``needs WORD`` was skipped for
want of WORD (root, user, container, testsuite, or a program); where KIS_REQUIRE names that word the
skip is a failure, so that a machine that ought to have it cannot leave tests out in silence.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = str(Path(__file__).parent)
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)

import drive  # noqa: E402

from kis.caller import idranges  # noqa: E402

REQUIRED = frozenset(os.environ.get("KIS_REQUIRE", "").replace(",", " ").split())
LINGER_SECONDS = 2.0
"""Promise P7 gives one second; the rest is for a busy machine."""
_BEFORE = pytest.StashKey[set[str]]()
_REST = pytest.StashKey[set[str]]()
_OF_WORKER = "kis_left_behind"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        needed = re.match(r"needs (\S+?)[:,;]?(\s|$)", reason)
        if needed is not None and needed[1] in REQUIRED:
            report.outcome = "failed"
            report.longrepr = f"{reason}; KIS_REQUIRE does not let this be skipped"
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Before the directories go: end what a test that failed or timed out was in the middle of."""
    drive.end_started()


def status_field(pid: str, field: str) -> str:
    """One line of /proc/PID/status, or nothing where the process has gone."""
    try:
        text = Path("/proc", pid, "status").read_text()
    except OSError:
        return ""
    found = re.search(rf"^{field}:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else ""


def processes() -> Iterator[str]:
    return filter(str.isdigit, os.listdir("/proc"))


def ancestors() -> set[str]:
    """This process and those above it: an orphan that we leave is adopted by one of them."""
    found = {"1"}
    pid = str(os.getpid())
    while pid not in found and pid.isdigit():
        found.add(pid)
        pid = status_field(pid, "PPid")
    return found


def is_launcher(pid: str) -> bool:
    """By its name, or by its program, which is a file in memory when the sealed one was started."""
    try:
        program = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        program = ""
    return status_field(pid, "Name") == "kis-init" or program.startswith("/memfd:kis-init")


def is_of_another_run(pid: str) -> bool:
    try:
        names = Path("/proc", pid, "environ").read_bytes()
    except OSError:
        return False
    run = re.search(rb"(?:^|\0)KIS_TEST_RUN=(\w*)", names)
    return run is not None and run[1].decode() != drive.RUN


def orphans() -> set[str]:
    """Every kis-init that lives without an engine; those of others who test here have theirs.

    One that has ended is for its adopter to reap, who takes the time it wants.
    """
    adopters = ancestors()
    return {
        f"kis-init with pid {pid}"
        for pid in processes()
        if status_field(pid, "PPid") in adopters
        and not status_field(pid, "State").startswith("Z")
        and is_launcher(pid)
        and not is_of_another_run(pid)
    }


def mounts() -> set[str]:
    """What this process sees mounted, below a directory of another run aside."""
    places = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return {f"a mount on {place}" for place in places if not of_another_run(Path(place))}


def of_another_run(path: Path) -> bool:
    parts = path.relative_to("/").parts
    return any(p.startswith("kis-test-") and not p.startswith(drive.ROOM_PREFIX) for p in parts)


def directories() -> set[str]:
    """Directories that the tests of this run made."""
    rooms = Path(tempfile.gettempdir()).glob(f"{drive.ROOM_PREFIX}*")
    return {f"the directory {room}" for room in rooms}


def held_id_ranges() -> set[str]:
    """Ranges of host ids that are locked, though whoever took them has ended (or is this process).

    proc_locks(5): the fourth field is the process that took the lock, the fifth the file.
    """
    place = os.fsdecode(idranges.DIRECTORY)
    if not os.access(place, os.R_OK | os.X_OK):
        return set()
    names = {entry.inode(): entry.name for entry in os.scandir(place)}
    found = set()
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.replace("-> ", "").split()
        inode = int(words[5].rpartition(":")[2])
        alive = os.path.exists(f"/proc/{words[4]}") and words[4] != str(os.getpid())
        if words[1] == "FLOCK" and inode in names and not alive:
            found.add(f"id range {names[inode]}, locked by pid {words[4]}")
    return found


def zombies() -> set[str]:
    """Children of this process that have ended and that nobody waited for."""
    own = str(os.getpid())
    return {
        f"a zombie of {status_field(pid, 'Name')} with pid {pid}"
        for pid in processes()
        if status_field(pid, "PPid") == own and status_field(pid, "State").startswith("Z")
    }


def things() -> set[str]:
    """Everything that no run may leave behind, in words."""
    return orphans() | mounts() | directories() | held_id_ranges()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[_BEFORE] = things()
        config.stash[_REST] = set()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of xdist has ended, and said what it left."""
    node.config.stash[_REST].update(getattr(node, "workeroutput", {}).get(_OF_WORKER, ()))


# After xdist's own, which waits for the last worker's end.
@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the whole run if it left anything behind; a worker only tells of its zombies."""
    drive.AT_END.close()
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput[_OF_WORKER] = sorted(zombies())
        return
    end = time.monotonic() + LINGER_SECONDS
    rest = things() - config.stash[_BEFORE]
    # What others do here meanwhile comes and goes; what was left is there each time.
    while rest and time.monotonic() < end:
        time.sleep(0.05)
        rest &= things()
    config.stash[_REST] |= rest | zombies()
    if config.stash[_REST]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in sorted(terminalreporter.config.stash.get(_REST, ())):
        terminalreporter.write_line(f"LEFT BEHIND {line}", red=True)
