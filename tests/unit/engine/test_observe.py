"""The parsers of proc(5), and one look at a process that is known: ourselves."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from kis.engine import host, observe
from kis.errors import Code, SandboxError


def test_mountinfo_with_awkward_names_and_tags() -> None:
    text = (
        b"73 110 254:0 /a\\040b /w/x\\040y\\134z\\012 ro,nosuid,relatime shared:7 master:2 - ext4"
        b" /dev/vda rw,errors=continue\n"
        b"110 73 0:1 / / rw - tmpfs none rw\n"
    )
    assert observe._mounts(text) == (
        (
            b"/w/x y\\z\n",
            frozenset({b"ro", b"nosuid", b"relatime"}),
            b"ext4",
            (b"shared:7", b"master:2"),
        ),
        (b"/", frozenset({b"rw"}), b"tmpfs", ()),
    )


def test_stat_of_a_process_with_a_hostile_name() -> None:
    stat = b"12 (a) S 1 1 (b) R 3 4 5 34816 7 8\n"
    assert observe._session_and_terminal(stat) == (5, 34816)


def test_interfaces() -> None:
    text = b"Inter-|   Receive\n face |bytes\n    lo: 0 0\nveth0@if7:1 2\n"
    assert observe._interfaces(text) == (b"lo", b"veth0@if7")


def test_status_fields() -> None:
    text = b"Name:\tUid:\\nUid:\\t0\nUid:\t1\t2\t3\t4\nGroups:\t\n"
    assert host.status_field(text, b"Uid") == b"1\t2\t3\t4"
    assert host.status_field(text, b"Groups") == b""
    assert host.status_field(text, b"Gid") is None


def test_limits() -> None:
    text = (
        b"Limit                     Soft Limit           Hard Limit           Units     \n"
        b"Max core file size        0                    unlimited            bytes     \n"
        b"Max open files            1024                 4096                 files     \n"
    )
    assert host.hard_limits(text) == {"open_files": 4096, "core": (1 << 64) - 1}


@pytest.fixture
def child() -> Iterator[tuple[int, int]]:
    """A process with three streams and one pipe, and that pipe's number."""
    read_end, write_end = os.pipe()
    # It speaks when its loader has opened and closed what it needs, and then only waits.
    sleeper = subprocess.Popen(
        ["/bin/sh", "-c", "echo; read nothing"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[read_end],
        cwd="/",
    )
    assert sleeper.stdout is not None
    assert sleeper.stdin is not None
    try:
        assert sleeper.stdout.readline() == b"\n"
        yield sleeper.pid, read_end
    finally:
        sleeper.kill()
        sleeper.wait()
        sleeper.stdin.close()
        sleeper.stdout.close()
        os.close(read_end)
        os.close(write_end)


def test_a_child_of_ours(child: tuple[int, int]) -> None:
    pid, pipe = child
    seen = observe.observe_command(pid)
    here = host.read_host(host.read_machine())
    assert seen.uids == (*os.getresuid(), os.geteuid())
    assert seen.gids == (*os.getresgid(), os.getegid())
    assert seen.namespaces == here.namespaces == observe.observe_place(pid).namespaces
    assert seen.session == os.getsid(0)
    assert (seen.cwd, seen.root) == (b"/", b"/")
    assert seen.seccomp_filters == here.seccomp_filters
    assert seen.open_files == here.open_files_limit
    assert isinstance(seen.descriptors, dict)
    assert set(seen.descriptors) == {0, 1, 2, pipe}
    assert seen.descriptors[pipe][0] == os.fstat(pipe).st_ino
    assert not seen.descriptors[pipe][1] & observe.CLOSE_ON_EXEC


def test_a_place_of_ours(child: tuple[int, int]) -> None:
    seen = observe.observe_place(child[0])
    assert b"lo" in seen.interfaces
    assert any(path == b"/" for path, *_ in seen.mounts)
    assert all(len(line) == 3 for line in (*seen.uid_map, *seen.gid_map))


def test_a_process_that_is_gone() -> None:
    with pytest.raises(SandboxError) as caught:
        observe.observe_command(1 << 22)
    assert caught.value.code is Code.AGENT_UNREACHABLE
