"""Attacks on what a caller left open, exported, ignored or held when it started kis."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import arena
import drive
import pytest

# Runs ARGV[2:] as a careless caller would: descriptors open for inheritance, a key in the session
# keyring, signals ignored and blocked, a loose umask, a word in the environment.
CARELESS = r"""
import ctypes, os, signal, sys
word, room = sys.argv[1], sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
os.chdir(room)
for flags in (os.O_RDONLY | os.O_DIRECTORY, os.O_PATH | os.O_DIRECTORY):
    os.set_inheritable(os.open(room, flags), True)
os.set_inheritable(os.open(os.path.join(room, "secret"), os.O_RDONLY), True)
os.dup2(os.open(room, os.O_RDONLY | os.O_DIRECTORY), 77, inheritable=True)
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGALRM, signal.SIGTERM])
os.umask(0)
keyctl, add_key = {"x86_64": (250, 248), "aarch64": (219, 217)}[os.uname().machine]
libc.syscall(keyctl, 1, 0)
libc.syscall(add_key, b"user", b"kis-test-key", word.encode(), len(word), -3)
os.environ["CALLERS_SECRET"] = word
os.environ["LD_PRELOAD_OF_NOBODY"] = word
os.execvpe(sys.argv[3], sys.argv[3:], os.environ)
"""
NO_CONTROL = {
    "stay_in_the_callers_session": "the control's session is the test's own by construction",
    "keep_groups_of_the_caller": "a control of its own, below",
    "keep_soft_core_limit": "depends on the limits of the machine",
    "speak_to_the_callers_terminal": "a control of its own, below",
}


@contextmanager
def careless_room(starter: drive.Starter) -> Iterator[tuple[Path, dict[str, Any]]]:
    word = uuid.uuid4().hex
    with starter.room() as room:
        (room / "secret").write_text(word)
        starter.give(room / "secret")
        given = {"word": word, "secret": str(room / "secret"), "groups": [], "session": None}
        yield room, given


def careless(starter: drive.Starter, room: Path, word: str, argv: list[str]) -> drive.Finished:
    return starter.call([starter.python, "-c", CARELESS, word, str(room), *argv])


def inside(starter: drive.Starter, way: arena.Way, given: dict[str, Any]) -> list[Any]:
    return starter.kis_argv(
        "sandbox", "run", "--tier", "container", *way.flags, "--",
        "python3", "-I", "-c", arena.text_of("inherited"), json.dumps(given),
    )  # fmt: skip


@arena.ways
def test_nothing_of_the_caller_enters(way: arena.Way) -> None:
    """Descriptors, environment, keyring, signals, umask, directory of the caller stay outside."""
    starter = arena.who(way.starter)
    with careless_room(starter) as (room, given):
        done = careless(starter, room, given["word"], inside(starter, way, given))
        arena.assert_contained(arena.report_of(done))


CLEAN_IN_PROCESS_TIER = (
    "find_descriptors_left_open",
    "climb_from_a_directory_left_open",
    "start_in_the_callers_directory",
    "read_the_callers_environment",
    "keep_ignored_signals",
    "keep_blocked_signals",
    "keep_the_callers_umask",
)


@pytest.mark.parametrize("name", ["root", "user"])
def test_process_tier_starts_clean_too(name: str) -> None:
    """No border, but neither descriptors, environment, signals nor directory of the caller's."""
    starter = arena.who(name)
    with careless_room(starter) as (room, given):
        argv = starter.kis_argv("sandbox", "run", "--tier", "process", "--allow-process-tier", "--")
        argv += [arena.PAYLOAD_PYTHON, "-I", "-c", arena.text_of("inherited"), json.dumps(given)]
        report = arena.report_of(careless(starter, room, given["word"], argv))
    arena.assert_contained({row: report[row] for row in CLEAN_IN_PROCESS_TIER})


