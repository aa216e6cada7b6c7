"""Nothing outlives: whoever dies, however, no process, mount or file of the run remains."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path

import drive
import pytest


def mark() -> str:
    """A number that stands in the argument list of one test's processes only."""
    return f"9{uuid.uuid4().int % 10**12}"


def gone(word: str) -> bool:
    return drive.eventually(lambda: drive.processes_with(word) == [])


def namespaces_in_use() -> set[str]:
    """Every PID namespace that some process of the machine lives in."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found.add(os.readlink(f"/proc/{name}/ns/pid"))
            except OSError:
                continue
    return found


LONG = """
import sys, time
from kis import Command, Engine, Profile
engine = Engine()
sandbox = engine.create(Profile(), engine.admit_host_base(), tier="container")
sandbox.run(Command(["true"])).check()
print("ready", flush=True)
sandbox.run(Command(["sh", "-c", "setsid sleep {mark} & sleep {mark}"]))
"""


@pytest.mark.parametrize("tier", ["container", "process"])
def test_kill_of_the_command_line_ends_everything(starter: drive.Starter, tier: str) -> None:
    """SIGKILL to kis: the payload and its children end, in other sessions too."""
    word = mark()
    hatch = ["--allow-process-tier"] if tier == "process" else []
    argv = starter.kis_argv("sandbox", "run", "--tier", tier, *hatch, "--")
    with starter.start([*argv, "sh", "-c", f"setsid sleep {word} & sleep {word}"]) as process:
        # kis itself, the shell and two sleeps
        assert drive.eventually(lambda: len(drive.processes_with(word)) >= 4)
        process.kill()
    assert gone(word)


def test_kill_of_the_host_application_ends_everything(starter: drive.Starter) -> None:
    """SIGKILL to a program that uses the library."""
    word = mark()
    argv = [starter.python, "-c", LONG.replace("{mark}", word)]
    with starter.start(argv) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert drive.eventually(lambda: len(drive.processes_with(word)) >= 4)
        process.kill()
    assert gone(word)


FORKED = """
import os, sys
from kis import Command, Engine, Profile
engine = Engine()
sandbox = engine.create(Profile(), engine.admit_host_base(), tier="container")
sandbox.run(Command(["true"])).check()
if os.fork() == 0:
    # A worker that the application forked: it holds a copy of every descriptor of the engine.
    os.execv("/proc/self/exe", [sys.argv[1], "-c", "import time; time.sleep(600)", sys.argv[2]]) \\
        if sys.argv[3] == "exec" else None
    import time
    time.sleep(600)
