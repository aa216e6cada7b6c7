"""Mounts, bases and devices: what was granted is there, owned rightly, and nothing else changes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import drive
import pytest

OWNER = drive.ORDINARY_UID


def listing(place: Path) -> list[tuple[str, int, int]]:
    """Names, modes and times of everything below a directory."""
    return sorted(
        (str(path), path.lstat().st_mode, path.lstat().st_mtime_ns)
        for path in [place, *place.rglob("*")]
    )


def writable(starter: drive.Starter, path: Path) -> Path:
    """A directory that an ordinary user owns, whoever starts kis."""
    path.mkdir()
    if starter.is_root:
        os.chown(path, OWNER, OWNER)
    else:
        starter.give(path)
    return path


def error_of(done: drive.Finished) -> str:
    """The code of a refusal, after checking that nothing ran."""
    assert done.returncode == 125, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == b""
    return done.stderr.decode().partition(":")[0]


def test_mount_is_read_only_when_not_said(starter: drive.Starter, room: Path) -> None:
    """SRC:DST shows the source and refuses writes."""
    (room / "f").write_text("content")
    script = "cat /m/f; touch /m/n || touch /m/f || echo ' refused'"
    done = starter.container("sh", "-c", script, flags=("-v", f"{room}:/m"))
    assert done.stdout == b"content refused\n", done.stderr


def test_mount_without_target_keeps_its_path(starter: drive.Starter, room: Path) -> None:
    """SRC alone appears at SRC's own absolute path."""
    (room / "f").write_text("content")
    done = starter.container("cat", room / "f", flags=("-v", str(room)))
    assert done.stdout == b"content", done.stderr


def test_relative_source_is_resolved_by_the_caller(starter: drive.Starter, room: Path) -> None:
    (room / "docs").mkdir()
    (room / "docs" / "f").write_text("content")
    done = starter.container("cat", "/docs/f", flags=("--mount", "./docs:/docs"), cwd=room)
    assert done.stdout == b"content", done.stderr


def test_file_over_file(starter: drive.Starter, room: Path) -> None:
    """One file may replace another, in the base too."""
    (room / "hosts").write_text("192.0.2.7 made-up\n")
    done = starter.container("cat", "/etc/hosts", flags=("-v", f"{room}/hosts:/etc/hosts"))
    assert done.stdout == b"192.0.2.7 made-up\n", done.stderr


def test_new_files_belong_to_the_owner_of_the_source(starter: drive.Starter, room: Path) -> None:
    """What is made in a writable mount belongs, on the host, to the owner of SRC."""
    out = writable(starter, room / "out")
    script = "mkdir /out/d && echo x > /out/d/f && id -u && stat -c %u /out/d/f"
    done = starter.container("sh", "-c", script, flags=("-v", f"{out}:/out:rw"))
    assert (done.returncode, done.stdout) == (0, b"1000\n1000\n"), done.stderr
    seen = (out / "d" / "f").stat()
    assert (seen.st_uid, seen.st_gid) == (out.stat().st_uid, out.stat().st_gid)


def test_source_of_root_needs_an_owner(root: drive.Starter) -> None:
    """A writable mount of a directory of root's is refused until the owner is said."""
    with root.room() as room:
        out = room / "out"
        out.mkdir()
        out.chmod(0o777)
        done = root.container("true", flags=("-v", f"{out}:/out:rw"))
        assert error_of(done) == "mount_invalid"
        assert b"owner" in done.stderr
        flags = ("--mount", f"source={out},target=/out,mode=rw,owner=4321:4322")
        for user in ((), ("--user", "root")):
            done = root.container("sh", "-c", "touch /out/$(id -u)", flags=(*flags, *user))
            assert done.returncode == 0, done.stderr
        assert {(p.stat().st_uid, p.stat().st_gid) for p in out.iterdir()} == {(4321, 4322)}
        assert {p.name for p in out.iterdir()} == {"0", "1000"}


