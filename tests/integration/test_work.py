"""Real work: programs that people run, inside and outside, with the same result."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from pathlib import Path
from xml.etree import ElementTree

import drive
import pytest


def need(program: str) -> None:
    if shutil.which(program, path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip(f"needs {program} in /usr")


def outside(starter: drive.Starter, *argv: str, **environment: str) -> drive.Finished:
    """The same command without a sandbox, in an empty directory."""
    with starter.room() as room:
        variables = starter.environment(HOME=str(room), TMPDIR=str(room), **environment)
        return starter.call(list(argv), cwd=room, env=variables)


# Module of CPython's test package, the classes of it that are run, and what they need of kis. Of
# sockets those that want a loopback and nothing else; of processes those that end within seconds.
LOOPBACK = ("--net", "loopback")
SUITE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "test_json": ((), ()),
    "test_re": ((), ()),
    "test_sqlite3": ((), ()),
    "test_tempfile": ((), ()),
    "test_threading": ((), ()),
    "test_zlib": ((), ()),
    "test_socket": (
        ("BasicTCPTest", "BasicTCPTest2", "BasicUDPTest", "NonBlockingTCPTests", "UnixStream*"),
        LOOPBACK,
    ),
    "test_multiprocessing_fork": (
        ("WithProcessesTest[LQ]*", "WithThreadsTestPool", "WithProcessesTestSharedMemory"),
        LOOPBACK,
    ),
}
LEFT_OUT_BY_DEBIAN = ("test_sqlite3",)
# The table of results on standard output, all else on standard error.
REGRTEST = 'out=$(mktemp); "$@" --junit-xml "$out" >&2; status=$?; cat "$out"; exit $status'


def interpreter_with(starter: drive.Starter, module: str) -> tuple[str, tuple[str, ...]]:
    """An interpreter that ships this test module, and the flags that show it inside."""
    candidates = [("/usr/bin/python3", ()), (starter.python, ("--base", "python"))]
    code = "import importlib.util, sys, test.libregrtest\n"
    code += f"sys.exit(importlib.util.find_spec('test.{module}') is None)"
    for python, flags in candidates:
        if os.path.exists(python) and starter.call([python, "-I", "-c", code]).returncode == 0:
            return python, flags
    what = module if module in LEFT_OUT_BY_DEBIAN else "testsuite"
    pytest.skip(f"needs {what}: no interpreter here ships test.{module}")


def results(done: drive.Finished) -> dict[str, str | None]:
    """Each test of CPython's that was run, and how it ended."""
    log = done.stderr.decode(errors="replace")[-4000:]
    assert done.returncode == 0, log
    table = ElementTree.fromstring(done.stdout.decode())
    found: dict[str, str | None] = {
        case.attrib["name"]: " ".join([case.attrib["result"], *(child.tag for child in case)])
        for case in table.iter("testcase")
        if case.attrib["status"] == "run"
    }
    assert "completed" in found.values(), log
    return found


# Twice some ten seconds, most of them asleep; a machine with more to do needs more.
@pytest.mark.timeout(240)
@pytest.mark.parametrize("module", SUITE)
def test_slice_of_cpython(starter: drive.Starter, module: str) -> None:
    """Of CPython's own tests the same ones pass inside as outside, and none fails."""
    classes, flags = SUITE[module]
    python, base = interpreter_with(starter, module)
    matches = [word for name in classes for word in ("-m", f"*.{name}.*")]
    argv = ("-m", "test", "-v", *matches, module)
    environment = starter.environment(PATH=os.path.dirname(python) + ":" + drive.HOST_PATH)
    shell = ("sh", "-c", REGRTEST, "sh")
    name = os.path.basename(python)
    done = starter.container(*shell, name, *argv, flags=(*base, *flags), env=environment)
    inside, plain = results(done), results(outside(starter, *shell, python, *argv))
    if starter.is_root:
        # Who may do everything skips the tests of what is forbidden; inside nobody may.
        plain |= {name: inside.get(name) for name in plain if "skipped" in plain[name]}
    assert inside == plain


PROGRAM = r"""
#include <stdio.h>
#include <math.h>
int main(void) { printf("%.6f %zu\n", sqrt(2.0) * M_PI, sizeof(void *)); return 7; }
"""


