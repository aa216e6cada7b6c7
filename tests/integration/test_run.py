"""One command in a container: bytes in, bytes out, and one unambiguous end."""

from __future__ import annotations

import base64
import json
import os
import time
import uuid
from pathlib import Path

import drive
import pytest


def test_answer_is_printed(starter: drive.Starter) -> None:
    """The first thing anybody tries."""
    done = starter.container("python3", "-c", "print(6*7)")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"42\n", b"")


def test_bytes_that_are_no_text_survive(starter: drive.Starter) -> None:
    """Case A01: undecodable output is neither lost nor an error."""
    code = "import sys; sys.{}.buffer.write(b'ok\\xff\\xfe\\n')"
    done = starter.container("python3", "-c", code.format("stdout"))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"ok\xff\xfe\n", b"")
    done = starter.container("python3", "-c", code.format("stderr"))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"ok\xff\xfe\n")
    shown = starter.contained_json("python3", "-c", code.format("stdout"))
    assert base64.b64decode(shown["stdout_base64"]) == b"ok\xff\xfe\n"
    assert shown["stderr"] == ""


def test_arguments_that_are_no_text_survive(starter: drive.Starter) -> None:
    """Arguments pass as bytes, with nothing interpreted on the way."""
    words = [b"--", b"-x", b"a b", b"\n", b"\xff\xfe", b"", b"$HOME", "日本".encode()]
    done = starter.container("printf", "%s|", *words)
    assert done.stdout == b"".join(word + b"|" for word in words)


def test_sigpipe_has_its_default(starter: drive.Starter) -> None:
    """Case A03: `yes | head` ends by the signal and says nothing."""
    script = "yes | head -n 1 >/dev/null; echo ${PIPESTATUS[0]}"
    done = starter.container("bash", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"141\n", b"")


def test_input_that_nobody_reads_does_no_harm(starter: drive.Starter) -> None:
    """Case A04, first half."""
    done = starter.container("true", flags=("-i",), stdin=os.urandom(10_000_000))
    assert (done.returncode, done.stderr) == (0, b"")


def test_input_comes_out_again(starter: drive.Starter) -> None:
    """Case A04, second half: no deadlock, no loss."""
    data = os.urandom(10_000_000)
    done = starter.container("cat", flags=("-i",), stdin=data)
    assert (done.returncode, done.stdout == data, done.stderr) == (0, True, b"")


def test_input_is_empty_unless_forwarded(starter: drive.Starter) -> None:
    """Without -i the payload's standard input is at its end."""
    done = starter.container("cat", stdin=b"of the caller's")
    assert (done.returncode, done.stdout) == (0, b"")


@pytest.mark.parametrize("tier", ["container", "process"])
def test_time_limit_ends_the_whole_tree(starter: drive.Starter, tier: str) -> None:
    """Case A05: grandchildren die too, in other sessions as well."""
    mark = f"100{uuid.uuid4().int % 10**12}"
    script = f"sleep {mark}1 & setsid sleep {mark}2 & sleep {mark}3"
    hatch = ["--allow-process-tier"] if tier == "process" else []
    words = ["sandbox", "run", "--tier", tier, *hatch, "--timeout", "1", "--json"]
    done = starter.kis(*words, "--", "sh", "-c", script)
    shown = json.loads(done.stdout)
    assert (done.returncode, shown["reason"]) == (124, "timed_out"), done.stderr
    assert drive.eventually(lambda: drive.processes_with(mark) == [])


@pytest.mark.parametrize("tier", ["container", "process"])
def test_run_ends_with_its_main_process(starter: drive.Starter, tier: str) -> None:
    """Case A06: a background child that holds standard output neither delays nor outlives."""
    mark = f"3{uuid.uuid4().int % 10**12}"
    hatch = ["--allow-process-tier"] if tier == "process" else []
    words = ["sandbox", "run", "--tier", tier, *hatch]
    done = starter.kis(*words, "--", "sh", "-c", f"sleep {mark} & echo done")
    assert (done.returncode, done.stdout) == (0, b"done\n"), done.stderr
    assert drive.eventually(lambda: drive.processes_with(mark) == [])