print("ready", flush=True)
sandbox.run(Command(["sh", "-c", "setsid sleep {mark} & sleep {mark}"]))
"""


@pytest.mark.parametrize("kind", ["fork", "exec"])
def test_forked_child_does_not_keep_a_sandbox_alive(starter: drive.Starter, kind: str) -> None:
    """A child of the application that still holds the engine's sockets changes nothing."""
    word, child_word = mark(), mark()
    code = FORKED.replace("{mark}", word)
    argv = [starter.python, "-c", code, starter.python, child_word, kind]
    sleeps = f"sleep\0{word}"
    with starter.start(argv, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            assert drive.eventually(lambda: len(drive.processes_with(sleeps)) == 2)
            process.kill()
            process.wait()
            assert drive.processes_with(child_word), "the forked child is to live on"
            assert gone(sleeps)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_closing_a_sandbox_ends_what_runs_in_it(starter: drive.Starter) -> None:
    """Leaving the `with` block ends background processes of earlier commands."""
    word = mark()
    code = """
from kis import Command, Engine, Profile
engine = Engine()
with engine.create(Profile(), engine.admit_host_base(), tier="container") as sandbox:
    sandbox.run(Command(["sh", "-c", "setsid sleep {mark} >/dev/null 2>&1 & echo"])).check()
print("closed")
""".replace("{mark}", word)
    done = starter.script(code)
    assert done.stdout == b"closed\n", done.stderr
    assert gone(f"sleep\0{word}")


def test_application_that_ends_without_closing_leaves_nothing(starter: drive.Starter) -> None:
    """Falling off the end, an uncaught exception, and os._exit."""
    for ending in ("pass", "raise SystemExit(3)", "raise ValueError", "os._exit(4)"):
        word = mark()
        code = f"""
import os, threading
from kis import Command, Engine, Profile
engine = Engine()
sandbox = engine.create(Profile(), engine.admit_host_base(), tier="container")
sandbox.run(Command(["sh", "-c", "setsid sleep {word} >/dev/null 2>&1 & echo"])).check()
{ending}
"""
        started = time.monotonic()
        starter.script(code)
        assert time.monotonic() - started < drive.HANG_SECONDS
        assert gone(f"sleep\0{word}"), ending


def test_no_mount_or_file_remains(starter: drive.Starter, room: Path) -> None:
    """After runs of every kind, the host's mount table and temporary places are as before."""
    if starter.is_root:
        os.chown(room, drive.ORDINARY_UID, drive.ORDINARY_UID)
    (room / "ro").mkdir()
    with starter.start(["sleep", "600"]) as witness:
        try:
            before = mounts_of(witness.pid, room)
            flags = ("-v", f"{room}/ro:/m", "-v", f"{room}:/w:rw", "--tmpfs", "/scratch")
            for extra in ((), ("--writable-root",), ("--net", "loopback"), ("--timeout", "0.2s")):
                starter.container("sh", "-c", "touch /tmp/x; sleep 0.5", flags=(*flags, *extra))
            starter.container("nosuchcmd", flags=flags)
            starter.container("true", flags=(*flags, "-w", "/nowhere"))
            assert mounts_of(witness.pid, room) == before
        finally:
            witness.kill()
    assert sorted(path.name for path in room.iterdir()) == ["ro"]


def mounts_of(pid: int, room: Path) -> list[str]:
    """Mounts that a bystander sees and that could be ours."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return [line for line in lines if str(room) in line or "kis" in line.split()[4]]


def test_namespaces_are_gone(starter: drive.Starter) -> None:
    """The PID namespace that the payload saw is nobody's afterwards."""
    done = starter.container("readlink", "/proc/self/ns/pid")
    assert done.stdout.startswith(b"pid:["), done.stderr
    inside = done.stdout.decode().strip()
    assert drive.eventually(lambda: inside not in namespaces_in_use())


def test_descriptors_do_not_pile_up(starter: drive.Starter) -> None:
    """A long-lived application holds as many descriptors and children after runs as before."""
    code = """
import os
from kis import Command, Engine, Profile
engine = Engine()
base = engine.admit_host_base()
def held():
    return len(os.listdir("/proc/self/fd"))
def children():
    return len(open(f"/proc/self/task/{os.getpid()}/children").read().split())
engine.run(Command(["true"]), Profile(), base, tier="container").check()
before = held(), children()
for _ in range(50):
    engine.run(Command(["true"]), Profile(), base, tier="container").check()
    try:
        engine.run(Command(["nosuchcmd"]), Profile(), base, tier="container")
    except Exception:
        pass
with engine.create(Profile(), base, tier="container") as sandbox:
    for _ in range(50):
        sandbox.run(Command(["true"])).check()
print((held(), children()) == before, before, (held(), children()))
"""
    done = starter.script(code)
    assert done.stdout.startswith(b"True"), (done.stdout, done.stderr)


CROWD = """
import json, os, sys, threading
from kis import Command, Engine, Profile
engine = Engine()
base = engine.admit_host_base()
results = []
def one(number):
    command = Command(["sh", "-c", "echo $RUN > /tmp/f; sleep 0.3; cat /tmp/f; id -u"],
                      env={"RUN": str(number)})
    try:
        outcome = engine.run(command, Profile(), base, tier="container")
        receipt = outcome.receipt
        results.append([number, outcome.stdout.decode(), receipt.sandbox, receipt.id])
    except Exception as error:
        results.append([number, repr(error), None, None])
threads = [threading.Thread(target=one, args=(int(sys.argv[1]) * 8 + n,)) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(results))
"""


def test_thirty_two_at_once(starter: drive.Starter) -> None:
    """Case A18: four programs with eight threads each; ids differ and nobody meets another."""
    import json

    crowd = [starter.start([starter.python, "-c", CROWD, str(at)]) for at in range(4)]
    results = []
    for process in crowd:
        out, err = process.communicate(timeout=drive.HANG_SECONDS)
        assert process.returncode == 0, err
        results += json.loads(out)
    assert sorted(row[0] for row in results) == list(range(32))
    assert [row[1] for row in results] == [f"{row[0]}\n1000\n" for row in results]
    assert len({row[2] for row in results}) == 32
    assert len({row[3] for row in results}) == 32


HOST_IDS = """
import os, subprocess, sys, threading
from kis import Command, Engine, Profile
engine = Engine()
base = engine.admit_host_base()
seen = []
with engine.create(Profile(), base, tier="container") as one, \\
     engine.create(Profile(), base, tier="container") as two:
    for sandbox, user in ((one, None), (two, None), (one, "root")):
        command = Command(["sh", "-c", "cat /proc/self/uid_map"], user=user)
        rows = sandbox.run(command).stdout.decode().split("\\n")
        seen.append([row.split() for row in rows if row])
print(repr(seen))
"""


def test_every_live_sandbox_has_ids_of_its_own(root: drive.Starter) -> None:
    """Started by root, no host uid 0 and no overlap between two live sandboxes."""
    import ast

    done = root.script(HOST_IDS)
    one, two, again = ast.literal_eval(done.stdout.decode())
    assert one == again
    assert one != two
    rows = [*one, *two]
    ranges = [(int(start), int(start) + int(count)) for _, start, count in rows]
    assert all(start > 65535 for start, _ in ranges), ranges
    ranges.sort()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


HOSTILE = """
import sys
from kis import Command, Engine, Profile, SandboxError
engine = Engine()
with engine.create(Profile(), engine.admit_host_base(), tier="container") as sandbox:
    loop = "trap '' TERM; while :; do kill -9 -1 2>/dev/null; done"
    sandbox.run(Command(["sh", "-c", "setsid sh -c \\"$0\\" >/dev/null 2>&1 & echo", loop]))
    for _ in range(20):
        try:
            print(sandbox.run(Command(["sleep", "{mark}"])).reason)
        except SandboxError as error:
            print(error.code, error.message)
"""


def test_payload_that_kills_its_neighbours_hangs_nobody(starter: drive.Starter) -> None:
    """Commands of one sandbox can kill each other; the engine hears of it and goes on.

    One that is killed before it is let go is no fault of the agent's, and not the sandbox's end.
    """
    word = mark()
    done = starter.script(HOSTILE.replace("{mark}", word))
    assert done.returncode == 0, done.stderr
    early = (
        "agent_unreachable the command was killed by signal 9 before it began, by another process "
        "in its sandbox"
    )
    ends = done.stdout.decode().splitlines()
    assert len(ends) == 20
    assert set(ends) <= {"signaled", early}
    assert gone(word)


def test_first_process_is_known_by_its_name(starter: drive.Starter) -> None:
    """As root it is started through a descriptor, and would be called by its number."""
    word = mark()
    argv = starter.kis_argv("sandbox", "run", "--tier", "container", "--", "sleep", word)
    with starter.start(argv) as process:
        assert drive.eventually(lambda: len(drive.processes_with(word)) >= 2)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        names = [Path(f"/proc/{child}/comm").read_text().strip() for child in children]
        process.kill()
    assert "kis-init" in names
    assert gone(word)


def test_personality_of_the_caller_stays_outside(starter: drive.Starter) -> None:
    """`setarch -R` switches address randomisation off; a payload must not run without it."""
    setarch = shutil.which("setarch")
    if setarch is None:
        pytest.skip("needs setarch: util-linux")
    read = ("cat", "/proc/self/personality")
    assert starter.call([setarch, "-R", *read]).stdout == b"00040000\n"
    for tier in (["--tier", "container"], ["--tier", "process", "--allow-process-tier"]):
        argv = starter.kis_argv("sandbox", "run", *tier, "--", *read)
        assert starter.call([setarch, "-R", *argv]).stdout == b"00000000\n"


FEW_DESCRIPTORS = """
import os, resource
from kis import Command, Engine, Profile, SandboxError
engine = Engine()
base = engine.admit_host_base()
engine.run(Command(["true"]), Profile(), base, tier="container").check()
used = len(os.listdir("/proc/self/fd"))
codes = set()
for more in range(24):
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, resource.getrlimit(7)[1]))
    try:
        engine.run(Command(["true"]), Profile(), base, tier="container")
        codes.add("ran")
    except SandboxError as error:
        codes.add(str(error.code))
        assert error.hint
print(sorted(codes))
"""


def test_too_few_descriptors_are_a_typed_error(starter: drive.Starter) -> None:
    done = starter.script(FEW_DESCRIPTORS)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"['ran', 'setup_failed']\n"
