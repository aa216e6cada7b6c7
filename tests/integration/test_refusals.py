"""Loud, never weaker: hatches, tiers, backends and everything said wrongly.

Every refusal ends with 125, starts with its code, and nothing ran: the command of each is `echo`,
and standard output stays empty.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

import drive
import pytest

PROCESS_REFUSAL = (
    b"escape_hatch_forbidden: the process tier runs unconfined"
    b" and requires escape_hatch.allow_process_tier\n"
)
WALL = drive.CHECKOUT / "tests" / "integration" / "wall.py"


def refused(done: drive.Finished, *codes: str) -> str:
    """Assert a refusal with one of the codes; its text on standard error."""
    text = done.stderr.decode()
    assert done.returncode == 125, (done.returncode, done.stdout, text)
    assert done.stdout == b""
    assert text.partition(":")[0] in codes, text
    assert "Traceback" not in text
    return text


def test_process_tier_needs_its_hatch(starter: drive.Starter) -> None:
    """The refusal is exactly this line."""
    done = starter.kis("sandbox", "run", "--tier", "process", "--", "echo", "nope")
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr == PROCESS_REFUSAL


def test_process_tier_runs_with_its_hatch(starter: drive.Starter) -> None:
    """With the hatch it runs, as the caller, with an environment of its own."""
    done = starter.unconfined("sh", "-c", "id -u; echo ${SECRET-unset}; exit 5")
    assert (done.returncode, done.stdout) == (5, f"{starter.uid}\nunset\n".encode()), done.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ("-v", "/usr:/m"),
        ("-v", "/usr:/usr"),
        ("--net", "loopback"),
        ("--net", "off"),
        ("--tmpfs", "/scratch"),
        ("--writable-root",),
        ("--cap", "CHOWN"),
        ("--user", "root"),
    ],
    ids=" ".join,
)
def test_process_tier_refuses_what_it_cannot_give(
    starter: drive.Starter, flags: tuple[str, ...]
) -> None:
    """What was asked for by name and cannot be had there is refused, not ignored."""
    done = starter.unconfined("echo", "nope", flags=flags)
    refused(done, "profile_unsatisfiable")


def test_process_tier_keeps_limits(starter: drive.Starter) -> None:
    """A limit by name holds in the process tier too; open files have no default there."""
    done = starter.unconfined("sh", "-c", "ulimit -n", flags=("--open-files", "64"))
    assert done.stdout == b"64\n", done.stderr
    done = starter.unconfined("yes", flags=("--output-limit", "10"))
    assert (done.returncode, done.stdout) == (137, b"y\n" * 5)


def test_host_network_needs_its_hatch(starter: drive.Starter) -> None:
    """The same form, naming its own hatch."""
    done = starter.container("echo", "nope", flags=("--net", "host"))
    text = refused(done, "escape_hatch_forbidden")
    assert "escape_hatch.allow_net_host" in text
    done = starter.container("echo", "nope", flags=("--net", "host", "--allow-process-tier"))
    refused(done, "escape_hatch_forbidden")


def test_host_network_with_its_hatch(starter: drive.Starter) -> None:
    """With the hatch the host's loopback answers, and the receipt says so."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket; socket.create_connection({server.getsockname()!r}, 10); print('in')"
        flags = ("--net", "host", "--allow-net-host", "--json")
        done = starter.container("python3", "-c", code, flags=flags)
    shown = json.loads(done.stdout)
    assert shown["stdout"] == "in\n", (done.stdout, done.stderr)


@pytest.mark.parametrize("flags", [(), ("--allow", "pypi.org"), ("--allow", "203.0.113.0/24:5432")])
def test_egress_is_not_built_yet(starter: drive.Starter, flags: tuple[str, ...]) -> None:
    done = starter.container("echo", "nope", flags=("--net", "egress", *flags))
    assert "egress" in refused(done, "profile_unsatisfiable")


def test_default_tier_is_the_honest_one(starter: drive.Starter) -> None:
    """No tier named is microvm, which is refused here, naming the tiers that can be had."""
    done = starter.kis("sandbox", "run", "--", "echo", "nope")
    text = refused(done, "tier_unavailable")
    assert "microvm" in text
    assert "container" in text