def test_term_is_sent_before_kill(starter: drive.Starter) -> None:
    """When the time is up, SIGTERM comes first and leaves time to say goodbye."""
    script = "trap 'echo goodbye; exit 0' TERM; while :; do sleep 0.1; done"
    done = starter.container("sh", "-c", script, flags=("--timeout", "1", "--grace", "30"))
    assert (done.returncode, done.stdout) == (124, b"goodbye\n"), done.stderr


@pytest.fixture
def programs(starter: drive.Starter, room: Path) -> Path:
    """Files that cannot be executed, each for a reason of its own."""
    (room / "plain").write_text("#!/bin/sh\n")
    (room / "plain").chmod(0o644)
    (room / "script").write_text("#!/nope/interp\n")
    (room / "empty").write_text("")
    for name in ("script", "empty"):
        (room / name).chmod(0o755)
    return room


@pytest.mark.parametrize(
    ("word", "code", "status", "kind"),
    [
        ("nosuchcmd", "exec_missing", 127, "not_found"),
        ("/m/nosuchcmd", "exec_missing", 127, "not_found"),
        ("/m/plain", "exec_forbidden", 126, "not_executable"),
        ("/tmp", "exec_forbidden", 126, "is_directory"),
        ("/m/script", "exec_missing", 127, "interpreter_missing"),
        ("/m/empty", "exec_forbidden", 126, "bad_format"),
    ],
)
def test_ways_not_to_start_are_told_apart(
    starter: drive.Starter, programs: Path, word: str, code: str, status: int, kind: str
) -> None:
    """Case A07: five ways not to start, none of which looks like a command that failed."""
    flags = ("-v", f"{programs}:/m", "--json")
    done = starter.container(word, flags=flags)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"], error["details"]["kind"]) == (status, code, kind)
    assert done.stderr.startswith(f"{code}: ".encode())
    if kind == "interpreter_missing":
        assert b"/nope/interp" in done.stderr


@pytest.mark.parametrize("cwd", ["/does/not/exist", "sub", "/etc/passwd"])
def test_bad_working_directory_is_blamed(starter: drive.Starter, room: Path, cwd: str) -> None:
    """Case A08: the error names the directory, and nothing ran."""
    flags = ("-w", cwd, "--mount", f"source={room},target=/out,mode=rw", "--json")
    if starter.is_root:
        os.chown(room, drive.ORDINARY_UID, drive.ORDINARY_UID)
    done = starter.container("sh", "-c", "true; touch /out/marker", flags=flags)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (125, "cwd_invalid"), done.stderr
    assert cwd in error["message"]
    assert list(room.iterdir()) == []


def test_working_directory_is_home(starter: drive.Starter) -> None:
    """HOME when nothing is said, below it when relative, anywhere when absolute."""
    assert starter.container("pwd").stdout == b"/home/user\n"
    assert starter.container("pwd", flags=("-w", "/usr")).stdout == b"/usr\n"
    assert starter.container("pwd", flags=("--cwd", ".")).stdout == b"/home/user\n"


def test_shared_memory_serves_multiprocessing(starter: drive.Starter) -> None:
    """Case A14."""
    code = (
        "import multiprocessing as m; m.Lock();"
        " print(sum(m.get_context('fork').Pool(2).map(abs,[-1,-2])))"
    )
    done = starter.container("python3", "-c", code)
    assert (done.returncode, done.stdout) == (0, b"3\n"), done.stderr


HOME_SCRIPT = (
    'test -n "$HOME" && touch "$HOME/x" && mkdir -p "${XDG_CACHE_HOME:-$HOME/.cache}/pip"'
    ' "$HOME/.npm" && echo ok; cd; pwd'
)


