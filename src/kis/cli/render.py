"""Everything that is printed.

Knows: how outcomes, errors, receipts and reports look as text and as JSON.
Must not know: how any of them came about. Called by: cli verbs; nothing else prints.
"""

from __future__ import annotations

import errno
import os
import select
import time

from kis.errors import Code, SandboxError, escaped, os_reason
from kis.vocabulary import Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from kis.command import Outcome
    from kis.engine.report import Explanation, Report
    from kis.limits import Limits
    from kis.receipt import Entry, Receipt

STANDARD_OUTPUT = 1
STANDARD_ERROR = 2
_WIDEST_CELL = 48
# The lines of a receipt's table that stand for several entries: name, fields, prefix of fields.
_GROUPS = (
    ("limits", (), "limits."),
    ("namespaces", (), "namespace."),
    ("ids", ("uid_map", "gid_map", "uid", "gid", "groups"), ""),
    ("network", ("interfaces", "loopback_up"), ""),
    ("mounts", ("mounts", "root_writable"), ""),
    ("process", ("pids", "same_place", "session", "terminal", "descriptors"), ""),
    ("process", ("dumpable", "session_keyring"), ""),
    ("capabilities", (), "capabilities."),
    ("system calls", ("no_new_privs", "seccomp_mode", "seccomp_filters"), ""),
    ("resource limits", ("open_files", "core_bytes"), ""),
    ("refused calls", (), "filter."),
)


class OutputClosed(Exception):  # noqa: N818 (a state, not an error)
    """Whoever read our output is gone; there is nobody to tell."""


def write_bytes(
    descriptor: int, content: bytes | memoryview, until: float | None = None
) -> memoryview:
    """Write all of it, waiting for its reader, but no longer than ``until`` (monotonic seconds).

    Return what was not written by then. Raises ``OutputClosed`` where the reader is gone,
    ``host_out_of_space`` where the disk is full, ``setup_failed`` (step ``output``) for anything
    else.
    """
    rest = memoryview(content)
    while rest:
        if until is not None and not _wait_writable(descriptor, until):
            return rest
        # What poll(2) calls writable takes that much without blocking: pipe(7).
        part = rest if until is None else rest[: select.PIPE_BUF]
        try:
            rest = rest[os.write(descriptor, part) :]
        except BlockingIOError:
            _wait_writable(descriptor)
        except BrokenPipeError:
            raise OutputClosed from None
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            raise SandboxError(
                Code.HOST_OUT_OF_SPACE if full else Code.SETUP_FAILED,
                f"descriptor {descriptor} cannot be written: {os_reason(error)}",
                details={"step": "output"},
            ) from error
    return rest


def write_text(descriptor: int, text: str) -> None:
    """Write text that is fit for a terminal already, as UTF-8 whatever the locale says."""
    write_bytes(descriptor, text.encode("utf-8", "backslashreplace"))


def json_text(value: object) -> str:
    """Return one JSON value and a newline; ASCII, so that it is valid in any locale."""
    from json import dumps

    return dumps(_clean(value), allow_nan=False) + "\n"


def write_json(value: object) -> None:
    """Print one JSON value on standard output."""
    write_text(STANDARD_OUTPUT, json_text(value))


def write_error(error: SandboxError, as_json: bool) -> None:
    """Print ``code: message`` and the hint on standard error, and the object if asked for it."""
    if as_json:
        write_json({"error": error.to_dict()})
    lines = _one_line(str(error)) + "\n"
    # A shut hatch is named by its message, which is fixed to the letter; the hint is in the JSON.
    if error.hint and error.code is not Code.ESCAPE_HATCH_FORBIDDEN:
        lines += f"hint: {_one_line(error.hint)}\n"
    write_text(STANDARD_ERROR, lines)


def write_ending(outcome: Outcome, limits: Limits) -> None:
    """Print why the exit status is not the payload's own; nothing where it is."""
    what = {
        Reason.TIMED_OUT: f"the command ran longer than {limits.resolved_wall_seconds or 0:g} s",
        Reason.OUTPUT_LIMIT: f"more than {limits.resolved_output_bytes} bytes of output",
        Reason.OUT_OF_MEMORY: "the kernel ended the command for want of memory",
        Reason.KILLED: "the command was killed by kis",
    }.get(outcome.reason)
    if what:
        write_text(STANDARD_ERROR, f"{outcome.reason}: {what}\n")


def outcome_object(outcome: Outcome) -> dict[str, object]:
    """Return the object of ``--json``; what nobody measured is null."""
    usage = outcome.usage
    shown: dict[str, object] = {
        "id": outcome.receipt.id,
        "tier": outcome.receipt.tier,
        "backend": outcome.receipt.backend,
        "reason": outcome.reason,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
    }
    shown |= _output_fields("stdout", outcome.stdout)
    shown |= _output_fields("stderr", outcome.stderr)
    shown["truncated"] = outcome.truncated
    shown["usage"] = {
        "wall_seconds": usage.wall_seconds,
        "cpu_seconds": usage.cpu_seconds,
        "memory_peak_bytes": None,
        "oom_kills": None,
        "pids_refused": None,
        "stdout_bytes": usage.stdout_bytes,
        "stderr_bytes": usage.stderr_bytes,
    }
    shown["artifacts"] = []
    shown["receipt"] = outcome.receipt.to_dict()
    return shown


