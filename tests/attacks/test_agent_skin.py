"""Attacks on pid 1 of the sandbox, which is ours."""

from __future__ import annotations

import json
import os

import arena
import pytest

READS_OWN_MEMORY_ONLY = "the kernel lets only the process itself"
NO_CONTROL: dict[str, str] = {
    "join_its_namespaces": "the control's pid 1 is in the attacker's own namespaces",
    "hold_a_socket_of_the_engine": "a control of its own, below",
}


@arena.ways
def test_agent_stays_untouched(way: arena.Way) -> None:
    """No attack reads, writes, slows or robs pid 1."""
    arena.assert_contained(arena.attack(way, "agent_skin", {}))


def test_plain_pid_1_is_lost() -> None:
    """The same attacks get at a pid 1 that runs as the payload's user and is not protected."""
    starter = arena.who("root" if os.getuid() == 0 else "user")
    namespaces = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if not starter.is_root:
        namespaces = ["unshare", "--user", "--map-root-user", *namespaces[1:]]
    plain = (arena.PAYLOADS / "plain_pid_1.py").read_text()
    argv = [*namespaces, arena.PAYLOAD_PYTHON, "-I", "-c", plain]
    report = arena.report_of(starter.call([*argv, arena.text_of("agent_skin"), json.dumps({})]))
    arena.assert_gets_out(report, NO_CONTROL)


def test_socket_left_open_is_found() -> None:
    """The control for the engine's sockets: one that is inherited is seen."""
    import socket

    left, right = socket.socketpair()
    with left, right:
        report = arena.unprotected([], "agent_skin", {}, pass_fds=[left.fileno()])
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
print("still here")
"""


@arena.ways
def test_signals_do_not_reach_the_agent(way: arena.Way) -> None:
    """After every signal sent to pid 1, the run still ends with what its command said."""
    starter = arena.who(way.starter)
    done = starter.container("python3", "-I", "-c", SIGNALS + "os._exit(7)", flags=way.flags)
    assert (done.returncode, done.stdout) == (7, b"still here\n"), done.stderr


@arena.ways
def test_stopping_everything_does_not_stop_the_agent(way: arena.Way) -> None:
    """`kill(-1, SIGSTOP)` reaches what the payload owns, and the time limit still ends the run."""
    starter = arena.who(way.starter)
    code = "import os, signal; os.kill(-1, signal.SIGSTOP); os.kill(os.getpid(), signal.SIGSTOP)"
    done = starter.container("python3", "-I", "-c", code, flags=(*way.flags, "--timeout", "1"))
    assert done.returncode == 124, (done.returncode, done.stderr)


WATCH = r"""
import os, sys
me, met = os.getpid(), 0
while not os.path.exists("/tmp/enough"):
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (1, me):
            continue
        try:
            os.close(os.open("/proc/%s/mem" % name, os.O_RDWR))
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
import sys, threading
from kis import Command, Engine, Profile
engine = Engine()
watch = sys.argv[1]
with engine.create(Profile(), engine.admit_host_base(), tier="container") as sandbox:
    outcomes = []
    watcher = threading.Thread(
        target=lambda: outcomes.append(sandbox.run(Command(["python3", "-I", "-c", watch]))))
    watcher.start()
    for _ in range(40):
        sandbox.run(Command(["/usr/bin/true"])).check()
    sandbox.run(Command(["sh", "-c", "sleep 0.2; touch /tmp/enough"])).check()
    watcher.join(60)
print(outcomes[0].exit_code, outcomes[0].stdout, outcomes[0].stderr)
"""


@pytest.mark.parametrize("name", ["root", "user"])
def test_waiting_command_is_not_open_to_its_neighbour(name: str) -> None:
    """A command that still waits to be released keeps its memory closed, until `execve`."""
    starter = arena.who(name)
    done = starter.script(LIBRARY, WATCH)
    assert done.stdout.startswith(b"0 "), (done.stdout, done.stderr)