def test_home_suits_package_managers(starter: drive.Starter) -> None:
    """Case A17: HOME exists, is writable and private, and is empty again in the next run."""
    for _ in range(2):
        done = starter.container("sh", "-c", 'ls -A "$HOME"; ' + HOME_SCRIPT)
        assert (done.returncode, done.stdout) == (0, b"ok\n/home/user\n"), done.stderr


@pytest.mark.parametrize("who", ["root", "nobody", "1234", "1234:4321"])
def test_home_suits_any_user(root: drive.Starter, who: str) -> None:
    """Case A17 for other users than the default one."""
    done = root.container("sh", "-c", HOME_SCRIPT, flags=("--user", who))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"ok\n/"), done.stdout
    assert done.stdout != b"ok\n/\n"


@pytest.mark.parametrize(
    ("who", "ids"),
    [("user", b"1000 1000"), ("root", b"0 0"), ("1234", b"1234 1234"), ("7:8", b"7 8")],
)
def test_user_is_who_was_asked_for(root: drive.Starter, who: str, ids: bytes) -> None:
    """Ids inside are the ones said; the user has no other groups."""
    script = "echo $(id -u) $(id -g); id -G | wc -w"
    done = root.container("sh", "-c", script, flags=("--user", who))
    assert done.stdout == ids + b"\n1\n", done.stderr


def test_default_user_has_a_name(starter: drive.Starter) -> None:
    """The made-up passwd knows the user, its group and its home."""
    script = 'id -un; id -gn; getent passwd user | cut -d: -f6; test "$(hostname)" != "$0"'
    done = starter.container("sh", "-c", script, os.uname().nodename)
    assert (done.returncode, done.stdout) == (0, b"user\nuser\n/home/user\n"), done.stderr


WRITER = r"""
import os
for i in range(200):
    os.write(1, b"o%d\n" % i)
    os.write(2, b"e%d\n" % i)
"""


def test_merged_output_keeps_its_order(starter: drive.Starter) -> None:
    """Case A19: merged is in the order of writing, split is complete."""
    done = starter.container("python3", "-c", WRITER, flags=("--merge-stderr",))
    assert done.stdout == b"".join(b"o%d\ne%d\n" % (i, i) for i in range(200))
    assert done.stderr == b""
    done = starter.container("python3", "-c", WRITER)
    assert done.stdout == b"".join(b"o%d\n" % i for i in range(200))
    assert done.stderr == b"".join(b"e%d\n" % i for i in range(200))


@pytest.mark.parametrize(
    ("script", "status", "reason", "exit_code", "signal"),
    [
        ("exit 3", 3, "exited", 3, None),
        ("exit 124", 124, "exited", 124, None),
        ("exit 255", 255, "exited", 255, None),
        ("kill -TERM $$", 143, "signaled", None, 15),
        ("kill -KILL $$", 137, "signaled", None, 9),
        ("kill -SEGV $$", 139, "signaled", None, 11),
    ],
)
def test_end_is_told_unambiguously(
    starter: drive.Starter,
    script: str,
    status: int,
    reason: str,
    exit_code: int | None,
    signal: int | None,
) -> None:
    """The status follows the shell's habit; `--json` says which of the meanings it was."""
    done = starter.container("sh", "-c", script, flags=("--json",))
    shown = json.loads(done.stdout)
    assert done.returncode == status
    assert (shown["reason"], shown["exit_code"], shown["signal"]) == (reason, exit_code, signal)


def test_json_has_every_field(starter: drive.Starter) -> None:
    """The object that `--json` prints, whole."""
    done = starter.container("sh", "-c", "echo out; echo err >&2", flags=("--json",))
    shown = json.loads(done.stdout)
    assert done.stderr == b""
    assert (shown["stdout"], shown["stderr"]) == ("out\n", "err\n")
    assert (shown["tier"], shown["backend"]) == ("container", "namespaces")
    assert shown["truncated"] is False
    assert shown["id"].startswith("run_")
    assert shown["usage"]["stdout_bytes"] == 4
    assert shown["usage"]["stderr_bytes"] == 4
    assert shown["usage"]["wall_seconds"] > 0
    assert shown["receipt"]["sandbox"].startswith("sbx_")
    assert shown["receipt"]["entries"]


