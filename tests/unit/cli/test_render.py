"""What is printed is complete, valid, and cannot steer a terminal."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kis.cli import render
from kis.command import Outcome, Usage
from kis.engine import host
from kis.engine.backend import AbsentBackend, Finding
from kis.engine.report import Explanation, Report
from kis.errors import Code, SandboxError
from kis.limits import Limits
from kis.receipt import Entry, Receipt
from kis.vocabulary import Reason, Status, Tier

HOST = host.read_host(host.read_machine())

RECEIPT = Receipt(
    "run_1",
    "sbx_1",
    Tier.CONTAINER,
    "namespaces",
    (
        Entry(
            "interfaces", "none", "network namespace", ("lo", "x\x1b[2J"), "observed", False, True
        ),
        Entry("keyring", "fresh", "keyctl", None, "self_reported", True, None),
        Entry("uid", 1, "user namespace", 0, "observed", False, False),
    ),
)


def outcome(stdout: bytes = b"", reason: Reason = Reason.EXITED) -> Outcome:
    usage = Usage(1.5, 0.25, 1 << 20, len(stdout), 0)
    return Outcome(stdout, b"", reason, 0, None, False, usage, RECEIPT)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            continue


def test_write_waits_for_a_slow_reader(pipe: tuple[int, int]) -> None:
    """Standard output may be non-blocking: another program set that on the shared terminal."""
    reader, writer = pipe
    os.set_blocking(writer, False)
    content = os.urandom(1 << 20)
    received: list[bytes] = []

    def drain() -> None:
        while len(b"".join(received)) < len(content):
            received.append(os.read(reader, 1 << 16))

    thread = threading.Thread(target=drain)
    thread.start()
    render.write_bytes(writer, content)
    thread.join()
    assert b"".join(received) == content


def test_write_to_nobody_is_output_closed(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    with pytest.raises(render.OutputClosed):
        render.write_bytes(pipe[1], b"x")


def test_write_to_a_full_disk_is_typed() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(SandboxError) as caught:
        render.write_bytes(descriptor, b"x")
    os.close(descriptor)
    assert caught.value.code is Code.HOST_OUT_OF_SPACE


def test_write_to_a_closed_descriptor_is_typed() -> None:
    with pytest.raises(SandboxError) as caught:
        render.write_bytes(-1, b"x")
    assert caught.value.details == {"step": "output"}


def test_json_of_outcome_has_every_key() -> None:
    shown = json.loads(render.json_text(render.outcome_object(outcome(b"hi\n"))))
    assert list(shown) == [
        "id", "tier", "backend", "reason", "exit_code", "signal", "stdout", "stderr",
        "truncated", "usage", "artifacts", "receipt",
    ]  # fmt: skip
    assert list(shown["usage"]) == [
        "wall_seconds", "cpu_seconds", "memory_peak_bytes", "oom_kills", "pids_refused",
        "stdout_bytes", "stderr_bytes",
    ]  # fmt: skip
    assert shown["stdout"] == "hi\n"
    assert shown["usage"]["memory_peak_bytes"] is None
    assert shown["receipt"]["sandbox"] == "sbx_1"


def test_json_of_bytes_that_are_no_text_keeps_them() -> None:
    """A01."""
    shown = json.loads(render.json_text(render.outcome_object(outcome(b"ok\xff\xfe\n"))))
    assert shown["stdout"] == "ok\ufffd\ufffd\n"
    assert base64.b64decode(shown["stdout_base64"]) == b"ok\xff\xfe\n"
    assert "stderr_base64" not in shown


def test_json_has_no_lone_surrogates() -> None:
    assert json.loads(render.json_text({"a\udcff": ["\ud800", ("x",), None]})) == {
        "a\\udcff": ["\\ud800", ["x"], None]
    }


def test_error_is_one_line_and_a_hint(capfd: pytest.CaptureFixture[str]) -> None:
    render.write_error(SandboxError(Code.MOUNT_INVALID, "a\x1b[2J\nb", "c\rd"), False)
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "mount_invalid: a\\x1b[2J\\nb\nhint: c\\rd\n"


def test_error_of_a_shut_hatch_is_exactly_its_line(capfd: pytest.CaptureFixture[str]) -> None:
    message = "the process tier runs unconfined and requires escape_hatch.allow_process_tier"
    render.write_error(SandboxError(Code.ESCAPE_HATCH_FORBIDDEN, message, "a hint"), False)
    assert capfd.readouterr().err == f"escape_hatch_forbidden: {message}\n"


def test_error_as_json_comes_beside_its_line(capfd: pytest.CaptureFixture[str]) -> None:
    render.write_error(SandboxError(Code.MOUNT_INVALID, "m", "h", {"a": ["b"]}), True)
    out, err = capfd.readouterr()
    assert json.loads(out) == {
        "error": {"code": "mount_invalid", "message": "m", "hint": "h", "details": {"a": ["b"]}}
    }
    assert err == "mount_invalid: m\nhint: h\n"


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        (Reason.EXITED, ""),
        (Reason.SIGNALED, ""),
        (Reason.TIMED_OUT, "timed_out: the command ran longer than 1.5 s\n"),
        (Reason.OUTPUT_LIMIT, "output_limit: more than 1024 bytes of output\n"),
        (Reason.KILLED, "killed: the command was killed by kis\n"),
        (Reason.OUT_OF_MEMORY, "out_of_memory: the kernel ended the command for want of memory\n"),
    ],
)
def test_ending_has_a_line_where_the_status_is_not_the_commands(
    reason: Reason, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    render.write_ending(outcome(reason=reason), Limits(wall_seconds=1.5, output_bytes="1K"))
    assert capfd.readouterr().err == line


def entry(field: str, asked: object = "x", observed: object = "x", **rest: Any) -> Entry:
    return Entry(field, asked, "mechanism", observed, **{"holds": True, **rest})


def table_of(*entries: Entry) -> list[str]:
    receipt = Receipt("run_1", "sbx_1", Tier.CONTAINER, "namespaces", entries)
    return render.receipt_table(receipt).splitlines()[2:]


def test_receipt_table_is_aligned_and_marks_differences() -> None:
    lines = render.receipt_table(RECEIPT).splitlines()
    assert lines[0] == "receipt run_1 of sbx_1: container tier, namespaces"
    assert lines[1].split() == "what asked seen, or by what means source holds".split()
    assert lines[2].endswith("ok")
    assert "self_reported, after payload" in lines[3]
    assert lines[4].endswith("DIFFERS")
    assert lines[5:] == ["1 of 2 comparisons hold"]
    column = lines[1].index("seen")
    assert all(line[column - 2 : column] == "  " for line in lines[1:-1])


def test_receipt_table_has_one_line_for_what_belongs_together() -> None:
    names = ("user", "mnt", "pid")
    lines = table_of(
        *(entry(f"namespace.{name}", "own", str(at)) for at, name in enumerate(names)),
        entry("no_new_privs", "1", "1"),
        entry("seccomp_mode", "2", "2"),
        Entry("limits.open_files", 9, "RLIMIT_NOFILE", None, "engine"),
        Entry("limits.wall_seconds", 1.5, "clock", None, "engine"),
    )
    assert [line.split("  ")[0] for line in lines[:-1]] == ["namespaces", "system calls", "limits"]
    assert "own" in lines[0]
    assert "user mnt pid" in lines[0]
    assert "no_new_privs 1, seccomp_mode 2" in lines[1]
    assert "open_files 9, wall_seconds 1.5" in lines[2]
    assert "RLIMIT_NOFILE, clock" in lines[2]
    assert lines[-1] == "5 of 5 comparisons hold"


@pytest.mark.parametrize(("holds", "verdict"), [(False, "DIFFERS"), (None, "-")])
def test_receipt_table_hides_nothing_that_does_not_hold(holds: bool | None, verdict: str) -> None:
    """An entry that differs, or could not be read, is not lost among those of its group."""
    lines = table_of(
        entry("capabilities.CapInh", "0", "0"),
        entry("capabilities.CapPrm", "0", "not readable: EPERM", holds=holds),
        entry("capabilities.CapEff", "0", "0"),
    )
    assert len(lines) == 3
    assert "CapInh CapEff" in lines[0]
    assert lines[0].endswith("ok")
    assert lines[1].startswith("capabilities.CapPrm ")
    assert "not readable: EPERM" in lines[1]
    assert lines[1].endswith(verdict)


def test_receipt_table_keeps_apart_who_says_so() -> None:
    """What the inside reports of itself is never on a line with what was observed."""
    lines = table_of(
        entry("uid"),
        entry("gid", source="self_reported"),
        entry("groups", source="self_reported", after_payload=True),
    )
    assert [line.split()[-2:] for line in lines[:-1]] == [
        ["observed", "ok"], ["self_reported", "ok"], ["payload", "ok"]
    ]  # fmt: skip


@pytest.mark.parametrize("observed", ["a\x1b[2J\nb", ("lo", "x\x1b[2J\rb")])
@pytest.mark.parametrize("fields", [("interfaces",), ("interfaces", "loopback_up")])
def test_receipt_table_steers_no_terminal(fields: tuple[str, ...], observed: object) -> None:
    lines = table_of(*(entry(field, at, observed) for at, field in enumerate(fields)))
    assert len(lines) == 2
    assert "\\x1b[2J" in lines[0]
    assert all(line.isprintable() for line in lines)


def test_reports_are_a_table_with_hints_below() -> None:
    found = Finding(Status.UNUSABLE, "6.1", "switched off\x1b[2J", "switch it on")
    reports = [
        Report(AbsentBackend(Tier.WASM, "wasmtime", "not built yet"), Finding(Status.ABSENT), HOST),
        Report(AbsentBackend(Tier.CONTAINER, "namespaces", ""), found, HOST),
    ]
    lines = render.reports_table(reports).splitlines()
    assert lines[0].split() == ["tier", "backend", "status", "version", "reason"]
    assert lines[1].split() == ["wasm", "wasmtime", "absent"]
    assert lines[2].endswith("switched off\\x1b[2J")
    assert lines[3:] == ["", "namespaces: switch it on"]


def test_explanation_shows_every_step_and_mechanism() -> None:
    text = render.explanation_text(
        Explanation(
            Tier.CONTAINER,
            "namespaces",
            ("network_off", "own_root"),
            (("network.mode", "own network namespace"), ("base", "curated host tree")),
            ("MODE bits=9", "BIND target=/m"),
        )
    )
    for part in ("container", "namespaces", "own network namespace", "MODE bits=9", "own_root"):
        assert part in text


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ((Reason.EXITED, 3, None), "exited 3"),
        ((Reason.SIGNALED, None, 9), "signaled 9"),
        ((Reason.TIMED_OUT, None, 15), "timed_out 15"),
        ((Reason.OUTPUT_LIMIT, None, None), "output_limit"),
    ],
)
def test_receipt_says_how_the_command_ended(
    end: tuple[Reason, int | None, int | None], words: str
) -> None:
    receipt = Receipt("run_1", "sbx_1", Tier.CONTAINER, "namespaces", (), *end)
    assert render.receipt_table(receipt).endswith(f"0 of 0 comparisons hold; ended: {words}\n")
    assert receipt.to_dict()["reason"] == str(end[0])
