"""Runs kis from the outside, as root or as an ordinary user of the machine.

Knows where the package of this checkout is, how to become somebody without privilege, what such a
person can have here, and how to end what was started. Knows nothing of what is tested. Used by the
suites under `integration` and `attacks`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
ORDINARY_UID = 54321
"""Nobody of this number need exist: kis must not care whether its user has a name."""
HANG_SECONDS = 120.0
"""A guard against hanging, never a measure of speed."""
HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GRANTABLE = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETUID",
    "SYS_CHROOT",
)

RUN = os.environ.setdefault("KIS_TEST_RUN", uuid.uuid4().hex[:6])
"""The same in all workers of one run, and in no other run that goes on meanwhile."""
ROOM_PREFIX = f"kis-test-{RUN}-"
AT_END = ExitStack()
"""What the last test leaves to do; closed by the conftest."""

Finished = subprocess.CompletedProcess[bytes]

# A shell that puts the tests in the background has the interrupt ignored, and kis would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Started(subprocess.Popen[bytes]):
    """A process with a group of its own, which dies as a whole when its test does.

    A test that times out raises wherever it stands, between any two lines. So whoever starts one
    need not guard it: `end_started` at the end of the test finds it.
    """

    unfinished: ClassVar[list[Started]] = []

    def __init__(self, argv: list[Any], **options: Any) -> None:
        # A session of one's own is a group of one's own already.
        if not options.get("start_new_session"):
            options.setdefault("process_group", 0)
        self.unfinished.append(self)
        super().__init__(argv, **options)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.kill_group()
        super().__exit__(kind, error, trace)

    def kill_group(self) -> None:
        """Kill it and whatever it started in its group. No harm where it has ended."""
        # Until it is reaped its number is nobody else's.
        if self.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)


def end_started() -> None:
    """Kill and reap every process that a test started and did not wait for."""
    while Started.unfinished:
        process = Started.unfinished.pop()
        if process.pid is not None:  # else it never came to be
            with process:
                process.kill_group()


class Starter:
    """Somebody who starts kis: `root`, or `user` without any privilege."""

    def __init__(self, name: str, uid: int, python: str, search_path: str) -> None:
        self.name = name
        self.uid = uid
        self.gid = uid if uid == ORDINARY_UID else os.getgid()
        self.python = python
        self.search_path = search_path

    def __repr__(self) -> str:
        return f"Starter({self.name})"

    @property
    def is_root(self) -> bool:
        return self.uid == 0

    def environment(self, **extra: str) -> dict[str, str]:
        """What this person's shell would export, with `extra` on top."""
        return {
            "PATH": HOST_PATH,
            "HOME": "/nonexistent",
            "LANG": "C.UTF-8",
            "PYTHONPATH": self.search_path,
            "PYTHONDONTWRITEBYTECODE": "1",
            **extra,
        }

    def identity(self) -> dict[str, Any]:
        """The arguments that make `subprocess` become this person."""
        if self.uid == os.getuid():
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def start(self, argv: list[Any], **options: Any) -> Started:
        """Start any program as this person, with pipes, in `/` when no `cwd` is said."""
        options.setdefault("stdin", options.pop("stdin_descriptor", subprocess.DEVNULL))
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("env", self.environment())
        options.setdefault("cwd", "/")
        self.need_tiers_of(argv)
        return Started(argv, **self.identity(), **options)

    def need_tier(self, tier: str) -> None:
        """Skip the test, with the report's reason, where this person cannot have the tier."""
        why = lack_of_tier(self, tier)
        if why:
            pytest.skip(f"needs {tier}: for {self.name}: {why}")

    def need_tiers_of(self, argv: Sequence[Any]) -> None:
        """The same for every tier that a command line, or a script in it, asks for."""
        words = [os.fsdecode(word) for word in argv]
        for tier in ("process", "container"):
            if any(word == tier or f'tier="{tier}"' in word for word in words):
                self.need_tier(tier)
        # The control of an attack, in namespaces of its own: the tier needs no more than that.
        if words[:1] == ["unshare"]:
            self.need_tier("container")

    def call(self, argv: list[Any], stdin: bytes | None = None, **options: Any) -> Finished:
        """Run any program as this person to its end."""
        if stdin is not None:
            options["stdin"] = subprocess.PIPE
        with self.start(argv, **options) as process:
            out, err = process.communicate(stdin, timeout=HANG_SECONDS)
        return Finished(argv, process.returncode, out or b"", err or b"")

    def kis_argv(self, *words: Any) -> list[Any]:
        self.need_tiers_of(words)
        return [self.python, "-m", "kis", *words]

    def kis(self, *words: Any, **options: Any) -> Finished:
        """Run `kis WORDS…` to its end."""
        return self.call(self.kis_argv(*words), **options)

    def container(self, *argv: Any, flags: tuple[Any, ...] = (), **options: Any) -> Finished:
        """Run `kis sandbox run --tier container FLAGS -- ARGV` to its end."""
        return self.kis("sandbox", "run", "--tier", "container", *flags, "--", *argv, **options)

    def contained_json(self, *argv: Any, flags: tuple[Any, ...] = (), **options: Any) -> Any:
        """The same with `--json`: the object it printed."""
        finished = self.container(*argv, flags=("--json", *flags), **options)
        return json.loads(finished.stdout)

    def unconfined(self, *argv: Any, flags: tuple[Any, ...] = (), **options: Any) -> Finished:
        """Run it in the process tier: what an attack's control needs."""
        return self.kis(
            "sandbox",
            "run",
            "--tier",
            "process",
            "--allow-process-tier",
            *flags,
            "--",
            *argv,
            **options,
        )

    def script(self, source: str, *argv: Any, **options: Any) -> Finished:
        """Run a Python script that uses the library, as this person."""
        return self.call([self.python, "-c", source, *argv], **options)

    @contextmanager
    def room(self) -> Iterator[Path]:
        """A directory of this person's own, short in name, gone at the end."""
        path = Path(tempfile.mkdtemp(prefix=ROOM_PREFIX))
        try:
            path.chmod(0o755)
            if self.uid != os.getuid():
                os.chown(path, self.uid, self.gid)
            yield path
        finally:
            shutil.rmtree(path)

    def give(self, *paths: Path) -> None:
        """Make this person the owner."""
        for path in paths:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


