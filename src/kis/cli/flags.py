"""The flags of the command line as one table, and the reader of it.

Knows: spellings, which take a value, help texts. Must not know: what a value means.
Called by: cli verbs. Written by hand because argparse with its imports and forty flags takes a
fifth of the start-up budget, guesses abbreviations, and refuses values that start with a dash.
"""

from __future__ import annotations

from kis.errors import Code, SandboxError, quoted
from kis.frozen import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Flag(Frozen):
    """One flag: its spellings, the name of its value (empty: takes none), what it does."""

    __slots__ = ("does", "spellings", "value")
    spellings: tuple[str, ...]
    value: str
    does: str

    def __init__(self, spellings: str, value: str, does: str) -> None:
        self._set("spellings", tuple(spellings.split()), "value", value, "does", does)

    @property
    def name(self) -> str:
        """The long spelling; how every other module calls the flag."""
        return self.spellings[-1]


HELP = Flag("-h --help", "", "show this help")
JSON = Flag("--json", "", "print one JSON value on standard output")

RUN_FLAGS = (
    Flag("--tier", "TIER", "process, host, container, microvm (default) or wasm"),
    Flag("--backend", "NAME", "this backend of the tier or none"),
    Flag("--base", "BASE", "host (default), python, or a root directory"),
    Flag("--net", "MODE", "off (default), loopback, egress or host"),
    Flag("--allow", "HOST[:PORT]", "let egress reach this (repeatable)"),
    Flag("-v", "SRC[:DST][:ro|rw]", "mount a file or directory (repeatable)"),
    Flag("--mount", "SPEC", "the same, or source=…,target=…,mode=…,owner=UID[:GID] (CSV quoting)"),
    Flag("--tmpfs", "DST", "an empty writable directory (repeatable)"),
    Flag("-e --env", "NAME=VALUE|NAME", "set a variable, or pass kis's own on (repeatable)"),
    Flag("--env-file", "FILE", "lines of NAME=VALUE or NAME (repeatable)"),
    Flag("--secret", "NAME=@FILE", "the file's content as /run/secrets/NAME (repeatable)"),
    Flag("-w --cwd", "DIR", "working directory, relative to HOME (default: HOME)"),
    Flag("-u --user", "USER", "user (default), root, nobody or UID[:GID]"),
    Flag("-i", "", "forward standard input (default: empty)"),
    Flag("--cap", "NAME", "grant a capability (repeatable)"),
    Flag("--device", "PATH", "grant a device node (repeatable)"),
    Flag("--open-files", "N", "open files per process (default: 1024)"),
    Flag("--timeout", "TIME", "wall time of the command: 30, 1.5s, 500ms, 2m (default: 300)"),
    Flag("--grace", "TIME", "from SIGTERM to SIGKILL when the time is up (default: 1)"),
    Flag("--output-limit", "SIZE", "bytes of output: 4096, 64MiB, 1GB (default: 64MiB)"),
    Flag("--unlimited", "LIST", "lift limits: open-files,timeout,output"),
    Flag("--merge-stderr", "", "standard error into standard output, in order"),
    Flag("--writable-root", "", "let the payload change the root; nothing is kept"),
    Flag("--profile", "FILE", "TOML file with the same settings; flags override it"),
    Flag("--receipt", "FILE", "write the receipt as JSON; - prints a table on standard error"),
    JSON,
    Flag("--allow-process-tier", "", "escape hatch: run unconfined in the process tier"),
    Flag("--allow-net-host", "", "escape hatch: share the host's network"),
    Flag("--allow-emulation", "", "escape hatch: accept an emulator that is no border"),
    HELP,
)
BACKENDS_FLAGS = (JSON, HELP)


def read_flags(
    words: Sequence[str], flags: Sequence[Flag]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Split words into (flag name, value) pairs in order, and the words of the command.

    Flags end at ``--`` or at the first word that is none; a flag's value is the next word
    whatever it looks like. Raises ``config_invalid`` for a flag that is unknown, lacks its value,
    or is given one it does not take.
    """
    by_spelling = {spelling: flag for flag in flags for spelling in flag.spellings}
    pairs: list[tuple[str, str]] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return pairs, list(words[at + 1 :])
        if not word.startswith("-") or word == "-":
            break
        flag, attached = _match(word, by_spelling)
        at += 1
        if flag.value and attached is None:
            if at == len(words):
                raise _usage(f"{flag.spellings[0]} needs a value: {flag.value}")
            attached = words[at]
            at += 1
        elif not flag.value and attached is not None:
            raise _usage(f"{flag.name} takes no value")
        pairs.append((flag.name, attached or ""))
    return pairs, list(words[at:])


def leading_words(words: Sequence[str], flags: Sequence[Flag]) -> Sequence[str]:
    """Return the words before the command, also where ``read_flags`` refuses them."""
    takes_value = {spelling for flag in flags if flag.value for spelling in flag.spellings}
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        at += 2 if words[at] in takes_value else 1
    return words[:at]


def _match(word: str, by_spelling: dict[str, Flag]) -> tuple[Flag, str | None]:
    """Find the flag of a word, and the value that is part of the word."""
    if word.startswith("--"):
        spelling, equals, attached = word.partition("=")
        value = attached if equals else None
    else:
        spelling, value = word[:2], word[2:] or None
    flag = by_spelling.get(spelling)
    if flag is None:
        raise _unknown(spelling, by_spelling)
    return flag, value


def _unknown(spelling: str, by_spelling: dict[str, Flag]) -> SandboxError:
    from difflib import get_close_matches

    near = get_close_matches(spelling, by_spelling, n=1)
    hint = f"Did you mean {near[0]}?" if near else "kis sandbox run --help lists the flags."
    return SandboxError(
        Code.CONFIG_INVALID,
        f"unknown flag {quoted(spelling)}",
        hint,
        {"field": spelling.encode("utf-8", "backslashreplace").decode()},
    )


def _usage(what: str) -> SandboxError:
    return SandboxError(
        Code.CONFIG_INVALID, what, "kis sandbox run --help lists the flags.", {"field": "argv"}
    )


def flags_help(usage: str, flags: Sequence[Flag]) -> str:
    """Return the help text of a verb."""
    lines = [f"usage: {usage}", ""]
    for flag in flags:
        left = ", ".join(flag.spellings) + (f" {flag.value}" if flag.value else "")
        gap = "\n" + " " * 34 if len(left) > 31 else " " * (32 - len(left))
        lines.append(f"  {left}{gap}{flag.does}")
    return "\n".join(lines) + "\n"
