"""What `backends` and `explain` say, and that the second runs nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import drive

TIERS = ["process", "host", "container", "microvm", "wasm"]


def test_backends_lists_all_tiers(starter: drive.Starter) -> None:
    """All five tiers appear; the built ones are usable with their claims."""
    starter.need_tier("container")
    done = starter.kis("sandbox", "backends", "--json")
    rows = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert [tier for tier in TIERS if any(row["tier"] == tier for row in rows)] == TIERS
    for row in rows:
        assert set(row) >= {"tier", "backend", "status", "version", "claims", "reason", "hint"}
        assert row["status"] in ("absent", "unusable", "usable")
        assert bool(row["claims"]) == (row["status"] == "usable")
        assert row["status"] == "usable" or row["reason"]
    usable = {row["backend"] for row in rows if row["status"] == "usable"}
    assert {"process", "namespaces"} <= usable
    container = next(row for row in rows if row["backend"] == "namespaces")
    assert ("other_user" in container["claims"]) is starter.is_root


def test_backends_prints_a_table(starter: drive.Starter) -> None:
    done = starter.kis("sandbox", "backends")
    assert done.returncode == 0, done.stderr
    assert all(tier in done.stdout.decode() for tier in TIERS)
    assert "not built yet" in done.stdout.decode()


def test_explain_runs_nothing(starter: drive.Starter, room: Path) -> None:
    """`explain` prints the plan and the mechanisms, and leaves the command alone."""
    import os

    if starter.is_root:
        os.chown(room, drive.ORDINARY_UID, drive.ORDINARY_UID)
    flags = ("--tier", "container", "-v", f"{room}:/out:rw", "--net", "loopback")
    done = starter.kis("sandbox", "explain", *flags, "--", "touch", "/out/marker")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert str(room) in text
    assert "/out" in text
    assert list(room.iterdir()) == []


def test_explain_has_no_receipt_to_give(starter: drive.Starter, room: Path) -> None:
    flags = ("--tier", "container", "--receipt", room / "r.json")
    done = starter.kis("sandbox", "explain", *flags, "--", "true")
    assert done.returncode == 125
    assert done.stderr.startswith(b"config_invalid: --receipt")
    assert not (room / "r.json").exists()


def test_explain_in_json(starter: drive.Starter) -> None:
    done = starter.kis("sandbox", "explain", "--tier", "container", "--json", "--", "true")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_explain_refuses_like_run(starter: drive.Starter) -> None:
    """What `run` would refuse, `explain` refuses with the same words."""
    for flags in (
        ("--tier", "process"),
        ("--tier", "container", "--net", "host"),
        ("--tier", "container", "--net", "egress"),
        ("--tier", "container", "--cap", "SYS_ADMIN"),
        ("--tier", "container", "-v", "/nonexistent:/m"),
    ):
        run = starter.kis("sandbox", "run", *flags, "--", "true")
        explain = starter.kis("sandbox", "explain", *flags, "--", "true")
        assert (explain.returncode, explain.stderr) == (125, run.stderr)


def test_explain_is_the_same_twice(starter: drive.Starter) -> None:
    """Equal inputs give equal plans; root's differ in nothing but the range of host ids."""
    words = ("sandbox", "explain", "--tier", "container", "-v", "/usr/share:/m", "--", "true")
    first, second = starter.kis(*words), starter.kis(*words)
    assert first.returncode == 0, first.stderr
    host_ids = re.compile(rb"\b(1[89]\d{8}|2\d{9})\b")
    assert host_ids.sub(b"ID", first.stdout) == host_ids.sub(b"ID", second.stdout)


def test_help_is_help(starter: drive.Starter) -> None:
    for words in (("--help",), ("sandbox", "--help"), ("sandbox", "run", "--help")):
        done = starter.kis(*words)
        assert (done.returncode, done.stderr) == (0, b""), words
        assert b"sandbox" in done.stdout
