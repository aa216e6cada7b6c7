"""What every suite shares: what may not be skipped, and the sweep at the end.

Knows: how a test says what it needs. A skip whose reason begins with ``needs WORD`` was skipped for
want of WORD (root, user, container, process, or a program); where KIS_REQUIRE names that word the
skip is a failure, so that a machine that ought to have it cannot leave tests out in silence.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Generator
from pathlib import Path

import pytest

REQUIRED = frozenset(os.environ.get("KIS_REQUIRE", "").replace(",", " ").split())
LINGER_SECONDS = 2.0
"""Promise P7 gives one second; the rest is for a busy machine."""
_BEFORE = pytest.StashKey[tuple[set[int], set[str]]]()
_REST = pytest.StashKey[list[str]]()


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


def status_field(pid: str, field: str) -> str:
    """One line of /proc/PID/status, or nothing where the process has gone."""
    try:
        text = Path("/proc", pid, "status").read_text()
    except OSError:
        return ""
    found = re.search(rf"^{field}:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else ""


def ancestors() -> set[str]:
    """This process and those above it: an orphan that we leave is adopted by one of them."""
    found = {"1"}
    pid = str(os.getpid())
    while pid not in found and pid.isdigit():
        found.add(pid)
        pid = status_field(pid, "PPid")
    return found


def own_processes() -> set[int]:
    """Every kis-init without an engine, by pid; those of others who test here have theirs."""
    adopters = ancestors()
    return {
        int(pid)
        for pid in filter(str.isdigit, os.listdir("/proc"))
        if status_field(pid, "Name") == "kis-init" and status_field(pid, "PPid") in adopters
    }


def own_mounts() -> set[str]:
    """The mounts that this process sees."""
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}


def left_over(before: tuple[set[int], set[str]]) -> list[str]:
    """What is there now and was not before, in words."""
    processes, mounts = before
    return [
        *(f"kis-init with pid {pid}" for pid in sorted(own_processes() - processes)),
        *(f"a mount on {place}" for place in sorted(own_mounts() - mounts)),
    ]


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[_BEFORE] = (own_processes(), own_mounts())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the whole run if it left a process or a mount behind: after the last worker's end."""
    before = session.config.stash.get(_BEFORE, None)
    if before is None:
        return
    end = time.monotonic() + LINGER_SECONDS
    while (rest := left_over(before)) and time.monotonic() < end:
        time.sleep(0.05)
    session.config.stash[_REST] = rest
    if rest:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in terminalreporter.config.stash.get(_REST, []):
        terminalreporter.write_line(f"LEFT BEHIND {line}", red=True)
