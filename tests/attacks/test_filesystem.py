"""Attacks on files: what was not granted is not there, what is read-only stays so, no set-id bit
and no device reaches the host. The host's side is looked at after every run."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import arena
import drive
import pytest

KERNEL_STRIPS = "mkdir itself drops set-id bits"
NO_CONTROL = {
    "leave_setuid_by_mkdir": KERNEL_STRIPS,
    "leave_setgid_by_mkdir": KERNEL_STRIPS,
    "leave_setuid_by_mkdirat": KERNEL_STRIPS,
    "leave_setgid_by_mkdirat": KERNEL_STRIPS,
}


@contextmanager
def stage(starter: drive.Starter) -> Iterator[Path]:
    """A directory with `ro` (a tmpfs mounted at `ro/sub`, by root), `rw` and a file not granted."""
    with starter.room() as room:
        (room / "secret").write_text("host secret\n")
        for place in (room / "ro", room / "ro" / "sub", room / "rw", room / "mnt"):
            place.mkdir()
        mounted = os.getuid() == 0
        if mounted:
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", room / "ro" / "sub"], check=True)
        try:
            for place in (room / "ro", room / "ro" / "sub"):
                starter.give(place)
                for name in ("f", "victim"):
                    (place / name).write_text("content\n")
                    starter.give(place / name)
            shutil.copy("/bin/true", room / "ro" / "program")
            (room / "ro" / "program").chmod(0o4755)
            starter.give(room / "rw", room / "mnt", room / "secret")
            if starter.is_root:
                os.chown(room / "rw", drive.ORDINARY_UID, drive.ORDINARY_UID)
            yield room
        finally:
            if mounted:
                subprocess.run(["umount", "--lazy", room / "ro" / "sub"], check=True)


def picture(place: Path) -> dict[str, tuple[Any, ...]]:
    """Everything below a directory that an attack could change."""
    found = {}
    for parent, directories, files in os.walk(place):
        for name in (".", *directories, *files):
            path = os.path.join(parent, name)
            seen = os.lstat(path)
            content = Path(path).read_bytes() if stat.S_ISREG(seen.st_mode) else b""
            found[path] = (seen.st_mode, seen.st_uid, seen.st_mtime_ns, seen.st_nlink, content)
    return found


def set_id_below(place: Path) -> list[str]:
    bits = stat.S_ISUID | stat.S_ISGID
    found = []
    for parent, directories, files in os.walk(place):
        for name in (*directories, *files):
            path = os.path.join(parent, name)
            if os.lstat(path).st_mode & bits:
                found.append(path)
    return found


def named_with(token: str) -> list[str]:
    """Entries of the host's own directories that carry the token."""
    places = ("/", "/usr", "/usr/bin", "/usr/lib", "/etc", "/tmp", "/dev/shm", "/var/tmp")
    return [
        os.path.join(place, name)
        for place in places
        if os.path.isdir(place)
        for name in os.listdir(place)
        if token in name
    ]


@arena.ways
def test_files_stay_contained(way: arena.Way) -> None:
    """No attack reaches, changes or leaves a file that was not granted."""
    starter = arena.who(way.starter)
    token = uuid.uuid4().hex
    with stage(starter) as room:
        given = {
            "ro": "/ro",
            "rw": "/rw",
            "mounted": "/rw",
            "secret": str(room / "secret"),
            "token": token,
            "setuid_program": "/ro/program",
        }
        before = picture(room / "ro")
        report = arena.attack(
            way,
            "filesystem",
            given,
            "--mount",
            f"source={room}/ro,target=/ro,mode=ro",
            "--mount",
            f"source={room}/rw,target=/rw,mode=rw",
        )
        arena.assert_contained(report)
        assert picture(room / "ro") == before
        assert set_id_below(room / "rw") == []
        assert named_with(token) == []
        owners = {os.lstat(path).st_uid for path in (room / "rw").iterdir()}
        assert owners == {os.stat(room / "rw").st_uid}


CONTROLS = {
    # The directory as it is: what an unconfined program can do to files that it may write.
    "plain": "true",
    # A read-only mount that a program with capabilities may remount.
    "mounted": (
        "mount --rbind {room}/ro {room}/ro && mount -o remount,bind,ro {room}/ro"
        " && mount -o remount,bind,ro {room}/ro/sub"
    ),
}


