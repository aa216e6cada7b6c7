"""The library as its users meet it: one-shot, several runs in one sandbox, and the asyncio twin."""

from __future__ import annotations

import drive
import pytest

START = """
import asyncio, os, pickle, sys, copy
from kis import *
from kis import Command, Engine, Profile
engine = Engine()
base = engine.admit_host_base()
"""


def run(starter: drive.Starter, body: str, *argv: str) -> str:
    """Run a script of a library user; what it printed."""
    done = starter.script(START + body, *argv)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_readme_example(starter: drive.Starter) -> None:
    body = """
with engine.create(Profile(), base, tier="container") as sandbox:
    outcome = sandbox.run(Command(["python3", "-c", "print(6*7)"]))
    print(outcome.stdout, str(outcome.reason), outcome.exit_code, outcome.receipt.id[:4])
"""
    assert run(starter, body) == "b'42\\n' exited 0 run_\n"


def test_one_shot(starter: drive.Starter) -> None:
    body = """
outcome = engine.run(Command(["sh", "-c", "cat; exit 3"], stdin=b"in"), Profile(), base,
                     tier="container")
print(outcome.stdout, outcome.exit_code, outcome.text())
try:
    outcome.check()
except CommandFailed as error:
    print("failed", error.outcome is outcome)
"""
    assert run(starter, body) == "b'in' 3 in\nfailed True\n"


def test_commands_of_a_sandbox_share_its_space(starter: drive.Starter) -> None:
    """Files stay from one command to the next, and no longer than the sandbox."""
    body = """
with engine.create(Profile(), base, tier="container") as sandbox:
    sandbox.run(Command(["sh", "-c", "echo kept > /tmp/f"])).check()
    print(sandbox.run(Command(["cat", "/tmp/f"])).text(), end="")
with engine.create(Profile(), base, tier="container") as sandbox:
    print(sandbox.run(Command(["cat", "/tmp/f"])).exit_code)
"""
    assert run(starter, body) == "kept\n1\n"


def test_receipt_marks_what_came_after_payload_code(starter: drive.Starter) -> None:
    """From the second command on, what the inside says of itself is marked as such."""
    body = """
with engine.create(Profile(), base, tier="container") as sandbox:
    for _ in range(2):
        receipt = sandbox.run(Command(["true"])).receipt
        print(any(entry.after_payload for entry in receipt.entries), receipt.holds)
"""
    assert run(starter, body) == "False True\nTrue True\n"


def test_streaming_has_no_line_limit(starter: drive.Starter) -> None:
    """Case A02: one line of eight million characters, in chunks, without copies piling up."""
    body = """
import resource
sizes = []
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
outcome = engine.run(Command(["python3", "-c", "print('x'*8000000)"]), Profile(), base,
                     tier="container", on_stdout=lambda chunk: sizes.append(len(chunk)))
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(sum(sizes), outcome.exit_code, outcome.truncated, grown < 40000)
"""
    assert run(starter, body) == "8000001 0 False True\n"


def test_undecodable_output_as_text(starter: drive.Starter) -> None:
    """Case A01 in the library: bytes are bytes, and the text view does not raise."""
    body = r"""
code = "import sys; sys.stdout.buffer.write(b'ok\\xff\\xfe\\n')"
outcome = engine.run(Command(["python3", "-c", code]), Profile(), base, tier="container")
print(outcome.stdout.hex(), ascii(outcome.text()))
"""
    assert run(starter, body) == "6f6bfffe0a 'ok\\ufffd\\ufffd\\n'\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ('["echo", "se\\0cret"]', "command_invalid"),
        ('["true"], env={"A=B": "secret"}', "command_invalid"),
        ('["true"], env={"": "secret"}', "command_invalid"),
        ('["true"], env={"A": "se\\0cret"}', "command_invalid"),
        ('["echo", "secret" * 30000]', "argument_too_long"),
        ('["true"], env={"A": "secret" * 30000}', "argument_too_long"),
        ('["echo"] + ["secret" * 10000] * 120', "argument_too_long"),
        ("[]", "command_invalid"),
        ('["true"], cwd="se\\0cret"', "command_invalid"),
        ('["true"], user=65533', "command_invalid"),
    ],
)
def test_command_that_cannot_be_passed(starter: drive.Starter, arguments: str, code: str) -> None:
    """Case A12 (a) to (d): refused where it is made, naming the field and never the value."""
    body = f"""
try:
    Command({arguments})
except SandboxError as error:
    print(error.code, "secret" in str(error).replace(chr(0), ""), "field" in error.details)
"""
    assert run(starter, body) == f"{code} False True\n"


def test_handles_cannot_be_made_or_copied(starter: drive.Starter) -> None:
    """Callers hold handles that only the engine can make."""
    body = """
from kis.identity import Base, MountSource
source = engine.admit_mount(os.open("/usr", os.O_PATH))
for kind in (MountSource, Base):
    for make in (lambda: kind(), lambda: kind("src_x", 3), lambda: kind(id="src_x")):
        try:
            make(); print("made", kind)
        except TypeError:
            pass
for handle in (source, base):
    for copier in (copy.copy, copy.deepcopy, pickle.dumps):
        try:
            copier(handle); print("copied", handle)
        except TypeError:
            pass
try:
    Mount("/usr", "/m"); print("path accepted")
except (SandboxError, TypeError):
    pass
print(source.id.startswith("src_"))
"""
    assert run(starter, body) == "True\n"