@pytest.mark.parametrize("tier", ["microvm", "wasm", "host"])
def test_absent_tier_is_unavailable(starter: drive.Starter, tier: str) -> None:
    """Case A20: never a weaker run than the one asked for; the report says the same."""
    listed = json.loads(starter.kis("sandbox", "backends", "--json").stdout)
    if any(row["tier"] == tier and row["status"] == "usable" for row in listed):
        pytest.skip(f"{tier} is usable on this machine")
    done = starter.kis("sandbox", "run", "--tier", tier, "--json", "--", "echo", "nope")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (125, "tier_unavailable")
    assert done.stderr.startswith(b"tier_unavailable: ")


@pytest.mark.parametrize("backend", ["runc", "nosuch", "qemu"])
def test_named_backend_is_used_or_refused(starter: drive.Starter, backend: str) -> None:
    """A named backend is never replaced by another."""
    done = starter.container("echo", "nope", flags=("--backend", backend))
    refused(done, "tier_unavailable", "config_invalid")


def test_tools_of_the_caller_are_not_needed(starter: drive.Starter) -> None:
    """Case A20: a PATH without anything in it changes nothing, for no tool is looked up there."""
    environment = starter.environment(PATH="/nonexistent")
    done = starter.container("echo", "ran", env=environment)
    assert (done.returncode, done.stdout) == (0, b"ran\n"), done.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ("--tier", "submarine"),
        ("--net", "wifi"),
        ("--nosuchflag",),
        ("--timeout", "10parsecs"),
        ("--timeout", "0"),
        ("--timeout", "-1"),
        ("--timeout", "nan"),
        ("--output-limit", "64Mib"),
        ("--open-files", "many"),
        ("--unlimited", "memory"),
        ("--memory", "512MiB"),
        ("--pids", "10"),
        ("--cpus", "1"),
        ("--disk", "1GiB"),
        ("--timeout",),
        ("--env-file", "/nonexistent"),
        ("--secret", "hunter2"),
        ("-e", "NOT_SET_ANYWHERE"),
        ("--mount", "source=/usr,tarjet=/m"),
    ],
    ids=" ".join,
)
def test_usage_error_is_typed(starter: drive.Starter, flags: tuple[str, ...]) -> None:
    """A flag, a word or a unit that is wrong is `config_invalid` and 125, never 2."""
    done = starter.kis("sandbox", "run", "--tier", "container", *flags, "--", "echo", "nope")
    assert "hunter2" not in refused(done, "config_invalid")


def test_no_command_is_a_usage_error(starter: drive.Starter) -> None:
    refused(starter.kis("sandbox", "run", "--tier", "container"), "config_invalid")
    refused(starter.kis("sandbox", "run", "--tier", "container", "--", ""), "command_invalid")
    refused(starter.kis("sandbox", "dance"), "config_invalid")


