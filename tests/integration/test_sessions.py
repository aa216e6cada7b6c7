"""A live sandbox in the hands of an application: forked, timed out, closed, handed nonsense."""

from __future__ import annotations

import drive
import pytest

START = """
import asyncio, gc, os, sys, time
from kis import *
from kis import Command, Engine, Profile
engine = Engine()
base = engine.admit_host_base()
"""


def run(starter: drive.Starter, body: str, *argv: str) -> list[str]:
    """Run a script of a library user; the lines that it printed."""
    done = starter.script(START + body, *argv)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize(
    "act",
    [
        "del sandbox; gc.collect()",
        "sandbox.close()",
        "sandbox.__exit__(None, None, None)",
        """
try:
    sandbox.run(Command(["true"]))
except SandboxError as error:
    assert error.code == "agent_unreachable" and "another process" in error.message
else:
    os._exit(1)
""",
    ],
    ids=["drop", "close", "leave", "run"],
)
def test_a_fork_of_the_application_has_no_say_in_its_sandbox(
    starter: drive.Starter, act: str
) -> None:
    """The child's copy of the object is dropped, closed or used; the parent's sandbox lives on."""
    body = """
sandbox = engine.create(Profile(), base, tier="container")
sandbox.run(Command(["touch", "/tmp/kept"])).check()
held = len(os.listdir("/proc/self/fd"))
child = os.fork()
if child == 0:
    status = 1
    try:
        exec(sys.argv[1])
        if sys.argv[2] == "closes":
            assert len(os.listdir("/proc/self/fd")) < held
        status = 0
    finally:
        os._exit(status)
print(os.waitpid(child, 0)[1])
print(sandbox.run(Command(["ls", "/tmp"])).text(), end="")
sandbox.close()
"""
    kind = "uses" if "run" in act else "closes"
    assert run(starter, body, act, kind) == ["0", "kept"]


def test_a_fork_in_the_middle_of_a_command_has_no_say_in_it(starter: drive.Starter) -> None:
    """A handler of output that forks, and whose child leaves through the engine's own code."""
    body = """
parent = os.getpid()
def handler(data):
    if b"start" in data and os.fork() == 0:
        raise KeyboardInterrupt
try:
    outcome = engine.run(Command(["sh", "-c", "echo start; sleep 1; echo end"]), Profile(), base,
                         tier="container", on_stdout=handler)
except KeyboardInterrupt:
    os._exit(0 if os.getpid() != parent else 1)
print(os.wait()[1], outcome.reason, outcome.exit_code)
"""
    assert run(starter, body) == ["0 exited 0"]


def test_a_fork_has_no_say_in_a_sandbox_of_asyncio(starter: drive.Starter) -> None:
    body = """
async def main():
    engine = AsyncEngine()
    sandbox = await engine.create(Profile(), engine.admit_host_base(), tier="container")
    for act in ("drop", "close"):
        child = os.fork()
        if child == 0:
            if act == "drop":
                sandbox.__del__()
            else:
                try:
                    sandbox.close().send(None)
                except StopIteration:
                    pass
            os._exit(0)
        print(os.waitpid(child, 0)[1])
    print((await sandbox.run(Command(["echo", "alive"]))).text(), end="")
    await sandbox.close()
asyncio.run(main())
"""
    assert run(starter, body) == ["0", "0", "alive"]


def test_no_zombie_for_the_life_of_a_session(starter: drive.Starter) -> None:
    """Of the launcher nothing is left, not even its number."""
    body = """
with engine.create(Profile(), base, tier="container") as sandbox:
    sandbox.run(Command(["true"])).check()
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    print(len(children))
"""
    assert run(starter, body) == ["1"]


ENDINGS = {
    "closed": "sandbox.close()",
    "time_limit": 'sandbox.run(Command(["sleep", "60"]))',
    "output_limit": 'sandbox.run(Command(["yes"]))',
    "interruption": 'sandbox.run(Command(["echo"]), on_stdout=1)',
    "death": """
os.kill(int(open(f"/proc/self/task/{os.getpid()}/children").read().split()[0]), 9)
sandbox.run(Command(["true"]))
""",
}
WORDS = {
    "closed": "it was closed",
    "time_limit": "its last command ran into the time limit",
    "output_limit": "its last command ran into the output limit",
    "interruption": "its last command was broken off by an exception",
    "death": "it died",
}


