"""A command is checked before anything starts; no error shows a value (A12)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kis.command import Command, CommandFailed, Outcome, Usage
from kis.errors import Code, SandboxError
from kis.receipt import Receipt
from kis.vocabulary import Demand, Reason, Tier

SECRET = "hunter2"


def outcome(
    reason: Reason = Reason.EXITED, code: int | None = 0, signal: int | None = None
) -> Outcome:
    receipt = Receipt("run_x", "sbx_x", Tier.CONTAINER, "namespaces", ())
    return Outcome(b"ok\xff\n", b"", reason, code, signal, False, Usage(), receipt)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Command([]), "argv"),
        (lambda: Command("true"), "argv"),
        (lambda: Command(b"true"), "argv"),
        (lambda: Command([""]), "argv[0]"),
        (lambda: Command(["true", 7]), "argv[1]"),
        (lambda: Command(["true", f"{SECRET}\0"]), "argv[1]"),
        (lambda: Command(["true", f"{SECRET}\ud800"]), "argv[1]"),
        (lambda: Command(["true"], env={f"A={SECRET}": "x"}), "env[0] name"),
        (lambda: Command(["true"], env={"": SECRET}), "env[0] name"),
        (lambda: Command(["true"], env={"OK": "1", "A": f"{SECRET}\0"}), "env[1] value"),
        (lambda: Command(["true"], env="A=B"), "env"),
        (lambda: Command(["true"], cwd=""), "cwd"),
        (lambda: Command(["true"], cwd="a\0b"), "cwd"),
        (lambda: Command(["true"], cwd="x" * 4096), "cwd"),
        (lambda: Command(["true"], stdin="text"), "stdin"),
        (lambda: Command(["true"], stderr="both"), "stderr"),
        (lambda: Command(["true"], user="alice"), "user"),
        (lambda: Command(["true"], user=""), "user"),
        (lambda: Command(["true"], user="1:2:3"), "user"),
        (lambda: Command(["true"], user="-1"), "user"),
        (lambda: Command(["true"], user=65533), "user"),
        (lambda: Command(["true"], user="1000:65533"), "user"),
        (lambda: Command(["true"], user=65535), "user"),
        (lambda: Command(["true"], user=True), "user"),
        (lambda: Command(["true"], user="9" * 5000), "user"),
    ],
)
def test_command_refuses_field(make: Callable[[], object], field: str) -> None:
    with pytest.raises(SandboxError) as caught:
        make()
    assert caught.value.code is Code.COMMAND_INVALID
    assert caught.value.details["field"] == field
    assert SECRET not in str(caught.value) + repr(caught.value.to_dict())


def test_command_passes_odd_values_unchanged() -> None:
    """A12 (e) to (g): a blank in a name, an equals sign in a value, an empty value."""
    command = Command(["true"], env={"A B": "1", "X": "x=y", "E": ""})
    assert command.env == ((b"A B", b"1"), (b"X", b"x=y"), (b"E", b""))


def test_command_keeps_bytes() -> None:
    command = Command(["cat", b"\xff", "\udcfe", "日"], cwd=b"/\xff")
    assert command.argv == (b"cat", b"\xff", b"\xfe", "日".encode())
    assert command.cwd == b"/\xff"


@pytest.mark.parametrize(
    ("user", "ids"),
    [
        (None, (1000, 1000)),
        ("user", (1000, 1000)),
        ("root", (0, 0)),
        ("nobody", (65534, 65534)),
        ("7", (7, 7)),
        ("7:8", (7, 8)),
        (7, (7, 7)),
        ((7, 8), (7, 8)),
    ],
)
def test_command_reads_user(user: str | int | None, ids: tuple[int, int]) -> None:
    command = Command(["id"], user=user)
    assert (command.uid, command.gid) == ids
    assert command.replace(cwd="x").user == command.user


def test_command_user_is_a_demand_where_it_differs() -> None:
    assert Command(["id"]).demands(Tier.CONTAINER) == frozenset()
    assert Command(["id"], user="user").demands(Tier.CONTAINER) == frozenset()
    assert Command(["id"], user="root").demands(Tier.CONTAINER) == {Demand.OTHER_USER}
    assert Command(["id"], user="user").demands(Tier.PROCESS) == {Demand.OTHER_USER}


def test_command_of_one_argument_at_the_kernels_bound() -> None:
    assert Command(["true", "x" * 131071]).argv[1]
    for command in (
        lambda: Command(["true", "x" * 131072]),
        lambda: Command(["true"], env={"A": "x" * 131070}),
    ):
        with pytest.raises(SandboxError) as caught:
            command()
        assert caught.value.code is Code.ARGUMENT_TOO_LONG
        assert "xxx" not in str(caught.value)


def test_command_of_too_many_arguments() -> None:
    with pytest.raises(SandboxError) as caught:
        Command(["true", *["x"] * 700_000])
    assert caught.value.code is Code.ARGUMENT_TOO_LONG


def test_command_repr_hides_values() -> None:
    shown = repr(Command(["true"], env={"TOKEN": SECRET}, stdin=SECRET.encode()))
    assert SECRET not in shown


def test_outcome_text_never_fails() -> None:
    """A01: bytes that are no UTF-8 neither fail nor get lost."""
    assert outcome().text() == "ok\ufffd\n"
    assert outcome().stdout == b"ok\xff\n"


def test_outcome_check_raises_for_every_other_end() -> None:
    good = outcome()
    assert good.check() is good
    for bad in (
        outcome(code=1),
        outcome(Reason.SIGNALED, None, 11),
        outcome(Reason.TIMED_OUT, None, 15),
    ):
        with pytest.raises(CommandFailed) as caught:
            bad.check()
        assert caught.value.outcome is bad
    assert str(CommandFailed(outcome(code=3))) == "the command exited with 3"
    assert "signal 11" in str(CommandFailed(outcome(Reason.SIGNALED, None, 11)))