@pytest.mark.parametrize("name", ["SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "MKNOD", "SETPCAP"])
def test_capability_that_ends_confinement_is_refused(starter: drive.Starter, name: str) -> None:
    """The refusal names the demand that granting it would break."""
    done = starter.container("echo", "nope", flags=("--cap", name, "--json"))
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (125, "profile_unsatisfiable")
    assert name in error["message"] + json.dumps(error["details"])


def test_capability_nobody_knows_is_refused(starter: drive.Starter) -> None:
    done = starter.container("echo", "nope", flags=("--cap", "FLY"))
    refused(done, "profile_invalid", "profile_unsatisfiable", "config_invalid")


@pytest.mark.parametrize("user", ["65533", "65533:0", "0:65533", "-1", "70000", "nosuch", "1:2:3"])
def test_user_out_of_bounds_is_refused(starter: drive.Starter, user: str) -> None:
    """The agent's own id and what is no id at all."""
    refused(starter.container("echo", "nope", flags=("--user", user)), "command_invalid")


@pytest.mark.parametrize("who", ["root", "1234", "nobody"])
def test_other_user_needs_privilege(user: drive.Starter, who: str) -> None:
    """Without privilege there is one id: another user is refused, not renamed."""
    text = refused(user.container("echo", "nope", flags=("--user", who)), "profile_unsatisfiable")
    assert "other_user" in text


PROFILE_FILES = {
    "unknown key": ('tier = "container"\nnetwrok = 1\n', "network"),
    "unknown key in a table": ("[limits]\nopen_flies = 3\n", "open_files"),
    "unknown key in a mount": ('[[mounts]]\nsource = "/usr"\ntarjet = "/m"\n', "target"),
    "a limit of a later issue": ('[limits]\nmemory_bytes = "512MiB"\n', "memory_bytes"),
    "wrong type": ("writable_root = 1\n", "writable_root"),
    "wrong type in a table": ('[limits]\nopen_files = "many"\n', "open_files"),
    "bad unit": ('[limits]\noutput_bytes = "64Mib"\n', "output_bytes"),
    "bad tier": ('tier = "submarine"\n', "submarine"),
    "bad mode": ('[network]\nmode = "wifi"\n', "wifi"),
    "not TOML": ("tier = \n= = =", "TOML"),
    "not text": ("\udcff\udcfe", "TOML"),
}


@pytest.mark.parametrize("case", PROFILE_FILES)
def test_bad_profile_file_is_refused(starter: drive.Starter, room: Path, case: str) -> None:
    """Each of these names its field and its reason."""
    text, word = PROFILE_FILES[case]
    (room / "profile.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    done = starter.container("echo", "nope", flags=("--profile", room / "profile.toml"))
    assert word in refused(done, "config_invalid", "profile_invalid")


def test_profile_file_of_10_megabytes_is_refused(starter: drive.Starter, room: Path) -> None:
    (room / "profile.toml").write_bytes(b"# " + b"x" * 10_000_000)
    done = starter.container("echo", "nope", flags=("--profile", room / "profile.toml"))
    assert "larger" in refused(done, "config_invalid")


def test_missing_profile_file_is_refused(starter: drive.Starter, room: Path) -> None:
    for place in (room / "missing.toml", room):
        refused(starter.container("echo", "nope", flags=("--profile", place)), "config_invalid")


def test_profile_file_is_obeyed_and_overridden(starter: drive.Starter, room: Path) -> None:
    """The file speaks the words of the flags; a flag wins; its paths start at the file."""
    starter.need_tier("container")
    (room / "data").mkdir()
    (room / "data" / "f").write_text("content\n")
    (room / "profile.toml").write_text(
        'tier = "container"\n'
        'cwd = "/m"\n'
        '[network]\nmode = "loopback"\n'
        '[[mounts]]\nsource = "data"\ntarget = "/m"\n'
        "[limits]\nopen_files = 77\nwall_seconds = 60\n"
        '[env]\nGREETING = "hello world"\n'
    )
    script = 'cat f; ulimit -n; echo "$GREETING"; ls /sys/class/net 2>/dev/null'
    argv = ("sh", "-c", script)
    done = starter.kis("sandbox", "run", "--profile", room / "profile.toml", "--", *argv)
    assert done.stdout.startswith(b"content\n77\nhello world\n"), done.stderr
    flags = ("--profile", room / "profile.toml", "--open-files", "55", "-e", "GREETING=bye")
    done = starter.kis("sandbox", "run", *flags, "--", "sh", "-c", script)
    assert done.stdout.startswith(b"content\n55\nbye\n"), done.stderr


def test_hatch_in_a_profile_file_counts(starter: drive.Starter, room: Path) -> None:
    """A hatch is a flag or a key in a file; nothing else opens it."""
    (room / "open.toml").write_text("[escape_hatch]\nallow_process_tier = true\n")
    (room / "shut.toml").write_text("[escape_hatch]\nallow_process_tier = false\n")
    words = ("sandbox", "run", "--tier", "process", "--profile")
    done = starter.kis(*words, room / "open.toml", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, b"ran\n"), done.stderr
    done = starter.kis(*words, room / "shut.toml", "--", "echo", "nope")
    assert done.stderr == PROCESS_REFUSAL


def test_refusal_in_json(starter: drive.Starter) -> None:
    """`--json` prints the error as one object, and the usual line still goes to standard error."""
    done = starter.kis("sandbox", "run", "--tier", "process", "--json", "--", "echo", "nope")
    error = json.loads(done.stdout)["error"]
    assert set(error) == {"code", "message", "hint", "details"}
    assert error["code"] == "escape_hatch_forbidden"
    assert done.stderr == PROCESS_REFUSAL


def test_control_characters_never_reach_the_terminal(starter: drive.Starter) -> None:
    """CVE-2023-28101: what a refusal quotes cannot steer the terminal that shows it."""
    for flags in (("-v", "/no\x1b[2Jsuch:/m"), ("--tier", "a\x1b]0;b\x07"), ("-w", "/x\x1b[1A\r")):
        done = starter.container("echo", "nope", flags=flags)
        assert done.returncode == 125
        assert not set(done.stderr) & set(b"\x1b\x07\r"), done.stderr


def test_forbidden_by_sysctl_is_named(starter: drive.Starter) -> None:
    """Where user namespaces are switched off, the report names the switch and what helps."""
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    argv = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]
    if starter.call([*argv, "true"]).returncode != 0:
        pytest.skip("cannot make a user namespace with the switch off here")
    said = starter.call([*argv, *starter.kis_argv("sandbox", "backends", "--json")])
    row = next(row for row in json.loads(said.stdout) if row["backend"] == "namespaces")
    assert row["status"] == "unusable"
    assert "max_user_namespaces" in row["reason"] + row["hint"]
    done = starter.call(
        [*argv, *starter.kis_argv("sandbox", "run", "--tier", "container", "--", "echo", "nope")]
    )
    assert "max_user_namespaces" in refused(done, "tier_unavailable")


def test_forbidden_by_outer_filter_is_named(starter: drive.Starter, room: Path) -> None:
    """Inside another container, whose filter denies namespaces, the report says which wall."""
    wall = room / "wall.py"
    wall.write_text(WALL.read_text())
    argv = [starter.python, "-I", str(wall)]
    run = starter.kis_argv("sandbox", "run", "--tier", "container", "--", "echo", "nope")
    text = refused(starter.call([*argv, *run]), "tier_unavailable")
    assert "seccomp" in text
    said = starter.call([*argv, *starter.kis_argv("sandbox", "backends", "--json")])
    row = next(row for row in json.loads(said.stdout) if row["backend"] == "namespaces")
    assert row["status"] == "unusable"


def test_wall_is_a_wall(starter: drive.Starter, room: Path) -> None:
    """The control of the test above: behind the wall no user namespace can be made."""
    wall = room / "wall.py"
    wall.write_text(WALL.read_text())
    argv = ["unshare", "--user", "true"]
    assert starter.call(argv).returncode == 0
    assert starter.call([starter.python, "-I", str(wall), *argv]).returncode != 0


def test_package_imports_without_linux(starter: drive.Starter) -> None:
    """On another platform the package imports, and every backend is absent with the reason."""
    code = (
        "import sys; sys.platform = 'plan9'\n"
        "from kis import cli\n"
        "sys.exit(cli.main(['sandbox', 'backends', '--json']))\n"
    )
    done = starter.script(code)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    confining = [row for row in rows if row["tier"] != "process"]
    assert {row["status"] for row in confining} == {"absent"}
    assert all(row["reason"] for row in confining)


def test_no_name_of_this_machine_is_needed(starter: drive.Starter) -> None:
    """kis runs from any directory, with no HOME and hardly any environment."""
    environment = {"PYTHONPATH": starter.search_path}
    done = starter.container("echo", "ran", env=environment, cwd="/proc")
    assert (done.returncode, done.stdout) == (0, b"ran\n"), done.stderr


@pytest.mark.parametrize("base", ["python", "/usr"])
def test_process_tier_refuses_a_named_base(starter: drive.Starter, base: str) -> None:
    done = starter.unconfined("echo", "nope", flags=("--base", base))
    assert "base" in refused(done, "profile_unsatisfiable")
    assert starter.unconfined("echo", "ran", flags=("--base", "host")).stdout == b"ran\n"


def test_device_that_nobody_inside_may_open_is_refused(starter: drive.Starter) -> None:
    """Root may open it on the host, and its payload is not root there."""
    node = "/dev/mem"
    if not os.path.exists(node) or os.stat(node).st_mode & 0o006:
        node = next(
            (
                f"/dev/{name}"
                for name in sorted(os.listdir("/dev"))
                if stat.S_ISCHR((mode := os.lstat(f"/dev/{name}").st_mode)) and not mode & 0o006
            ),
            "",
        )
    if not node:
        pytest.skip("needs node: no device here is shut to others")
    done = starter.container("echo", "nope", flags=("--device", node))
    assert node in refused(done, "mount_invalid")


def test_receipt_is_not_written_through_the_payloads_link(
    starter: drive.Starter, room: Path
) -> None:
    """It may write above the place of the receipt, and has put a link there."""
    for name in ("m", "m/d", "mine"):
        (room / name).mkdir()
        os.chown(room / name, drive.ORDINARY_UID if starter.is_root else starter.uid, -1)
        os.chown(room / name, -1, drive.ORDINARY_UID if starter.is_root else starter.gid)
    script = f"mv d old && ln -s {room}/mine d"
    flags = ("-v", f"{room}/m:/m:rw", "-w", "/m", "--receipt", room / "m" / "d" / "receipt.json")
    done = starter.container("sh", "-c", script, flags=flags)
    assert done.returncode == 0, done.stderr
    assert list((room / "mine").iterdir()) == []
    assert json.loads((room / "m" / "old" / "receipt.json").read_text())["tier"] == "container"