def test_compile_and_run(starter: drive.Starter) -> None:
    """gcc finds its headers, its libraries and a place to write."""
    need("gcc")
    script = f"cat > p.c <<'END'\n{PROGRAM}\nEND\ngcc -O2 -Wall -Werror -o p p.c -lm && ./p"
    inside = starter.container("sh", "-c", script)
    assert (inside.returncode, inside.stdout) == (7, b"4.442883 8\n"), inside.stderr
    plain = outside(starter, "sh", "-c", script)
    assert (plain.returncode, plain.stdout) == (inside.returncode, inside.stdout)


def test_git_history(starter: drive.Starter) -> None:
    """git init, add, commit, log: the same commit, to the last bit."""
    need("git")
    script = (
        "export GIT_AUTHOR_DATE='2001-02-03T04:05:06Z' GIT_COMMITTER_DATE='2001-02-03T04:05:06Z';"
        " git init -q r && cd r && echo content > f && git add f &&"
        " git -c user.name=n -c user.email=e@example.org commit -q -m first &&"
        " git log --format=%H:%s && git fsck --strict && git status --short"
    )
    inside = starter.container("sh", "-c", script)
    assert inside.returncode == 0, inside.stderr
    assert inside.stdout == outside(starter, "sh", "-c", script).stdout


def test_git_in_a_mounted_repository(starter: drive.Starter) -> None:
    """A repository of the caller's can be worked on; nobody speaks of dubious ownership."""
    need("git")
    with starter.room() as room:
        repository = room / "r"
        repository.mkdir()
        owner = drive.ORDINARY_UID if starter.is_root else starter.uid
        os.chown(repository, owner, owner if starter.is_root else starter.gid)
        script = (
            "git init -q . && echo x > f && git add f"
            " && git -c user.name=n -c user.email=e commit -q -m one && git log --format=%s"
        )
        flags = ("-v", f"{repository}:/r:rw", "-w", "/r")
        done = starter.container("sh", "-c", script, flags=flags)
        assert (done.returncode, done.stdout) == (0, b"one\n"), done.stderr
        assert {path.lstat().st_uid for path in repository.rglob("*")} == {owner}


def test_archive_of_a_tree(starter: drive.Starter) -> None:
    """tar packs a mounted tree, links and all, into the same bytes as outside."""
    need("tar")
    with starter.room() as room:
        tree = room / "tree"
        numbers = random.Random(7)
        for at in range(200):
            place = tree / f"d{at % 13}" / f"e{at % 7}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"f{at}").write_bytes(numbers.randbytes(numbers.randrange(20000)))
        (tree / "link").symlink_to("d1/e1")
        os.link(tree / "d0" / "e0" / "f0", tree / "hard")
        options = "--sort=name --owner=0 --group=0 --numeric-owner --format=posix"
        options += " --pax-option=delete=atime,delete=ctime --mtime=@0 --mode=go-w"
        script = f"tar {options} -cf - -C {{}} . | sha256sum"
        inside = starter.container("sh", "-c", script.format("/t"), flags=("-v", f"{tree}:/t"))
        assert inside.returncode == 0, inside.stderr
        assert inside.stdout == starter.call(["sh", "-c", script.format(tree)]).stdout
        unpack = f"tar {options} -cf a.tar -C /t . && mkdir u && tar -xf a.tar -C u && diff -r /t u"
        done = starter.container("sh", "-c", unpack, flags=("-v", f"{tree}:/t"))
        assert (done.returncode, done.stdout) == (0, b""), done.stderr


DATABASE = """
import hashlib, sqlite3, threading
main = sqlite3.connect("w.db")
print(main.execute("pragma journal_mode=wal").fetchone())
main.execute("create table t (k integer primary key, v text)")
main.commit()
def write(part):
    own = sqlite3.connect("w.db", timeout=60)
    for at in range(80):
        with own:
            own.execute("insert into t values (?, ?)", (part * 1000 + at, "x" * (at % 50)))
    own.close()
threads = [threading.Thread(target=write, args=(part,)) for part in range(4)]
for thread in threads: thread.start()
reader = sqlite3.connect("w.db")
while any(thread.is_alive() for thread in threads):
    reader.execute("select count(*), max(k) from t").fetchone()
for thread in threads: thread.join()
rows = main.execute("select k, v from t order by k").fetchall()
print(len(rows), hashlib.sha256(repr(rows).encode()).hexdigest())
print(main.execute("pragma wal_checkpoint(truncate)").fetchone())
print(main.execute("pragma integrity_check").fetchone())
"""


