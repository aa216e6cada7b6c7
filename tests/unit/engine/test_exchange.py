"""What a command gets around it: environment, directory; and its accounts' files."""

from __future__ import annotations

import pytest
from made_up import plan_of, request

from kis.backends.process import Process
from kis.command import Command
from kis.engine.exchange import variables, working_directory
from kis.linux import accounts
from kis.profile import Limits, Profile


def environment(command: Command) -> dict[bytes, bytes]:
    return dict(variables(plan_of(uid=command.uid, gid=command.gid), command))


def test_the_default_environment() -> None:
    assert environment(Command(["true"])) == {
        b"PATH": b"/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        b"HOME": b"/home/user",
        b"LANG": b"C.UTF-8",
        b"TMPDIR": b"/tmp",
        b"USER": b"user",
        b"LOGNAME": b"user",
    }


@pytest.mark.parametrize(
    ("user", "home", "name"),
    [
        ("root", b"/root", b"root"),
        ("nobody", b"/home/nobody", b"nobody"),
        ("1234:7", b"/home/u1234", b"u1234"),
    ],
)
def test_other_users_have_homes_of_their_own(user: str, home: bytes, name: bytes) -> None:
    found = environment(Command(["true"], user=user))
    assert (found[b"HOME"], found[b"USER"]) == (home, name)


def test_a_command_has_the_last_word() -> None:
    found = environment(Command(["true"], env={"PATH": "/x", "B": "a=b", "C": ""}))
    assert (found[b"PATH"], found[b"B"], found[b"C"]) == (b"/x", b"a=b", b"")


@pytest.mark.parametrize(
    ("cwd", "wanted"),
    [
        (None, b"/home/user"),
        ("/x/y", b"/x/y"),
        ("sub", b"/home/user/sub"),
        (b"\xff", b"/home/user/\xff"),
    ],
)
def test_where_a_command_starts(cwd: str | bytes | None, wanted: bytes) -> None:
    assert working_directory(plan_of(), Command(["true"], cwd=cwd)) == wanted


def test_the_process_tier_has_only_the_limits_that_were_named() -> None:
    assert Process().plan(request()).limits == ()
    named = Profile(limits=Limits(open_files=64))
    assert (7, 64, 64) in Process().plan(request(named)).limits


def home_of(uid: int) -> bytes:
    return b"/home/%d" % uid


def test_accounts_from_nothing() -> None:
    lines = accounts.passwd(b"", [(1234, 7, b"/home/x")], home_of).splitlines()
    assert lines[0] == b"root:x:0:0:root:/home/0:/bin/sh"
    assert lines[-1] == b"u1234:x:1234:7:u1234:/home/x:/bin/sh"
    assert accounts.group(b"", [(1234, 7, b"")]).splitlines()[-1] == b"u7:x:7:"


def test_a_bases_own_accounts_are_kept_and_completed() -> None:
    given = (
        b"root:x:0:0:root:/root:/bin/ash\nuser:x:500:500::/u:/bin/ash\nubuntu:x:1000:1000::/:/sh"
    )
    text = accounts.passwd(given, [(1000, 1000, b"/home/user")], home_of)
    assert text.startswith(given + b"\n")
    # Neither a name nor a number is taken twice.
    assert text[len(given) + 1 :] == b"nobody:x:65534:65534:nobody:/home/65534:/bin/sh\n"