@pytest.mark.parametrize("outer_first", [True, False])
def test_mount_inside_a_mount(starter: drive.Starter, room: Path, outer_first: bool) -> None:
    """Case A10: nesting works in either order and leaves nothing behind."""
    (room / "a" / "sub").mkdir(parents=True)
    b = writable(starter, room / "b")
    (b / "b").write_text("inner\n")
    before = listing(room / "a")
    flags = [("-v", f"{room}/a:/w"), ("-v", f"{b}:/w/sub:rw")]
    if not outer_first:
        flags.reverse()
    script = "cat /w/sub/b; touch /w/sub/n; touch /w/n"
    done = starter.container("sh", "-c", script, flags=(*flags[0], *flags[1]))
    assert (done.returncode, done.stdout) == (1, b"inner\n"), done.stderr
    assert sorted(p.name for p in b.iterdir()) == ["b", "n"]
    assert listing(room / "a") == before


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_missing_target_inside_a_mount_is_refused(
    starter: drive.Starter, room: Path, mode: str
) -> None:
    """Case A10, as written: a target that is missing inside another mount is never made there."""
    a = writable(starter, room / "a")
    (room / "b").mkdir()
    before = listing(a)
    flags = ("-v", f"{a}:/w:{mode}", "-v", f"{room}/b:/w/sub")
    assert error_of(starter.container("true", flags=flags)) == "mount_invalid"
    assert listing(a) == before


def test_target_is_never_reached_through_a_link(starter: drive.Starter, room: Path) -> None:
    """CVE-2026-87766: a link inside a mounted tree must not carry a target anywhere."""
    a = writable(starter, room / "a")
    (room / "victim").mkdir()
    (room / "victim").chmod(0o777)
    (a / "absolute").symlink_to(room / "victim")
    (a / "climbing").symlink_to("../" * 20 + str(room / "victim").lstrip("/"))
    (a / "usr").symlink_to("/usr")
    (room / "b").mkdir()
    before = listing(room)
    for target in ("/w/absolute", "/w/absolute/x", "/w/climbing/x", "/w/usr/x", "/w/usr/bin"):
        for mode in ("ro", "rw"):
            flags = ("-v", f"{a}:/w:{mode}", "-v", f"{room}/b:{target}")
            assert error_of(starter.container("true", flags=flags)) == "mount_invalid", target
    assert listing(room) == before


def test_missing_target_in_the_base_is_ephemeral(starter: drive.Starter, room: Path) -> None:
    """A target that the base lacks is made, and is gone afterwards."""
    (room / "f").write_text("content")
    name = f"kis-{uuid.uuid4().hex}"
    for place in (f"/{name}/deep/er", f"/opt/{name}"):
        done = starter.container("cat", f"{place}/f", flags=("-v", f"{room}:{place}"))
        assert done.stdout == b"content", done.stderr
        assert not os.path.lexists(place)


AWKWARD = [b"a b:c", b"a,b", b"-v", b"new\nline", b"byte\xff", b'qu"ote', b"back\\slash", b"a=b"]


@pytest.mark.parametrize("name", AWKWARD, ids=ascii)
@pytest.mark.parametrize("target", ["/m/a b:c", "/m/日本", "/m/-v", "/m/a,b"], ids=ascii)
def test_awkward_paths(starter: drive.Starter, room: Path, name: bytes, target: str) -> None:
    """Case A11: blanks, colons, commas, newlines, dashes and bytes, by the long form."""
    source = os.path.join(os.fsencode(room), name)
    os.mkdir(source)
    Path(os.fsdecode(source), "f").write_text("content")
    quoted = [b'"' + word.replace(b'"', b'""') + b'"' for word in
              (b"source=" + source, b"target=" + target.encode())]  # fmt: skip
    flags = ("--mount", b",".join(quoted), "-w", target)
    done = starter.container("cat", "f", flags=flags)
    assert (done.returncode, done.stdout) == (0, b"content"), done.stderr