def test_mount_by_descriptor_means_that_inode(starter: drive.Starter) -> None:
    """What is mounted is what was opened, whatever its path leads to afterwards."""
    with starter.room() as room:
        (room / "a").mkdir()
        (room / "a" / "f").write_text("opened")
        (room / "b").mkdir()
        (room / "b" / "f").write_text("swapped")
        body = """
room = sys.argv[1]
source = engine.admit_mount(os.open(room + "/a", os.O_PATH))
if sys.argv[2] == "swap":
    os.rename(room + "/a", room + "/c")
    os.symlink("b", room + "/a")
profile = Profile(mounts=[Mount(source, "/m")])
try:
    print(engine.run(Command(["cat", "/m/f"]), profile, base, tier="container").text())
except SandboxError as error:
    print(error.code)
"""
        starter.give(room / "a", room / "b")
        assert run(starter, body, str(room), "stay") == "opened\n"
        # Without privilege a mount can only be made by its path: when that leads elsewhere, refuse.
        expected = "opened\n" if starter.is_root else "mount_invalid\n"
        assert run(starter, body, str(room), "swap") == expected


def test_user_is_fixed_where_a_mount_is_writable(root: drive.Starter) -> None:
    """In a sandbox with a writable mount a command of another user is refused, as documented."""
    with root.room() as room:
        import os

        os.chown(room, drive.ORDINARY_UID, drive.ORDINARY_UID)
        body = """
source = engine.admit_mount(os.open(sys.argv[1], os.O_PATH))
profile = Profile(mounts=[Mount(source, "/m", "rw")])
with engine.create(profile, base, tier="container") as sandbox:
    print(sandbox.run(Command(["touch", "/m/f"])).exit_code)
    try:
        print(sandbox.run(Command(["touch", "/m/g"], user="root")).exit_code)
    except SandboxError as error:
        print(error.code)
"""
        assert run(root, body, str(room)) == "0\ncommand_invalid\n"
        assert [path.name for path in room.iterdir()] == ["f"]


def test_asyncio_twin(starter: drive.Starter) -> None:
    """Many at once on one loop, with the same outcomes and the same errors."""
    body = """
async def main():
    engine = AsyncEngine()
    base = engine.admit_host_base()
    async def one(number):
        command = Command(["sh", "-c", "cat; exit %d" % number], stdin=b"n%d" % number)
        return await engine.run(command, Profile(), base, tier="container")
    outcomes = await asyncio.gather(*[one(number) for number in range(8)])
    print([(o.stdout, o.exit_code) for o in outcomes] == [(b"n%d" % n, n) for n in range(8)])
    async with await created(engine, base) as sandbox:
        print((await sandbox.run(Command(["echo", "hi"]))).text(), end="")
        try:
            await sandbox.run(Command(["nosuchcmd"]))
        except SandboxError as error:
            print(error.code)
        profile = Profile(limits=Limits(wall_seconds=1))
    late = await engine.run(Command(["sleep", "100"]), profile, base, tier="container")
    print(late.reason)

async def created(engine, base):
    sandbox = engine.create(Profile(), base, tier="container")
    return await sandbox if hasattr(sandbox, "__await__") else sandbox

asyncio.run(main())
"""
    assert run(starter, body) == "True\nhi\nexec_missing\ntimed_out\n"


def test_cancelling_ends_the_command(starter: drive.Starter) -> None:
    """A cancelled task takes its sandbox with it."""
    import uuid

    word = f"6{uuid.uuid4().int % 10**12}"
    body = """
async def main():
    engine = AsyncEngine()
    command = Command(["sleep", sys.argv[1]])
    task = asyncio.ensure_future(
        engine.run(command, Profile(), engine.admit_host_base(), tier="container"))
    await asyncio.sleep(1)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        print("cancelled")

asyncio.run(main())
"""
    assert run(starter, body, word) == "cancelled\n"
    assert drive.eventually(lambda: drive.processes_with(f"sleep\0{word}") == [])


def test_errors_have_classes(starter: drive.Starter) -> None:
    body = """
for want, call in (
    (ErrEscapeHatchForbidden, lambda: engine.run(
        Command(["true"]), Profile(), base, tier="process")),
    (ErrTierUnavailable, lambda: engine.run(Command(["true"]), Profile(), base)),
    (ErrProfileUnsatisfiable, lambda: engine.run(
        Command(["true"]), Profile(network=NetworkPolicy("egress")), base, tier="container")),
):
    try:
        call()
    except want as error:
        again = pickle.loads(pickle.dumps(error))
        print(error.code, type(again) is want, again.details == error.details)
"""
    expected = "escape_hatch_forbidden tier_unavailable profile_unsatisfiable".split()
    assert run(starter, body) == "".join(f"{code} True True\n" for code in expected)


def test_engine_reads_no_environment(starter: drive.Starter) -> None:
    """P4: what the engine does depends on no variable of its process."""
    body = """
class Watched(dict):
    pass
os.environ.clear()
os.environ.update({"PATH": "/nonexistent", "HOME": "/nonexistent", "TMPDIR": "/nonexistent"})
print(engine.run(Command(["echo", "ran"]), Profile(), base, tier="container").text(), end="")
"""
    body = body.replace("class Watched(dict):\n    pass\n", "")
    assert run(starter, body) == "ran\n"


def test_engine_works_from_threads_and_after_a_fork(starter: drive.Starter) -> None:
    """An engine made before a fork serves the child, with ids of its own."""
    body = """
def ids():
    return engine.run(Command(["true"]), Profile(), base, tier="container").receipt.sandbox
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.write(writer, ids().encode())
    os._exit(0)
os.close(writer)
own = ids()
print(os.waitpid(child, 0)[1], own != os.read(reader, 100).decode(), own.startswith("sbx_"))
"""
    assert run(starter, body) == "0 True True\n"
