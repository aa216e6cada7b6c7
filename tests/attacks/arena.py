"""Sends a family of attacks into a sandbox and reads back what came of each.

Knows the ways in which a sandbox is made here (by root or by an ordinary user, for which user
inside) and how to run the same text without any protection, as the control. Called by the tests of
this directory; knows none of the attacks.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import drive
import pytest

PAYLOADS = Path(__file__).parent / "payloads"
PAYLOAD_PYTHON = "/usr/bin/python3"
MISSING_HERE = frozenset(
    "ENOSYS ENOTSUP ENOTTY EAFNOSUPPORT EPROTONOSUPPORT ESOCKTNOSUPPORT ESTALE EXDEV".split()
)
"""Answers of an unprotected machine that lacks the thing altogether."""


class Verdict(NamedTuple):
    verdict: str
    detail: str


Report = dict[str, Verdict]


class Way(NamedTuple):
    """One way to make a sandbox."""

    name: str
    starter: str
    flags: tuple[str, ...] = ()
    capabilities: int = 0


EVERY_CAPABILITY = tuple(word for name in drive.GRANTABLE for word in ("--cap", name))
WAYS = (
    Way("by-root", "root"),
    Way("by-root-as-root", "root", ("--user", "root")),
    Way("by-root-with-capabilities", "root", ("--user", "root", *EVERY_CAPABILITY), 0x404FB),
    Way("by-user", "user"),
)
ways = pytest.mark.parametrize("way", WAYS, ids=[way.name for way in WAYS])


def who(name: str) -> drive.Starter:
    """The starter of that name; the test is skipped where there is none."""
    found = drive.starter(name)
    if isinstance(found, str):
        pytest.skip(found)
    if not os.path.exists(PAYLOAD_PYTHON):
        pytest.skip(f"needs python3 in /usr: the attacks run {PAYLOAD_PYTHON} of the host base")
    return found


def text_of(family: str) -> str:
    return (PAYLOADS / "prelude.py").read_text() + (PAYLOADS / f"{family}.py").read_text()


def report_of(finished: drive.Finished) -> Report:
    """What each attack reported."""
    assert finished.returncode == 0, (finished.returncode, finished.stdout, finished.stderr)
    rows = [json.loads(line) for line in finished.stdout.splitlines()]
    assert rows, finished.stderr
    return {row["name"]: Verdict(row["verdict"], row["detail"]) for row in rows}


def attack(way: Way, family: str, given: dict[str, Any], *flags: str, **options: Any) -> Report:
    """Run the family inside a sandbox."""
    starter = who(way.starter)
    argv = ("python3", "-I", "-c", text_of(family), json.dumps(given))
    return report_of(starter.container(*argv, flags=(*way.flags, *flags), **options))


def unprotected(argv: list[str], family: str, given: dict[str, Any], **options: Any) -> Report:
    """Run the family with no sandbox, behind `argv` (an `unshare`, or nothing)."""
    starter = who("root" if os.getuid() == 0 else "user")
    words = [*argv, PAYLOAD_PYTHON, "-I", "-c", text_of(family), json.dumps(given)]
    return report_of(starter.call(words, **options))


def assert_contained(report: Report) -> None:
    """Every attack of the family ran and got nothing."""
    bad = [f"{name}: {row.verdict}: {row.detail}" for name, row in report.items()]
    bad = [line for line in bad if ": contained: " not in line]
    assert not bad, "\n" + "\n".join(bad)


def assert_gets_out(report: Report, excused: dict[str, str]) -> None:
    """Every attack of the control succeeded, but for what is missing here or `excused` explains."""
    unknown = set(excused) - set(report)
    assert not unknown, f"excused, but not in the family: {unknown}"
    bad = []
    for name, row in report.items():
        missing = row.detail in MISSING_HERE or row.detail.startswith("nothing")
        of_a_file = name.startswith(("open_for_writing_", "read_proc_"))
        absent_file = of_a_file and row.detail == "ENOENT"
        if row.verdict == "out":
            assert name not in excused, f"{name} got out: it needs no excuse"
        elif name not in excused and not missing and not absent_file:
            bad.append(f"{name}: {row.verdict}: {row.detail}")
    assert not bad, "\n" + "\n".join(bad)


def need_root_for_control() -> None:
    if os.getuid() != 0:
        pytest.skip("needs root: to the control of an ordinary user the host itself says no")
    # And to a root inside somebody's container that container may.
    who("root").need_tier("container")


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program, path=drive.HOST_PATH) is None:
            pytest.skip(f"needs {program}")
