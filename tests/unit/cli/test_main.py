"""The command line as a whole: statuses, streams, and nothing imported that a run does not need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kis
from kis.cli import main

SOURCE = str(Path(kis.__file__).parent.parent)
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": SOURCE, "PYTHONDONTWRITEBYTECODE": "1"}


def run_kis(
    *words: str | bytes, close: int | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run ``python -m kis`` in a process of its own; ``close`` is closed before it starts."""
    argv: list[str | bytes] = [sys.executable, "-m", "kis", *words]
    if close is not None:
        argv = ["sh", "-c", f'exec "$@" {close}>&-', "sh", *argv]
    return subprocess.run(
        argv, capture_output=True, env={**ENVIRONMENT, **environment}, timeout=60, check=False
    )


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["sandbox", "--help"],
                                   ["sandbox", "run", "--help"], ["sandbox", "run", "-h", "ls"],
                                   ["sandbox", "explain", "--help"],
                                   ["sandbox", "backends", "--help"]])  # fmt: skip
def test_help_is_asked_for(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    out, err = capfd.readouterr()
    assert out.startswith("usage: kis sandbox")
    assert err == ""


def test_version_is_the_packages(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"kis {kis.__version__}\n"


@pytest.mark.parametrize("words", [[], ["sandbox"]])
def test_no_verb_is_help_and_a_refusal(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 125
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("usage: kis sandbox")


@pytest.mark.parametrize(
    "words",
    [
        ["box"],
        ["sandbox", "ruin"],
        ["sandbox", "run"],
        ["sandbox", "run", "--"],
        ["sandbox", "run", "--teir", "host", "ls"],
        ["sandbox", "run", "--tier", "vm", "ls"],
        ["sandbox", "run", "--timeout", "5 parsecs", "ls"],
        ["sandbox", "run", "--memory", "1G", "ls"],
        ["sandbox", "run", "--tier"],
        ["sandbox", "backends", "more"],
        ["sandbox", "backends", "--tier", "host"],
    ],
)
def test_usage_error_is_config_invalid(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """125, never argparse's 2."""
    assert main(words) == 125
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("config_invalid: ")


def test_usage_error_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "run", "--json", "--oops", "ls", "--", "x"]) == 125
    out, err = capfd.readouterr()
    assert json.loads(out)["error"]["code"] == "config_invalid"
    assert err.startswith("config_invalid: ")


def test_json_of_the_command_is_not_ours(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "run", "--tier", "vm", "--", "ls", "--json"]) == 125
    assert capfd.readouterr().out == ""


def test_mistake_of_ours_shows_place_but_no_value(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(_words: object) -> int:
        raise ValueError("hunter2")

    monkeypatch.setattr("kis.cli._dispatch", broken)
    assert main(["sandbox"]) == 125
    err = capfd.readouterr().err
    assert err.startswith("invariant_failed: unexpected ValueError at ")
    assert "hunter2" not in err


@pytest.mark.parametrize("close", [0, 1, 2])
def test_closed_standard_descriptor_does_no_harm(close: int) -> None:
    found = run_kis("--version", close=close)
    assert found.returncode == 0
    assert found.stdout == (b"" if close == 1 else f"kis {kis.__version__}\n".encode())


def test_output_to_nobody_ends_like_sigpipe() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    found = subprocess.run(
        [sys.executable, "-m", "kis", "--help"],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        check=False,
    )
    os.close(writer)
    assert found.returncode == 141
    assert found.stderr == b""


def test_output_to_a_full_disk_is_an_error() -> None:
    with open("/dev/full", "wb") as full:
        found = subprocess.run(
            [sys.executable, "-m", "kis", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            check=False,
        )
    assert found.returncode == 125
    assert found.stderr.startswith(b"host_out_of_space: ")


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX", "en_US.ISO-8859-1"])
def test_bytes_of_arguments_survive_every_locale(locale: str) -> None:
    """A11: a path that is no UTF-8 is quoted byte for byte."""
    found = run_kis(
        "sandbox", "run", "-v", b"/gone/\xff\xe6\x97\xa5:/m", "--", "true", LC_ALL=locale
    )
    assert found.returncode == 125
    assert rb"'/gone/\xff" in found.stderr
    assert "日".encode() in found.stderr
    assert found.stderr.startswith(b"mount_invalid: ")


# What the start-up budget of a run without a profile file has no room for.
NOT_NEEDED = (
    "argparse", "asyncio", "collections.abc.typing", "contextlib", "ctypes", "dataclasses",
    "inspect", "json", "logging", "msgspec", "pathlib", "secrets", "subprocess", "tempfile",
    "tomllib", "typing",
)  # fmt: skip


def test_run_imports_only_what_it_needs() -> None:
    """Everything that ``kis sandbox run`` imports, up to the engine's own work."""
    code = (
        "import sys, kis.cli, kis.cli.run\n"
        "kis.cli.run.settings_of(['--tier', 'container', '-v', '/a:/b', 'true'], 'run')\n"
        "print('\\n'.join(sys.modules))"
    )
    found = subprocess.run(
        # -S: what site's .pth files import is not ours.
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=True,
    )
    loaded = set(found.stdout.split())
    assert "kis.cli.run" in loaded
    assert not loaded & set(NOT_NEEDED)