def receipt_table(receipt: Receipt) -> str:
    """Return the receipt as a short table: what was asked, what was seen or stands behind it.

    What belongs together and holds is one line; what does not hold or could not be compared has a
    line of its own. Everything in full is in the JSON.
    """
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for at, entry in enumerate(receipt.entries):
        alike = entry.holds or (entry.source == "engine" and entry.holds is None)
        name = _group_of(entry.field) if alike else at
        groups.setdefault((name, entry.source, entry.after_payload), []).append(entry)
    rows: list[tuple[str, ...]] = [("what", "asked", "seen, or by what means", "source", "holds")]
    rows += [_receipt_row(group) for group in groups.values()]
    compared = [entry for entry in receipt.entries if entry.holds is not None]
    held = sum(entry.holds is True for entry in compared)
    head = f"receipt {receipt.id} of {receipt.sandbox}: {receipt.tier} tier, {receipt.backend}\n"
    ended = "" if receipt.reason is None else f"; ended: {_end_words(receipt)}"
    return head + _table(rows) + f"{held} of {len(compared)} comparisons hold{ended}\n"


def _end_words(receipt: Receipt) -> str:
    number = receipt.exit_code if receipt.signal is None else receipt.signal
    return str(receipt.reason) if number is None else f"{receipt.reason} {number}"


def _group_of(field: str) -> str:
    for name, fields, prefix in _GROUPS:
        if field in fields or (prefix and field.startswith(prefix)):
            return name
    return field


def _receipt_row(group: list[Entry]) -> tuple[str, ...]:
    """Return the line of entries that go together: of one, or of several that all hold."""
    first = group[0]
    source = f"{first.source}, after payload" if first.after_payload else first.source
    verdict = {True: "ok", False: "DIFFERS", None: "-"}[first.holds]
    if len(group) == 1:
        asked, seen = _text(first.asked), _text(first.observed)
        if first.observed is None:
            seen = first.mechanism
        elif first.holds and seen == asked:
            seen = "the same"
        return (_cell(first.field), _cell(asked), _cell(seen), source, verdict)
    asked, seen = _summary(group)
    return (_group_of(first.field), _cell(asked), _cell(seen), source, verdict)


def _summary(group: list[Entry]) -> tuple[str, str]:
    """Return what was asked and seen of entries that all hold (or that the engine enforces)."""
    names = [entry.field.partition(".")[2] or entry.field for entry in group]
    if group[0].source == "engine":
        asked = [_text(entry.asked) for entry in group]
        return _named(names, asked), ", ".join(dict.fromkeys(entry.mechanism for entry in group))
    if all(entry.asked == group[0].asked for entry in group):
        return _text(group[0].asked), " ".join(names)
    return "as planned", _named(names, [_text(entry.observed) for entry in group])


def _named(names: list[str], values: list[str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))


def reports_table(reports: Sequence[Report]) -> str:
    """Return the backends as a table, and below it what would help where one is unusable."""
    rows: list[tuple[str, ...]] = [("tier", "backend", "status", "version", "reason")]
    for report in reports:
        cells = (report.tier, report.backend, report.status, report.version, report.reason)
        rows.append(tuple(_one_line(str(cell)) for cell in cells))
    hints = [
        f"{_one_line(report.backend)}: {_one_line(report.hint)}\n"
        for report in reports
        if report.hint
    ]
    return _table(rows) + ("\n" + "".join(hints) if hints else "")


def explanation_text(explanation: Explanation) -> str:
    """Return what a run would do: who does it, what enforces each field, every step."""
    lines = [f"tier     {explanation.tier}", f"backend  {explanation.backend}", ""]
    lines.append("what enforces each field")
    rows = [(f"  {field}", mechanism) for field, mechanism in explanation.mechanisms]
    lines += _table(rows).splitlines() if rows else ["  nothing"]
    lines += ["", "demands", "  " + (" ".join(explanation.demands) or "none")]
    lines += ["", "steps"]
    lines += [f"  {number:3}  {step}" for number, step in enumerate(explanation.steps, 1)]
    return "".join(_one_line(line) + "\n" for line in lines)


def _output_fields(name: str, content: bytes) -> dict[str, object]:
    """Text, and the bytes in base64 beside it where they are no UTF-8."""
    try:
        return {name: content.decode("utf-8")}
    except UnicodeDecodeError:
        from binascii import b2a_base64

        encoded = b2a_base64(content, newline=False).decode("ascii")
        return {name: content.decode("utf-8", "replace"), f"{name}_base64": encoded}


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return aligned columns, two blanks apart."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        value = " ".join(str(part) for part in value) or "none"
    if isinstance(value, bool):
        value = "yes" if value else "no"
    return "" if value is None else str(value)


def _cell(text: str) -> str:
    text = _one_line(text)
    return text if len(text) <= _WIDEST_CELL else text[: _WIDEST_CELL - 1] + "…"


def _one_line(text: str) -> str:
    """Return the text with nothing in it that steers a terminal.

    Names and paths in it were escaped where they were quoted; this is the second net, so
    backslashes stay as they are.
    """
    return "".join(c if c.isprintable() else escaped(c) for c in text)


def _clean(value: object) -> object:
    """Return a JSON-ready value without lone surrogates, which many readers refuse."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {str(_clean(str(key))): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value


def _wait_writable(descriptor: int, until: float | None = None) -> bool:
    """Wait, no longer than ``until``, and return whether it is writable or in error."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    left = None if until is None else max(0.0, until - time.monotonic()) * 1000
    return bool(poll.poll(left))