def control(kind: str) -> arena.Report:
    starter = arena.who("root")
    with stage(starter) as room:
        given = {
            "ro": f"{room}/ro",
            "rw": f"{room}/rw",
            "mounted": f"{room}/mnt",
            "secret": f"{room}/secret",
            "token": uuid.uuid4().hex,
            "setuid_program": f"{room}/ro/program",
            "tidy": True,
        }
        prepare = (
            f"mount --rbind /tmp /tmp && mount -t tmpfs tmpfs {room}/mnt && "
            + CONTROLS[kind].format(room=room)
            + ' && exec "$@"'
        )
        argv = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private"]
        argv += ["sh", "-ec", prepare, "sh"]
        return arena.unprotected(argv, "filesystem", given)


def test_files_are_lost_without_protection() -> None:
    """The same attacks get out where nothing holds them, in a mount namespace of the test's own."""
    arena.need_root_for_control()
    plain, mounted = control("plain"), control("mounted")
    best = {name: row if row.verdict == "out" else mounted[name] for name, row in plain.items()}
    arena.assert_gets_out(best, NO_CONTROL)


@arena.ways
@pytest.mark.parametrize("nested", [False, True], ids=["directly", "in-own-namespaces"])
def test_read_only_mount_survives_a_shell(way: arena.Way, nested: bool) -> None:
    """Case A09: every step of the shell script fails and the host's tree is as it was."""
    starter = arena.who(way.starter)
    script = (
        "n=0; for p in /ro /ro/sub; do"
        " touch $p/n && n=1; rm -f $p/f && n=1; chmod 777 $p/f && n=1; touch -d @0 $p/f && n=1;"
        " mount -o remount,bind,rw $p && n=1; touch $p/n && n=1; done; exit $n"
    )
    argv = ["sh", "-c", script]
    if nested:
        argv = ["sh", "-c", 'unshare -Urm sh -c "$0" || exit 3', script]
    with stage(starter) as room:
        before = picture(room / "ro")
        done = starter.container(
            *argv, flags=(*way.flags, "--mount", f"source={room}/ro,target=/ro,mode=ro")
        )
        assert done.returncode == (3 if nested else 0), done.stderr
        assert picture(room / "ro") == before


def test_read_only_mount_is_lost_to_capabilities() -> None:
    """The control of A09: root with its capabilities remounts and writes."""
    arena.need_root_for_control()
    starter = arena.who("root")
    with stage(starter) as room:
        script = (
            f"mount --rbind {room}/ro {room}/ro && mount -o remount,bind,ro {room}/ro"
            f" && ! touch {room}/ro/n && mount -o remount,bind,rw {room}/ro && touch {room}/ro/n"
        )
        done = starter.call(["unshare", "--mount", "--propagation", "private", "sh", "-c", script])
        assert done.returncode == 0, done.stderr
        assert (room / "ro" / "n").exists()


PEEK = """
import json, os, sys
opened = []
for path in json.loads(sys.argv[1]):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        continue
    opened.append(path)
print(json.dumps(opened))
"""


def private_parts() -> list[str]:
    """Files and directories that the host base shows and that only root may read on the host."""
    found = []
    for top in ("/etc/ssl", "/etc/pki", "/usr"):
        for parent, directories, files in os.walk(top):
            for name in (*directories, *files):
                path = os.path.join(parent, name)
                seen = os.lstat(path)
                link = stat.S_ISLNK(seen.st_mode)
                if seen.st_uid == 0 and not link and not seen.st_mode & stat.S_IROTH:
                    found.append(path)
    return found[:500]


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--user", "root"),
        ("--user", "root", "--cap", "DAC_OVERRIDE"),
        ("--user", "root", "--writable-root"),
        ("--user", "root", "--writable-root", "--cap", "DAC_OVERRIDE"),
        ("--cap", "DAC_OVERRIDE", "--writable-root"),
        ("--user", "root", "--tmpfs", "/usr/kis-test/here", "--tmpfs", "/etc/ssl/kis-test"),
    ],
    ids=" ".join,
)
def test_private_parts_of_the_host_stay_shut(flags: tuple[str, ...]) -> None:
    """What only root may read on the host is not read by a payload that is root inside."""
    starter = arena.who("root")
    paths = private_parts()
    if not paths:
        pytest.skip("needs a private file below /usr or /etc/ssl")
    argv = ("python3", "-I", "-c", PEEK, json.dumps(paths))
    done = starter.container(*argv, flags=flags)
    assert json.loads(done.stdout) == [], done.stderr


def test_private_parts_of_the_host_are_open_to_its_root() -> None:
    """The control: root of the host opens them all."""
    starter = arena.who("root")
    paths = private_parts()
    done = starter.call([arena.PAYLOAD_PYTHON, "-I", "-c", PEEK, json.dumps(paths)])
    assert json.loads(done.stdout) == paths
