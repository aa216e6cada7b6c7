"""Ids never repeat, and only the engine makes handles."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle

import pytest

from kis.identity import _KEY, Base, Handle, MountSource, _make_handle, mint


def source(descriptor: int = -1) -> MountSource:
    return _make_handle(
        MountSource,
        _KEY,
        descriptor=descriptor,
        kind="directory",
        path=b"/somewhere",
        device=1,
        inode=2,
        mode=0o666,
        owner_uid=3,
        owner_gid=4,
    )


def test_mint_has_prefix_and_26_characters() -> None:
    name = mint("sbx_")
    assert name.startswith("sbx_")
    assert len(name) == 30
    assert set(name[4:]) <= set("abcdefghijklmnopqrstuvwxyz234567")


def test_mint_never_repeats() -> None:
    assert len({mint("run_") for _ in range(10_000)}) == 10_000


def _mint_some(_: int) -> list[str]:
    return [mint("run_") for _ in range(50)]


def test_mint_never_repeats_across_fork() -> None:
    """Forked workers share every generator's state but not the kernel's."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        lists = pool.map(_mint_some, range(4), chunksize=1)
    names = [name for names in lists for name in names]
    assert len(set(names)) == 200


@pytest.mark.parametrize("kind", [Handle, MountSource, Base])
def test_handle_refuses_construction(kind: type[Handle]) -> None:
    with pytest.raises(TypeError, match="made by the engine"):
        kind()
    with pytest.raises(TypeError, match="made by the engine"):
        _make_handle(kind, object())


def test_handle_refuses_copy_pickle_and_change() -> None:
    handle = source()
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            act(handle)
    with pytest.raises(AttributeError):
        handle.path = b"/elsewhere"


def test_handle_needs_every_field() -> None:
    with pytest.raises(TypeError):
        _make_handle(MountSource, _KEY, descriptor=-1)


def test_handle_repr_shows_id_only() -> None:
    handle = source()
    assert repr(handle) == f"<MountSource {handle.id}>"


def test_mount_source_closes_its_descriptor_once() -> None:
    descriptor = os.open("/", os.O_RDONLY)
    handle = source(descriptor)
    with handle:
        os.fstat(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    again = os.open("/", os.O_RDONLY)
    assert again == descriptor
    handle.close()
    os.fstat(again)
    os.close(again)


def test_mount_source_closes_when_dropped() -> None:
    descriptor = os.open("/", os.O_RDONLY)
    source(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
