"""Flags end where the command begins, take values as they come, and are never guessed."""

from __future__ import annotations

import pytest

from kis.cli.flags import RUN_FLAGS, flags_help, leading_words, read_flags
from kis.errors import Code, SandboxError


@pytest.mark.parametrize(
    ("words", "pairs", "command"),
    [
        ([], [], []),
        (["ls", "-l", "--json"], [], ["ls", "-l", "--json"]),
        (["--", "--json"], [], ["--json"]),
        (["--json", "--", "--", "x"], [("--json", "")], ["--", "x"]),
        (["--tier", "host", "ls"], [("--tier", "host")], ["ls"]),
        (["--tier=host", "ls"], [("--tier", "host")], ["ls"]),
        (["--tier=", "ls"], [("--tier", "")], ["ls"]),
        (["-e", "A=B", "-eC=D", "x"], [("--env", "A=B"), ("--env", "C=D")], ["x"]),
        (["-v", "-v:/m", "x"], [("-v", "-v:/m")], ["x"]),
        (["-v", "--", "x"], [("-v", "--")], ["x"]),
        (["--mount=source=a=b", "x"], [("--mount", "source=a=b")], ["x"]),
        (["-i", "-"], [("-i", "")], ["-"]),
        (["-w", "a\nb", "", "x"], [("--cwd", "a\nb")], ["", "x"]),
    ],
)
def test_flags_are_split_from_the_command(
    words: list[str], pairs: list[tuple[str, str]], command: list[str]
) -> None:
    assert read_flags(words, RUN_FLAGS) == (pairs, command)


@pytest.mark.parametrize(
    "words",
    [["--tire", "host"], ["--js"], ["--json=1"], ["-ix"], ["-x"], ["--tier"], ["-e"],
     ["--memory", "1G"], ["--tty"], ["-t"], ["--\x1b[2J"]],
)  # fmt: skip
def test_flag_that_does_not_exist_is_refused(words: list[str]) -> None:
    with pytest.raises(SandboxError) as caught:
        read_flags(words, RUN_FLAGS)
    assert caught.value.code is Code.CONFIG_INVALID
    assert "\x1b" not in str(caught.value)


def test_unknown_flag_names_the_nearest() -> None:
    with pytest.raises(SandboxError) as caught:
        read_flags(["--time-out", "5"], RUN_FLAGS)
    assert caught.value.hint == "Did you mean --timeout?"


def test_leading_words_stop_at_the_command() -> None:
    words = ["--tier", "--json", "--oops", "ls", "--json"]
    assert leading_words(words, RUN_FLAGS) == words[:3]
    assert leading_words(["--json", "--", "--json"], RUN_FLAGS) == ["--json"]


def test_help_shows_every_flag() -> None:
    text = flags_help("kis sandbox run", RUN_FLAGS)
    for flag in RUN_FLAGS:
        assert all(spelling in text for spelling in flag.spellings)
        assert flag.does in text
    assert all(len(line) <= 110 for line in text.splitlines())
