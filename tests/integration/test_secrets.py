"""Secrets: they arrive, and are shown nowhere."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import drive
import pytest


@pytest.fixture
def word() -> str:
    return "s3cr3t-" + uuid.uuid4().hex


def test_secret_is_a_private_file(starter: drive.Starter, room: Path, word: str) -> None:
    """`--secret NAME=@FILE` is /run/secrets/NAME, readable by the user alone."""
    (room / "token").write_text(word)
    starter.give(room / "token")
    (room / "token").chmod(0o600)
    script = "cat /run/secrets/api; stat -c ' %a %u' /run/secrets/api; touch /run/secrets/x; true"
    done = starter.container("sh", "-c", script, flags=("--secret", f"api=@{room}/token"))
    assert done.stdout == f"{word} 400 1000\n".encode(), done.stderr


def test_secret_is_gone_afterwards(starter: drive.Starter, room: Path, word: str) -> None:
    (room / "token").write_text(word)
    starter.give(room / "token")
    flags = ("--secret", f"api=@{room}/token")
    assert starter.container("true", flags=flags).returncode == 0
    assert starter.container("test", "-e", "/run/secrets/api").returncode == 1


def test_no_value_is_ever_shown(starter: drive.Starter, room: Path, word: str) -> None:
    """Neither a secret nor a variable's value is in a receipt, a plan, an error or an argument."""
    (room / "token").write_text(word)
    starter.give(room / "token")
    flags = ("-e", "TOKEN", "-e", f"DIRECT={word}", "--secret", f"api=@{room}/token")
    environment = starter.environment(TOKEN=word)
    receipt = room / "receipt.json"
    done = starter.container(
        "true", flags=(*flags, "--json", "--receipt", receipt), env=environment
    )
    assert done.returncode == 0, done.stderr
    assert word not in (done.stdout + done.stderr).decode()
    said = receipt.read_text()
    assert word not in said
    assert "TOKEN" in said
    words = ("sandbox", "explain", "--tier", "container", *flags, "--", "true")
    done = starter.kis(*words, env=environment)
    assert done.returncode == 0, done.stderr
    assert word not in (done.stdout + done.stderr).decode()


def test_no_value_is_shown_in_a_refusal(starter: drive.Starter, room: Path, word: str) -> None:
    (room / "token").write_text(word)
    starter.give(room / "token")
    flags = ("-e", f"A={word}", "--secret", f"api=@{room}/token", "-v", "/nonexistent:/m", "--json")
    done = starter.container("true", flags=flags)
    assert done.returncode == 125
    assert word not in (done.stdout + done.stderr).decode()
    for text in (f"TOKEN={word}", word):
        done = starter.container("true", flags=("--secret", text))
        assert done.returncode == 125
        assert word not in done.stderr.decode()


def test_no_value_stands_in_a_command_line(starter: drive.Starter, room: Path, word: str) -> None:
    """While it runs, no process of the machine has the value among its arguments."""
    (room / "token").write_text(word)
    starter.give(room / "token")
    mark = f"8{uuid.uuid4().int % 10**12}"
    flags = ("-e", "TOKEN", "--secret", f"api=@{room}/token")
    argv = starter.kis_argv("sandbox", "run", "--tier", "container", *flags, "--", "sleep", mark)
    with starter.start(argv, env=starter.environment(TOKEN=word)) as process:
        try:
            assert drive.eventually(lambda: len(drive.processes_with(mark)) >= 2)
            assert drive.processes_with(word) == []
        finally:
            process.kill()
    assert drive.eventually(lambda: drive.processes_with(mark) == [])


def test_receipt_file_is_whole(starter: drive.Starter, room: Path) -> None:
    """`--receipt FILE` holds the same receipt that `--json` prints, and `-` prints a table."""
    receipt = room / "receipt.json"
    done = starter.container("true", flags=("--json", "--receipt", receipt))
    assert json.loads(receipt.read_text()) == json.loads(done.stdout)["receipt"]
    done = starter.container("true", flags=("--receipt", "-"))
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.count(b"\n") > 10
