"""Attacks on memory and queues that the host shares among its processes."""

from __future__ import annotations

import ctypes
import os
import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import arena
import pytest

libc = ctypes.CDLL(None, use_errno=True)
IPC_CREAT, IPC_EXCL, IPC_RMID = 0o1000, 0o2000, 0


def checked(result: int) -> int:
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


@contextmanager
def host_objects() -> Iterator[dict[str, Any]]:
    """A System V segment, queue and semaphore, a file in /dev/shm and a POSIX queue."""
    key = random.randrange(0x10000000, 0x7FFFFFFF)
    name = "kis-test-" + uuid.uuid4().hex
    flags = IPC_CREAT | IPC_EXCL | 0o666
    segment = checked(libc.shmget(key, 4096, flags))
    queue = checked(libc.msgget(key, flags))
    semaphore = checked(libc.semget(key, 1, flags))
    shared = Path("/dev/shm", name)
    librt = ctypes.CDLL("librt.so.1", use_errno=True)
    mask = os.umask(0)
    try:
        shared.write_text("host memory")
        handle = librt.mq_open(f"/{name}".encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
        yield {"key": key, "posix": name, "queue": name if handle != -1 else ""}
    finally:
        os.umask(mask)
        libc.shmctl(segment, IPC_RMID, None)
        libc.msgctl(queue, IPC_RMID, None)
        libc.semctl(semaphore, 0, IPC_RMID)
        librt.mq_unlink(f"/{name}".encode())
        shared.unlink(missing_ok=True)


@arena.ways
def test_shared_memory_of_host_is_out_of_reach(way: arena.Way) -> None:
    """Keys, names and lists of the host's IPC lead nowhere."""
    with host_objects() as given:
        arena.assert_contained(arena.attack(way, "ipc", given))


def test_shared_memory_of_host_is_reached_without_protection() -> None:
    """The same keys and names are found by an unconfined process of another user."""
    with host_objects() as given:
        excused = {} if given["queue"] else {"open_message_queue_of_host": "no queues here"}
        arena.assert_gets_out(arena.unprotected([], "ipc", given), excused)


LEAVE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
print(libc.shmget(int(sys.argv[1]), 4096, 0o1666) >= 0)
open("/dev/shm/" + sys.argv[2], "w").write("inside")
print(sorted(os.listdir("/dev/shm")) == [sys.argv[2]])
"""


@arena.ways
def test_shared_memory_made_inside_stays_inside(way: arena.Way) -> None:
    """What one run leaves in shared memory is seen neither by the host nor by the next run."""
    starter = arena.who(way.starter)
    key, name = random.randrange(0x10000000, 0x7FFFFFFF), "kis-test-" + uuid.uuid4().hex
    for _ in range(2):
        argv = ("python3", "-I", "-c", LEAVE, str(key), name)
        done = starter.container(*argv, flags=way.flags)
        assert done.stdout == b"True\nTrue\n", (done.stdout, done.stderr)
    assert not os.path.exists(f"/dev/shm/{name}")
    with pytest.raises(OSError, match="No such file"):
        checked(libc.shmget(key, 0, 0))