def test_output_limit_ends_the_run(starter: drive.Starter) -> None:
    """Output beyond the limit is cut, marked, and the producer ends."""
    done = starter.container("yes", flags=("--output-limit", "100KiB", "--json"))
    shown = json.loads(done.stdout)
    assert (done.returncode, shown["reason"], shown["truncated"]) == (137, "output_limit", True)
    assert len(shown["stdout"]) == 100 * 1024
    assert done.stderr.count(b"\n") == 1, done.stderr


def test_output_limit_is_said_in_one_line(starter: drive.Starter) -> None:
    """Without `--json` one line on standard error tells what 137 means."""
    done = starter.container("yes", flags=("--output-limit", "10"))
    assert (done.returncode, done.stdout) == (137, b"y\n" * 5)
    assert b"output" in done.stderr


def test_open_files_are_limited(starter: drive.Starter) -> None:
    """The default and a limit by name, soft and hard."""
    script = "ulimit -n; ulimit -Hn"
    assert starter.container("sh", "-c", script).stdout == b"1024\n1024\n"
    done = starter.container("sh", "-c", script, flags=("--open-files", "64"))
    assert done.stdout == b"64\n64\n"


def test_variables_arrive_as_said(starter: drive.Starter) -> None:
    """Case A12 (e) to (g): odd names and values pass unchanged; `-e NAME` takes kis's own."""
    flags = ("-e", "A B=c", "-e", "X=x=y", "-e", "EMPTY=", "-e", "PASSED")
    environment = starter.environment(PASSED="pass\nword")
    done = starter.container("env", "-0", flags=flags, env=environment)
    seen = dict(item.split(b"=", 1) for item in done.stdout.split(b"\0") if item)
    assert seen[b"A B"] == b"c"
    assert seen[b"X"] == b"x=y"
    assert seen[b"EMPTY"] == b""
    assert seen[b"PASSED"] == b"pass\nword"


def test_variables_come_from_a_file(starter: drive.Starter, room: Path) -> None:
    """`--env-file`: NAME=VALUE and NAME lines; a single flag wins over the file."""
    (room / "vars").write_text("# a remark\nONE=1\nTWO=2 \n\nPASSED\n")
    flags = ("-e", "ONE=one", "--env-file", str(room / "vars"))
    done = starter.container("env", "-0", flags=flags, env=starter.environment(PASSED="on"))
    seen = dict(item.split(b"=", 1) for item in done.stdout.split(b"\0") if item)
    assert (seen[b"ONE"], seen[b"TWO"], seen[b"PASSED"]) == (b"one", b"2 ", b"on")


@pytest.mark.parametrize("value", ["=hunter2", "=", ""])
def test_variable_without_a_name_is_refused(starter: drive.Starter, value: str) -> None:
    """Case A12 (c) on the command line: refused, and the value is not in the message."""
    done = starter.container("true", flags=("-e", value))
    assert done.returncode == 125
    assert done.stderr.startswith((b"config_invalid: ", b"command_invalid: "))
    assert b"hunter2" not in done.stderr


def test_argument_that_is_too_long_is_refused(starter: drive.Starter) -> None:
    """More than the kernel takes in one string: a typed error, not E2BIG from somewhere."""
    code = (
        "import sys; from kis import cli;"
        " sys.exit(cli.main(['sandbox', 'run', '--tier', 'container', '--', 'true', 'x' * 131072]))"
    )
    done = starter.script(code)
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr.startswith(b"argument_too_long: ")


def test_closed_output_does_not_hang(starter: drive.Starter) -> None:
    """`kis … | head`: when the reader leaves, the run ends."""
    argv = starter.kis_argv("sandbox", "run", "--tier", "container", "--", "yes")
    with starter.start(argv) as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        assert process.wait(drive.HANG_SECONDS) != 0