def test_short_form_refuses_what_it_cannot_say(starter: drive.Starter, room: Path) -> None:
    """A colon in the source is not guessed at: the error points to the long form."""
    (room / "a:b").mkdir()
    done = starter.container("true", flags=("-v", f"{room}/a:b:/m"))
    assert error_of(done) == "config_invalid"
    assert b"source=" in done.stderr


@pytest.fixture
def odd_sources(room: Path) -> Iterator[Path]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(room / "socket"))
        os.mkfifo(room / "pipe")
        yield room


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("vanished", "No such file"),
        ("socket", "a socket"),
        ("pipe", "a named pipe"),
        ("/dev/null", "device"),
    ],
)
def test_source_of_the_wrong_kind_is_refused(
    starter: drive.Starter, odd_sources: Path, source: str, word: str
) -> None:
    """Only files and directories can be mounted, and only those that are there."""
    done = starter.container("true", flags=("-v", f"{odd_sources / source}:/m"))
    assert error_of(done) == "mount_invalid"
    assert word in done.stderr.decode()


@pytest.mark.parametrize("target", ["relative", "/", "/a/../b", "/proc/x", "/sys", "/dev/shm"])
def test_target_out_of_place_is_refused(starter: drive.Starter, room: Path, target: str) -> None:
    flags = ("--mount", f"source={room},target={target}")
    assert error_of(starter.container("true", flags=flags)) in ("mount_invalid", "config_invalid")


def test_same_target_twice_is_refused(starter: drive.Starter, room: Path) -> None:
    """A mount and a tmpfs at one place: refused, not stacked."""
    flags = ("-v", f"{room}:/m", "--tmpfs", "/m")
    assert error_of(starter.container("true", flags=flags)) == "mount_invalid"


def test_link_as_source_is_resolved_once_and_shown(starter: drive.Starter, room: Path) -> None:
    """A source that is a link means what it leads to; the receipt shows that."""
    (room / "real").mkdir()
    (room / "real" / "f").write_text("content")
    (room / "link").symlink_to("real")
    done = starter.container("cat", "/m/f", flags=("-v", f"{room}/link:/m", "--json"))
    shown = json.loads(done.stdout)
    assert shown["stdout"] == "content"
    receipt = json.dumps(shown["receipt"])
    assert f"{room}/real" in receipt
    assert f"{room}/link" not in receipt


def test_writable_mount_that_cannot_be_mapped_is_refused(root: drive.Starter) -> None:
    """overlayfs takes no id map: a writable mount of it is refused, a read-only one works."""
    with root.room() as room:
        for name in ("lower", "upper", "work", "merged"):
            (room / name).mkdir()
            os.chown(room / name, OWNER, OWNER)
        (room / "lower" / "f").write_text("content")
        options = f"lowerdir={room}/lower,upperdir={room}/upper,workdir={room}/work"
        mount = ["mount", "-t", "overlay", "overlay", "-o", options, room / "merged"]
        if subprocess.run(mount, capture_output=True).returncode != 0:
            pytest.skip("cannot mount an overlay here")
        try:
            if can_be_mapped(room / "merged"):
                pytest.skip("overlayfs takes id maps on this kernel")
            flags = ("--mount", f"source={room}/merged,target=/m,mode=rw")
            assert error_of(root.container("true", flags=flags)) == "mount_invalid"
            done = root.container("cat", "/m/f", flags=("-v", f"{room}/merged:/m", "--json"))
            shown = json.loads(done.stdout)
            assert shown["stdout"] == "content", done.stderr
        finally:
            subprocess.run(["umount", "--lazy", room / "merged"], check=True)