@pytest.mark.parametrize("ended_by", ENDINGS)
@pytest.mark.parametrize("engine", ["Engine", "AsyncEngine"])
def test_a_sandbox_that_has_ended_says_by_what(
    starter: drive.Starter, engine: str, ended_by: str
) -> None:
    body = """
profile = Profile(limits=Limits(wall_seconds=1, output_bytes=1000))

class Waited:

    def __init__(self, loop):
        self.loop = loop
        engine = AsyncEngine()
        async def create():
            return await engine.create(profile, engine.admit_host_base(), tier="container")
        self.sandbox = loop.run_until_complete(create())
    def run(self, *what, **how):
        return self.loop.run_until_complete(self.sandbox.run(*what, **how))
    def close(self):
        self.loop.run_until_complete(self.sandbox.close())

if sys.argv[1] == "Engine":
    sandbox = engine.create(profile, base, tier="container")
else:
    sandbox = Waited(asyncio.new_event_loop())
try:
    exec(sys.argv[2])
except (SandboxError, TypeError):
    pass
sandbox.close()  # later, which changes nothing
try:
    sandbox.run(Command(["true"]))
except SandboxError as error:
    print(error.code, error.details, error.message)
"""
    expected = f"agent_unreachable {{'ended_by': '{ended_by}'}} the sandbox has ended: "
    assert run(starter, body, engine, ENDINGS[ended_by]) == [expected + WORDS[ended_by]]


def test_arguments_of_other_types_are_refused_by_name(user: drive.Starter) -> None:
    """A list for a command, a dictionary for a profile, nothing for a base: no AttributeError."""
    body = """
twin, true, profile = AsyncEngine(), Command(["true"]), Profile()
def done(coroutine):
    return asyncio.run(coroutine)
async def in_sandbox(command):
    async with twin.create(profile, base, tier="container") as sandbox:
        await sandbox.run(command)
with engine.create(profile, base, tier="container") as sandbox:
    for call in (
        lambda: sandbox.run(["true"]),
        lambda: done(in_sandbox("true")),
        lambda: done(twin.run(["true"], profile, base, tier="container")),
        lambda: done(twin.run(None, profile, base, tier="container")),
        lambda: done(twin.run(true, {}, base, tier="container")),
        lambda: done(twin.run(true, profile, "host", tier="container")),
        lambda: twin.create({}, base, tier="container"),
        lambda: twin.create(profile, None, tier="container"),
        lambda: engine.run(["true"], profile, base, tier="container"),
        lambda: engine.run(true, {}, base, tier="container"),
        lambda: engine.explain(true, profile, None, tier="container"),
        lambda: engine.create(profile, None, tier="container"),
        lambda: engine.run(true, profile, base, tier=[1]),
    ):
        try:
            call()
        except SandboxError as error:
            print(error.code, error.details, error.message)
    print(sandbox.run(true).exit_code)  # nothing was harmed
"""
    command, base = "command_invalid {'field': 'command'} command", "base_invalid {'field': 'base'}"
    assert run(user, body) == [
        f"{command} must be a Command, not a list",
        f"{command} must be a Command, not a str",
        f"{command} must be a Command, not a list",
        f"{command} must be a Command, not None",
        "profile_invalid {'field': 'profile'} profile must be a Profile, not a dict",
        f"{base} base must be a Base, not a str",
        "profile_invalid {'field': 'profile'} profile must be a Profile, not a dict",
        f"{base} base must be a Base, not None",
        f"{command} must be a Command, not a list",
        "profile_invalid {'field': 'profile'} profile must be a Profile, not a dict",
        f"{base} base must be a Base, not None",
        f"{base} base must be a Base, not None",
        "config_invalid {'field': 'tier'} no tier is called '[1]'",
        "0",
    ]


def test_close_from_a_sink_or_signal_handler_kills_the_command(user: drive.Starter) -> None:
    """The thread that runs the command cannot wait for it: closing ends it, and hangs nobody."""
    body = """
import signal
sandbox = engine.create(Profile(), base, tier="container")
signal.signal(signal.SIGALRM, lambda *_: sandbox.close())
signal.alarm(1)
print(sandbox.run(Command(["sleep", "300"])).reason)
sandbox = engine.create(Profile(), base, tier="container")
endless = Command(["sh", "-c", "echo out; exec sleep 300"])
print(sandbox.run(endless, on_stdout=lambda _: sandbox.close()).reason)
sandbox.close()
"""
    assert run(user, body) == ["killed", "killed"]


def test_run_from_a_sink_is_refused(user: drive.Starter) -> None:
    body = """
def again(_):
    try:
        sandbox.run(Command(["true"]))
    except SandboxError as error:
        print(error.code)
with engine.create(Profile(), base, tier="container") as sandbox:
    print(sandbox.run(Command(["echo"]), on_stdout=again).reason)
"""
    assert run(user, body) == ["command_invalid", "exited"]