def test_everything_enters_without_protection() -> None:
    """The same caller hands all of it to a child that it merely executes."""
    starter = arena.who("user")
    with careless_room(starter) as (room, given):
        given["session"] = os.getsid(0)
        argv = [arena.PAYLOAD_PYTHON, "-I", "-c", arena.text_of("inherited"), json.dumps(given)]
        report = arena.report_of(careless(starter, room, given["word"], argv))
    excused = {name: why for name, why in NO_CONTROL.items() if report[name].verdict != "out"}
    arena.assert_gets_out(report, excused)


def on_a_terminal(argv: list[Any], starter: drive.Starter) -> tuple[int, bytes]:
    """Run with a controlling terminal: wait status and what appeared on it."""
    child, terminal = pty.fork()
    if child == 0:
        try:
            if starter.uid != os.getuid():
                os.setgroups([])
                os.setgid(starter.gid)
                os.setuid(starter.uid)
            os.chdir("/")
            os.execve(argv[0], argv, starter.environment())
        finally:
            os._exit(99)
    seen = b""
    while select.select([terminal], [], [], drive.HANG_SECONDS)[0]:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    status = os.waitpid(child, 0)[1]
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), seen


SPEAK = """
import os
try:
    os.close(os.open("/dev/tty", os.O_RDWR))
    print("terminal opened")
except OSError as error:
    print("no terminal:", error.errno)
print("terminals", [os.isatty(number) for number in (0, 1, 2)])
"""


@arena.ways
def test_terminal_of_the_caller_stays_outside(way: arena.Way) -> None:
    """Started from a terminal, the payload has none: no /dev/tty, no descriptor that is one."""
    starter = arena.who(way.starter)
    argv = starter.kis_argv("sandbox", "run", "--tier", "container", *way.flags, "--")
    status, seen = on_a_terminal([*argv, "python3", "-I", "-c", SPEAK], starter)
    assert status == 0, seen
    assert b"no terminal:" in seen, seen
    assert b"terminals [False, False, False]" in seen, seen


def test_terminal_of_the_caller_is_reached_without_protection() -> None:
    """The control: a plain child opens /dev/tty."""
    argv = [arena.PAYLOAD_PYTHON, "-I", "-c", SPEAK]
    status, seen = on_a_terminal(argv, arena.who("user"))
    assert (status, b"terminal opened" in seen) == (0, True), seen


def test_groups_of_root_stay_outside() -> None:
    """Supplementary groups of a caller with privilege do not reach the payload."""
    arena.need_root_for_control()
    starter = arena.who("root")
    groups = [4242, 4243]
    argv = starter.kis_argv("sandbox", "run", "--tier", "container", "--", "id", "-G")
    for words, kept in ((argv, False), (["id", "-G"], True)):
        done = subprocess.run(
            words, extra_groups=groups, env=starter.environment(), cwd="/", capture_output=True
        )
        assert done.returncode == 0, done.stderr
        assert ("4242" in done.stdout.decode().split()) is kept, done.stdout


@pytest.mark.parametrize("name", ["root", "user"])
def test_environment_inside_is_made_of_the_base(name: str) -> None:
    """The payload's variables are the base's defaults and nothing else."""
    starter = arena.who(name)
    done = starter.container("env", "-0", env=starter.environment(SECRET="s3cr3t", LC_ALL="C"))
    seen = dict(item.split(b"=", 1) for item in done.stdout.split(b"\0") if item)
    assert set(seen) == {b"PATH", b"HOME", b"LANG", b"TMPDIR", b"USER", b"LOGNAME"}, seen
    assert seen[b"HOME"] == b"/home/user"
    assert seen[b"LANG"] == b"C.UTF-8"


@arena.ways
def test_only_three_descriptors_inside(way: arena.Way) -> None:
    """A shell inside has 0, 1 and 2 (and the one with which it lists them)."""
    starter = arena.who(way.starter)
    done = starter.container("sh", "-c", "cd /proc/self/fd && echo *", flags=way.flags)
    assert done.stdout.split() in ([b"0", b"1", b"2"], [b"0", b"1", b"2", b"3"]), done.stdout