@cache
def lack_of_tier(person: Starter, tier: str) -> str:
    """What `backends` says against the tier; nothing where it is usable."""
    done = person.kis("sandbox", "backends", "--json")
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    rows = [row for row in json.loads(done.stdout) if row["tier"] == tier]
    assert rows, done.stdout
    if any(row["status"] == "usable" for row in rows):
        return ""
    return "; ".join(row["reason"] for row in rows)


def package_directory() -> Path:
    """Where `kis` is imported from: the installed package, else this checkout's source."""
    found = importlib.util.find_spec("kis")
    if found is not None and found.submodule_search_locations:
        return Path(found.submodule_search_locations[0])
    return CHECKOUT / "src" / "kis"


def module_directory(name: str) -> str | None:
    """The directory that must be on the search path for `import NAME`."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        return None
    return str(Path(found.origin).resolve().parent.parent)


def search_path() -> str:
    places = [str(package_directory().parent), module_directory("msgspec")]
    return os.pathsep.join(place for place in dict.fromkeys(places) if place)


def works_for(uid: int, python: str, path: str) -> bool:
    """Whether somebody can run this interpreter and import kis with it."""
    code = "import sys, kis; sys.exit(sys.version_info < (3, 11))"
    options: dict[str, Any] = {}
    if uid != os.getuid():
        options = {"user": uid, "group": uid, "extra_groups": []}
    try:
        done = subprocess.run(
            [python, "-c", code],
            env={"PATH": HOST_PATH, "PYTHONPATH": path},
            cwd="/",
            capture_output=True,
            timeout=HANG_SECONDS,
            **options,
        )
    except OSError:
        return False
    return done.returncode == 0


@cache
def starter(name: str) -> Starter | str:
    """The starter of that name, or the reason why there is none here."""
    path = search_path()
    if name == "root":
        if os.getuid() != 0:
            return "needs root"
        return Starter("root", 0, sys.executable, path)
    uid = ORDINARY_UID if os.getuid() == 0 else os.getuid()
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if works_for(uid, python, path):
            return Starter("user", uid, python, path)
    copy = readable_copy()
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if works_for(uid, python, copy):
            return Starter("user", uid, python, copy)
    return "needs user: no Python >= 3.11 here that an ordinary user can run with kis"


@cache
def readable_copy() -> str:
    """A copy of the packages where everybody can read them (the checkout may be in /root)."""
    place = Path(tempfile.mkdtemp(prefix=ROOM_PREFIX + "package-"))
    place.chmod(0o755)
    shutil.copytree(package_directory(), place / "kis")
    msgspec = importlib.util.find_spec("msgspec")
    if msgspec is not None and msgspec.origin is not None:
        shutil.copytree(Path(msgspec.origin).parent, place / "msgspec")
    AT_END.callback(shutil.rmtree, place)
    return str(place)


def processes_with(marker: str) -> list[int]:
    """The processes of the machine whose command line holds this text."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            line = Path("/proc", name, "cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in line and int(name) != os.getpid():
            found.append(int(name))
    return found


def eventually(holds: Callable[[], bool], within_seconds: float = 20.0) -> bool:
    """Whether it comes to hold before the guard runs out."""
    end = time.monotonic() + within_seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.02)
    return holds()