def test_database_with_a_write_ahead_log(starter: drive.Starter) -> None:
    """SQLite's WAL needs shared memory, locks and fsync, in HOME and in a writable mount."""
    inside = starter.container("python3", "-c", DATABASE)
    assert inside.returncode == 0, inside.stderr
    assert inside.stdout == outside(starter, "/usr/bin/python3", "-c", DATABASE).stdout
    with starter.room() as room:
        if starter.is_root:
            os.chown(room, drive.ORDINARY_UID, drive.ORDINARY_UID)
        flags = ("-v", f"{room}:/w:rw", "-w", "/w")
        mounted = starter.container("python3", "-c", DATABASE, flags=flags)
        assert mounted.stdout == inside.stdout, mounted.stderr
        assert (room / "w.db").exists()


def test_sort_of_100_megabytes(starter: drive.Starter) -> None:
    """sort spills to its temporary files and comes to the same order as outside."""
    need("sort")
    with starter.room() as room:
        numbers = random.Random(11)
        with open(room / "lines", "wb") as stream:
            for _ in range(100):
                lines = (b"%020d\n" % numbers.getrandbits(63) for _ in range(50000))
                stream.write(b"".join(lines))
        assert (room / "lines").stat().st_size > 100_000_000
        script = "LC_ALL=C sort -S 16M {} | sha256sum"
        flags = (
            "-v",
            f"{room}:/in",
        )
        inside = starter.container("sh", "-c", script.format("/in/lines"), flags=flags)
        assert inside.returncode == 0, inside.stderr
        plain = outside(starter, "sh", "-c", script.format(room / "lines"))
        assert inside.stdout == plain.stdout
        assert len(inside.stdout.split()[0]) == len(hashlib.sha256().hexdigest())


NODE = """
const crypto = require('crypto'), fs = require('fs'), os = require('os');
const { Worker, isMainThread } = require('worker_threads');
fs.writeFileSync(os.tmpdir() + '/f', 'x'.repeat(100000));
const data = fs.readFileSync(os.tmpdir() + '/f');
const digest = crypto.createHash('sha256').update(data).digest('hex');
const worker = new Worker("require('worker_threads').parentPort.postMessage(6*7)", { eval: true });
worker.on('message', (answer) => console.log(digest, answer));
"""


def test_node_script(starter: drive.Starter) -> None:
    """Node starts its threads, writes to TMPDIR and ends."""
    need("node")
    inside = starter.container("node", "-e", NODE)
    assert inside.returncode == 0, inside.stderr
    assert inside.stdout == outside(starter, "node", "-e", NODE).stdout


def test_example_is_denied_everything(starter: drive.Starter) -> None:
    """The example of the README: everything denied, the job done."""
    example = (drive.CHECKOUT / "examples" / "untrusted.py").read_bytes()
    done = starter.container("python3", "-", flags=("-i",), stdin=example)
    assert done.returncode == 0, done.stdout.decode()
    assert b"ALLOWED" not in done.stdout
    assert b"15 of 15 attempts denied" in done.stdout


def test_example_is_allowed_without_confinement(starter: drive.Starter) -> None:
    """The control: in the process tier several attempts succeed, and the example says so."""
    example = (drive.CHECKOUT / "examples" / "untrusted.py").read_bytes()
    done = starter.unconfined("/usr/bin/python3", "-", flags=("-i",), stdin=example)
    assert done.returncode == 1, done.stdout.decode()
    assert done.stdout.count(b"ALLOWED") >= 4


def test_example_runs_on_an_old_python() -> None:
    """The example promises Python 3.9: nothing newer stands in it."""
    import ast

    text = (drive.CHECKOUT / "examples" / "untrusted.py").read_text()
    ast.parse(text, feature_version=(3, 9))
    assert Path(drive.CHECKOUT, "examples", "untrusted.py").stat().st_mode & 0o444