def test_interrupt_ends_the_run(starter: drive.Starter) -> None:
    """SIGINT to kis ends the sandbox and kis, with nothing left behind."""
    import signal

    mark = f"7{uuid.uuid4().int % 10**12}"
    argv = starter.kis_argv("sandbox", "run", "--tier", "container", "--", "sleep", mark)
    with starter.start(argv) as process:
        assert drive.eventually(lambda: inside(mark))
        process.send_signal(signal.SIGINT)
        assert process.wait(drive.HANG_SECONDS) != 0
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    assert drive.eventually(lambda: drive.processes_with(mark) == [])


def inside(mark: str) -> bool:
    """Whether the payload itself runs (and not only the kis that will start it)."""
    for pid in drive.processes_with(mark):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0"):
                return True
        except OSError:
            continue
    return False


def test_time_limit_beats_a_deaf_payload(starter: drive.Starter) -> None:
    """A payload that ignores SIGTERM is killed when the grace is over."""
    script = "trap '' TERM; echo deaf; while :; do sleep 0.1; done"
    done = starter.container("sh", "-c", script, flags=("--timeout", "500ms", "--grace", "200ms"))
    assert (done.returncode, done.stdout) == (124, b"deaf\n"), done.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_signals_to_kis_end_the_run(starter: drive.Starter, name: str) -> None:
    """Whatever ends kis ends the payload."""
    import signal

    mark = f"5{uuid.uuid4().int % 10**12}"
    argv = starter.kis_argv("sandbox", "run", "--tier", "container", "--", "sleep", mark)
    with starter.start(argv) as process:
        assert drive.eventually(lambda: inside(mark))
        process.send_signal(getattr(signal, name))
        assert process.wait(drive.HANG_SECONDS) != 0
    assert drive.eventually(lambda: drive.processes_with(mark) == [])


def test_orphans_are_reaped(starter: drive.Starter) -> None:
    """Pid 1 collects what nobody waits for: no zombies pile up."""
    script = (
        "i=0; while [ $i -lt 100 ]; do (true & true &) ; i=$((i+1)); done; sleep 0.5;"
        " ls /proc | grep -c '^[0-9]'"
    )
    done = starter.container("sh", "-c", script)
    assert int(done.stdout) < 12, done.stderr


def test_program_is_looked_up_in_the_payloads_path(starter: drive.Starter, room: Path) -> None:
    """PATH is the payload's: what the caller's would find does not count."""
    (room / "own").write_text("#!/bin/sh\necho own\n")
    (room / "own").chmod(0o755)
    flags = ("-v", f"{room}:/m", "-e", "PATH=/nowhere:/m")
    assert starter.container("own", flags=flags).stdout == b"own\n"
    assert starter.container("true", flags=flags).returncode == 127
    assert starter.container("./own", flags=(*flags, "-w", "/m")).stdout == b"own\n"


def test_pseudo_terminals_can_be_made_inside(starter: drive.Starter) -> None:
    """A devpts of the sandbox's own: programs that make terminals work."""
    code = (
        "import os, pty; m, s = pty.openpty(); os.write(s, b'x\\n');"
        " print(os.read(m, 10), os.ttyname(s))"
    )
    done = starter.container("python3", "-c", code)
    assert done.stdout == b"b'x\\r\\n' /dev/pts/0\n", done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_do_no_harm(starter: drive.Starter, closed: str) -> None:
    """Started without some of 0, 1, 2: nothing of the engine lands in their place."""
    argv = starter.kis_argv("sandbox", "run", "--tier", "container", "--")
    script = f'exec "$@" {closed}'
    payload = ["sh", "-c", "echo out; echo err >&2; test -e /proc/self/fd/2 && exit 5"]
    done = starter.call(["sh", "-c", script, "sh", *argv, *payload])
    assert done.returncode == 5, (done.stdout, done.stderr)
    assert done.stdout == (b"" if ">&-" in closed.split() else b"out\n")
    assert done.stderr == (b"" if "2>&-" in closed else b"err\n")