def can_be_mapped(place: Path) -> bool:
    """Whether the kernel gives this file system an id-mapped mount (util-linux may not ask)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    clone, empty_path, idmap = 1, 0x1000, 0x00100000
    tree = libc.syscall(428, -100, os.fsencode(place), clone)
    with subprocess.Popen(["unshare", "--user", "--map-root-user", "sleep", "60"]) as holder:
        try:
            drive.eventually(lambda: os.readlink(f"/proc/{holder.pid}/ns/user") != own_user_ns())
            namespace = os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY)
            attributes = (ctypes.c_uint64 * 4)(idmap, 0, 0, namespace)
            return bool(libc.syscall(442, tree, b"", empty_path, ctypes.byref(attributes), 32) == 0)
        finally:
            holder.kill()


def own_user_ns() -> str:
    return os.readlink("/proc/self/ns/user")


def test_tmpfs_is_private_and_empty(starter: drive.Starter) -> None:
    script = "ls -A /scratch && echo x > /scratch/f && cat /scratch/f"
    for _ in range(2):
        done = starter.container("sh", "-c", script, flags=("--tmpfs", "/scratch"))
        assert (done.returncode, done.stdout) == (0, b"x\n"), done.stderr


def test_root_is_read_only_unless_writable(starter: drive.Starter) -> None:
    """`--writable-root` lets the payload change what its user may change, and keeps none of it.

    The host's own trees stay as they are: inside-root must not become the owner of what only
    the host's root may read.
    """
    name = f"kis-{uuid.uuid4().hex}"
    places = "/ /etc"
    script = f"for d in {places}; do touch $d/{name} || exit 9; done; echo ok"
    assert starter.container("sh", "-c", script).returncode == 9
    user = ("--user", "root") if starter.is_root else ()
    done = starter.container("sh", "-c", script, flags=("--writable-root", *user))
    assert (done.returncode, done.stdout) == (0, b"ok\n"), done.stderr
    for place in ("/", "/usr", "/usr/bin", "/etc"):
        assert not os.path.exists(os.path.join(place, name))
    for place in ("/usr", "/usr/bin"):
        flags = ("--writable-root", *user)
        assert starter.container("touch", f"{place}/{name}", flags=flags).returncode == 1


@pytest.fixture
def base(starter: drive.Starter, room: Path) -> Path:
    """A root directory with a shell and the libraries it needs, and nothing more."""
    place = room / "base"
    for name in ("bin", "etc", "tmp", "proc", "dev"):
        (place / name).mkdir(parents=True)
    for program in ("sh", "cat", "touch", "true"):
        copy_program(Path(shutil.which(program) or ""), place)
    (place / "etc" / "marker").write_text("of the base\n")
    starter.give(place, *place.rglob("*"))
    return place


def copy_program(program: Path, place: Path) -> None:
    """Copy a program and, by what ldd says, its libraries and loader."""
    shutil.copy(program.resolve(), place / "bin" / program.name)
    listed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    for word in listed.split():
        if word.startswith("/") and os.path.isfile(word):
            target = place / word.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(word), target)


def test_directory_as_base(starter: drive.Starter, base: Path) -> None:
    """`--base DIR` is the whole file system, and is never written to."""
    before = listing(base)
    script = "cat /etc/marker; ls /usr 2>/dev/null || echo no usr; touch /x || echo read-only"
    script = script.replace("ls /usr 2>/dev/null", "test -e /usr/share")
    done = starter.container("sh", "-c", script, flags=("--base", base))
    assert done.stdout == b"of the base\nno usr\nread-only\n", done.stderr
    user = ("--user", "root") if starter.is_root else ()
    flags = ("--base", base, "--writable-root", *user)
    done = starter.container("sh", "-c", "touch /x /etc/x && cat /etc/marker", flags=flags)
    assert (done.returncode, done.stdout) == (0, b"of the base\n"), done.stderr
    assert listing(base) == before


def test_base_on_a_file_system_without_id_maps(root: drive.Starter) -> None:
    """A base on overlayfs is bound plainly, and the receipt says so."""
    with root.room() as room:
        for name in ("lower/bin", "upper", "work", "merged"):
            (room / name).mkdir(parents=True)
        for program in ("sh", "true"):
            copy_program(Path(shutil.which(program) or ""), room / "lower")
        options = f"lowerdir={room}/lower,upperdir={room}/upper,workdir={room}/work"
        mount = ["mount", "-t", "overlay", "overlay", "-o", options, room / "merged"]
        if subprocess.run(mount, capture_output=True).returncode != 0:
            pytest.skip("cannot mount an overlay here")
        try:
            if can_be_mapped(room / "merged"):
                pytest.skip("overlayfs takes id maps on this kernel")
            flags = ("--base", room / "merged", "--json")
            done = root.container("sh", "-c", "echo ok", flags=flags)
            shown = json.loads(done.stdout)
            assert shown["stdout"] == "ok\n", done.stderr
            assert "plain" in json.dumps(shown["receipt"]).lower()
        finally:
            subprocess.run(["umount", "--lazy", room / "merged"], check=True)


def test_base_that_is_no_directory_is_refused(starter: drive.Starter, room: Path) -> None:
    (room / "file").write_text("")
    for place in (room / "file", room / "missing"):
        done = starter.container("true", flags=("--base", place))
        assert error_of(done) == "base_invalid"


def test_base_without_a_loader_is_told(starter: drive.Starter, base: Path) -> None:
    """A dynamic program whose loader the base lacks is `interpreter_missing`, not "not found"."""
    for loader in base.rglob("ld-linux*"):
        loader.unlink()
    done = starter.container("/bin/true", flags=("--base", base, "--json"))
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (127, "exec_missing")
    assert error["details"]["kind"] == "interpreter_missing"
    assert "ld-linux" in error["message"]


def test_python_base_has_the_callers_packages(starter: drive.Starter) -> None:
    """`--base python` shows the interpreter of PATH with its packages, at the same paths."""
    import importlib.util
    import sys

    if starter.python != sys.executable:
        pytest.skip("this user cannot run the interpreter of the tests")
    if importlib.util.find_spec("msgspec") is None:
        pytest.skip("needs a package that the interpreter has")
    path = os.path.dirname(starter.python) + ":" + drive.HOST_PATH
    code = "import msgspec, sys; print(sys.executable); print(msgspec.__file__)"
    environment = starter.environment(PATH=path)
    python = os.path.join(os.path.dirname(starter.python), "python3")
    outside = starter.call([python, "-I", "-c", code], env=environment)
    argv = ("python3", "-I", "-c", code)
    done = starter.container(*argv, flags=("--base", "python"), env=environment)
    assert (done.returncode, done.stdout) == (0, outside.stdout), done.stderr


def test_devices_are_the_minimal_ones(starter: drive.Starter) -> None:
    """null, zero, full, random, urandom, tty, and what terminals and shared memory need."""
    script = "cd /dev && for f in *; do test -c $f && printf '%s ' $f; done"
    done = starter.container("sh", "-c", script)
    names = set(done.stdout.decode().split())
    assert {"null", "zero", "full", "random", "urandom", "tty"} <= names, done.stderr
    assert names <= {"null", "zero", "full", "random", "urandom", "tty", "ptmx"}
    done = starter.container("sh", "-c", "echo x > /dev/null && head -c 4 /dev/zero | wc -c")
    assert done.stdout == b"4\n", done.stderr


def test_device_is_granted_by_name(root: drive.Starter) -> None:
    """`--device PATH` puts that one node below /dev, where others than its owner may open it."""
    with root.room() as room:
        node = room / "granted"
        os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
        os.chmod(node, 0o666)
        script = "test -c /dev/granted && head -c 3 /dev/granted | wc -c"
        assert root.container("test", "-e", "/dev/granted").returncode == 1
        done = root.container("sh", "-c", script, flags=("--device", node))
        assert (done.returncode, done.stdout.strip()) == (0, b"3"), done.stderr
        os.chmod(node, 0o660)
        done = root.container("sh", "-c", script, flags=("--device", node))
        assert error_of(done) == "mount_invalid"
        assert b"mode 0660" in done.stderr


def test_device_must_be_a_device(starter: drive.Starter, room: Path) -> None:
    (room / "f").write_text("")
    assert error_of(starter.container("true", flags=("--device", room / "f"))) == "mount_invalid"


def test_granted_capability_works(root: drive.Starter) -> None:
    """CHOWN does what it says when granted, and only then."""
    argv = ("sh", "-c", "touch /tmp/f && chown 7:8 /tmp/f && stat -c %u:%g /tmp/f")
    assert root.container(*argv, flags=("--user", "root")).returncode != 0
    done = root.container(*argv, flags=("--user", "root", "--cap", "CHOWN"))
    assert done.stdout == b"7:8\n", done.stderr


def test_set_id_program_of_the_base_gives_nothing(starter: drive.Starter) -> None:
    """A setuid program of the base runs, but as the user who started it."""
    if not os.path.exists("/usr/bin/su"):
        pytest.skip("the base has no su")
    done = starter.container("su", "-c", "id -u")
    assert done.returncode != 0
    assert b"0\n" not in done.stdout


def test_space_is_bounded(starter: drive.Starter) -> None:
    """All that a payload can write outside of mounts is 256 MiB, wherever it writes it."""
    script = (
        "for d in /tmp $HOME /dev/shm; do"
        " dd if=/dev/zero of=$d/f bs=1M count=100 2>/dev/null || echo full; done;"
        " cat /tmp/f $HOME/f /dev/shm/f | wc -c"
    )
    done = starter.container("sh", "-c", script)
    full, size = done.stdout.split()
    assert full == b"full", done.stderr
    assert 200 << 20 < int(size) <= 256 << 20


def test_number_of_files_is_bounded(starter: drive.Starter) -> None:
    """Empty files cost the host memory too: their number has an end."""
    code = (
        "import errno\n"
        "try:\n"
        "    for n in range(200000): open('/tmp/%d' % n, 'w').close()\n"
        "    print('no end')\n"
        "except OSError as error: print(errno.errorcode[error.errno])\n"
    )
    done = starter.container("python3", "-c", code)
    assert done.stdout == b"ENOSPC\n", done.stderr


TOP = ("tmp", "proc", "dev", "home", "run", "sys", "var", "root", "etc")


@pytest.mark.parametrize("climbing", [False, True], ids=["absolute", "climbing"])
@pytest.mark.parametrize("name", TOP)
def test_links_of_a_base_lead_nowhere_outside(
    starter: drive.Starter, base: Path, name: str, climbing: bool
) -> None:
    """A base is somebody else's work: behind a link in it nothing is made on the host."""
    victim = base.parent / "victim"
    victim.mkdir()
    victim.chmod(0o777)
    (victim / "f").write_text("of the host")
    place = base / name
    if place.exists():
        shutil.rmtree(place)
    place.symlink_to("../" * 20 + str(victim).lstrip("/") if climbing else victim)
    os.chown(place, starter.uid, starter.gid, follow_symlinks=False)
    before = listing(victim)
    mounted = base.parent / "mounted"
    mounted.mkdir()
    for flags in ((), ("--writable-root",), ("-v", f"{mounted}:/{name}/in/side")):
        if name in ("proc", "dev", "sys") and "-v" in flags:
            continue
        script = f"cat /{name}/f; touch /{name}/new /tmp/new; exit 0"
        done = starter.container("sh", "-c", script, flags=("--base", base, *flags))
        assert b"of the host" not in done.stdout
        assert done.returncode in (0, 125), (done.returncode, done.stderr)
        assert b"invariant_failed" not in done.stderr, done.stderr
        assert listing(victim) == before, (flags, done.stderr)
