"""Attacks on pid 1 of the sandbox, which is ours."""

from __future__ import annotations

import json
import os

import arena
import pytest

NO_CONTROL: dict[str, str] = {
    "join_its_namespaces": "the control's pid 1 is in the attacker's own namespaces",
    "hold_a_socket_of_the_engine": "a control of its own, below",
}


@arena.ways
def test_agent_stays_untouched(way: arena.Way) -> None:
    """No attack reads, writes, slows or robs pid 1."""
    arena.assert_contained(arena.attack(way, "agent_skin", {"pid_1": "agent"}))


def test_agent_stays_untouched_by_its_own_user() -> None:
    """Also where a payload that was granted SETUID takes on the agent's own user id."""
    way = arena.Way("as-agent", "root", ("--user", "root", "--cap", "SETUID", "--cap", "SETGID"))
    arena.assert_contained(arena.attack(way, "agent_skin", {"pid_1": "agent", "become": 65533}))


def test_plain_pid_1_is_lost() -> None:
    """The same attacks get at a pid 1 that runs as the payload's user and is not protected."""
    starter = arena.who("root" if os.getuid() == 0 else "user")
    namespaces = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if not starter.is_root:
        namespaces = ["unshare", "--user", "--map-root-user", *namespaces[1:]]
    plain = (arena.PAYLOADS / "plain_pid_1.py").read_text()
    argv = [*namespaces, arena.PAYLOAD_PYTHON, "-I", "-c", plain]
    argv += [arena.text_of("agent_skin"), json.dumps({"pid_1": "plain"})]
    report = arena.report_of(starter.call(argv))
    excused = dict(NO_CONTROL)
    if not starter.is_root:
        excused["advise_its_memory"] = "needs CAP_SYS_NICE over the whole machine"
    arena.assert_gets_out(report, excused)


def test_socket_left_open_is_found() -> None:
    """The control for the engine's sockets: one that is inherited is seen."""
    import socket

    left, right = socket.socketpair()
    with left, right:
        only = {"pid_1": "the host's", "only": ["hold_a_socket_of_the_engine"]}
        report = arena.unprotected([], "agent_skin", only, pass_fds=[left.fileno()])
    assert report["hold_a_socket_of_the_engine"].verdict == "out"


SIGNALS = """
import os, signal
for number in range(1, 65):
    if number in (32, 33):
        continue
    try:
        os.kill(1, number)
    except OSError:
        pass
print("still here", flush=True)
os._exit(7)
"""


@arena.ways
def test_signals_do_not_reach_the_agent(way: arena.Way) -> None:
    """After every signal sent to pid 1, the run still ends with what its command said."""
    starter = arena.who(way.starter)
    done = starter.container("python3", "-I", "-c", SIGNALS, flags=way.flags)
    assert (done.returncode, done.stdout) == (7, b"still here\n"), done.stderr


@arena.ways
def test_stopping_everything_does_not_stop_the_agent(way: arena.Way) -> None:
    """`kill(-1, SIGSTOP)` reaches what the payload owns, and the time limit still ends the run."""
    starter = arena.who(way.starter)
    script = "sleep 100 & python3 -I -c 'import os; os.kill(-1, 19)'; wait"
    done = starter.container("sh", "-c", script, flags=(*way.flags, "--timeout", "1"))
    assert done.returncode == 124, (done.returncode, done.stderr)


WATCH = r"""
import os, sys
me, met = os.getpid(), 0
while not os.path.exists("/tmp/enough"):
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (1, me):
            continue
        try:
            os.close(os.open("/proc/%s/mem" % name, os.O_RDONLY))
            exe = os.readlink("/proc/%s/exe" % name)
        except OSError:
            continue
        met += 1
        if "kis-init" in exe or "memfd" in exe:
            print("opened the memory of", exe)
            sys.exit(1)
sys.exit(0 if met else 2)
"""

LIBRARY = """
import sys
from kis import Command, Engine, Profile
engine = Engine()
start = 'setsid python3 -I -c "$0" >/tmp/said 2>&1 </dev/null; echo $? >/tmp/status'
end = "touch /tmp/enough; while ! test -s /tmp/status; do sleep 0.05; done; cat /tmp/status"
with engine.create(Profile(), engine.admit_host_base(), tier="container") as sandbox:
    background = "(" + start + ") >/dev/null 2>&1 &"
    sandbox.run(Command(["sh", "-c", background, sys.argv[1]])).check()
    for _ in range(40):
        sandbox.run(Command(["/usr/bin/true"])).check()
    sandbox.run(Command(["sleep", "0.3"])).check()
    print(sandbox.run(Command(["sh", "-c", end + " /tmp/said"])).check().text())
"""


@pytest.mark.parametrize("name", ["root", "user"])
def test_waiting_command_is_not_open_to_its_neighbour(name: str) -> None:
    """A command that still waits to be released keeps its memory closed, until `execve`."""
    starter = arena.who(name)
    done = starter.script(LIBRARY, WATCH)
    assert done.stdout.startswith(b"0\n"), (done.stdout, done.stderr)