@pytest.mark.parametrize("kind", ["file", "null", "unreadable"])
def test_input_from_anything(starter: drive.Starter, room: Path, kind: str) -> None:
    """-i forwards a file to its end; what cannot be read counts as empty."""
    (room / "in").write_bytes(b"x" * 200_000)
    flags = os.O_WRONLY if kind == "unreadable" else os.O_RDONLY
    descriptor = os.open(room / "in" if kind == "file" else "/dev/null", flags)
    argv = starter.kis_argv("sandbox", "run", "--tier", "container", "-i", "--", "wc", "-c")
    try:
        done = starter.call(argv, stdin_descriptor=descriptor)
    finally:
        os.close(descriptor)
    expected = b"200000\n" if kind == "file" else b"0\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_full_disk_is_told(starter: drive.Starter) -> None:
    """Output that the host has no room for is `host_out_of_space`, not a success."""
    argv = starter.kis_argv("sandbox", "run", "--tier", "container", "--", "echo", "out")
    done = starter.call(["sh", "-c", 'exec "$@" >/dev/full', "sh", *argv])
    assert done.returncode == 125
    assert done.stderr.startswith(b"host_out_of_space: "), done.stderr


def test_receipt_file_is_opened_before_anything_runs(starter: drive.Starter, room: Path) -> None:
    if starter.is_root:
        os.chown(room, drive.ORDINARY_UID, drive.ORDINARY_UID)
    flags = ("-v", f"{room}:/out:rw", "--receipt", "/nonexistent/receipt.json")
    done = starter.container("touch", "/out/marker", flags=flags)
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr.startswith(b"config_invalid: ")
    assert list(room.iterdir()) == []


def test_few_descriptors_are_a_typed_error_or_enough(starter: drive.Starter) -> None:
    """Where the caller may open hardly any file, kis either works or says why, typed."""
    argv = starter.kis_argv("sandbox", "run", "--tier", "container", "--", "echo", "ran")
    seen = set()
    for most in (10, 14, 18, 22, 26, 30, 40, 64):
        done = starter.call(["sh", "-c", f'ulimit -n {most}; exec "$@"', "sh", *argv])
        assert b"Traceback" not in done.stderr, (most, done.stderr)
        assert done.returncode in (0, 125), (most, done.stderr)
        assert (done.stdout == b"ran\n") is (done.returncode == 0)
        seen.add(done.returncode)
    assert 0 in seen


def test_deleted_working_directory_does_no_harm(starter: drive.Starter) -> None:
    """kis runs from a directory that is gone."""
    argv = starter.kis_argv("sandbox", "run", "--tier", "container", "--", "echo", "ran")
    script = 'd=$(mktemp -d) && cd "$d" && rmdir "$d" && exec "$@"'
    done = starter.call(["sh", "-c", script, "sh", *argv])
    assert (done.returncode, done.stdout) == (0, b"ran\n"), done.stderr


@pytest.mark.parametrize("tier", ["container", "process"])
def test_time_limit_holds_where_nobody_reads_the_output(starter: drive.Starter, tier: str) -> None:
    """Who does not read kis's output cannot make its payload live for ever."""
    script = "yes | head -c 3000000 & while :; do :; done"
    words = ("sandbox", "run", "--tier", tier, "--allow-process-tier", "--timeout", "1")
    with starter.start(starter.kis_argv(*words, "--grace", "0.2", "--", "sh", "-c", script)) as kis:
        assert kis.wait(drive.HANG_SECONDS) == 124
        assert kis.stderr is not None
        assert kis.stderr.read() == b"timed_out: the command ran longer than 1 s\n"


def test_output_in_time_reaches_a_reader_who_is_late(starter: drive.Starter) -> None:
    """The time limit is the command's, not its reader's."""
    words = ("sandbox", "run", "--tier", "container", "--timeout", "1", "--", "seq", "20000")
    with starter.start(starter.kis_argv(*words)) as kis:
        time.sleep(2)
        assert kis.stdout is not None
        assert len(kis.stdout.read().split()) == 20_000
        assert kis.wait(drive.HANG_SECONDS) == 0
