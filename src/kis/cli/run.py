"""``kis sandbox run``: run one command and end as it ended.

Knows: the order of things around one run. Must not know: how anything is confined or printed.
Called by: cli.
"""

from __future__ import annotations

import os
import time

from kis.api import Engine
from kis.caller.config import Request, Settings, admit, read_settings
from kis.cli import render
from kis.cli.flags import RUN_FLAGS, flags_help, read_flags
from kis.cli.receiptfile import open_receipt_file
from kis.errors import Code, SandboxError
from kis.vocabulary import Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from kis.command import Outcome

EXIT_TIMED_OUT = 124
EXIT_KILLED = 137
# More than this comes only from a command that runs on in its grace, without a limit on output.
_MOST_HELD_BYTES = 64 << 20


def run(words: Sequence[str]) -> int:
    """Return the exit status of the command, or of what kis ended it for.

    Raises ``SandboxError`` for everything that is refused or that failed.
    """
    settings = settings_of(words, "run")
    if settings is None:
        return 0
    receipt_file = open_receipt_file(settings.receipt)
    engine = Engine()
    request = admit(settings, engine, os.environb)
    output = PassedOn(request.profile.limits.resolved_wall_seconds)
    outcome = _run(engine, request, settings, output)
    output.finish(ended_by_itself=outcome.reason in (Reason.EXITED, Reason.SIGNALED))
    if receipt_file is not None:
        receipt_file.write(outcome.receipt)
    if settings.json:
        render.write_json(render.outcome_object(outcome))
    render.write_ending(outcome, request.profile.limits)
    return _exit_status(outcome)


def settings_of(words: Sequence[str], verb: str) -> Settings | None:
    """Return the settings of a verb that takes a command, or ``None`` where help was wanted."""
    pairs, argv = read_flags(words, RUN_FLAGS)
    if any(name == "--help" for name, _ in pairs):
        usage = f"kis sandbox {verb} [FLAGS] [--] COMMAND…"
        render.write_text(render.STANDARD_OUTPUT, flags_help(usage, RUN_FLAGS))
        return None
    if not argv:
        raise SandboxError(
            Code.CONFIG_INVALID,
            "there is no command to run",
            f"kis sandbox {verb} [FLAGS] -- COMMAND…",
            {"field": "command"},
        )
    return read_settings(pairs, argv, os.environb)


def _run(engine: Engine, request: Request, settings: Settings, output: PassedOn) -> Outcome:
    """Run, with the payload's output passed on as it comes unless it is wanted as JSON."""
    live = not settings.json
    return engine.run(
        request.command,
        request.profile,
        request.base,
        tier=request.tier,
        backend=request.backend,
        on_stdout=output.to_standard_output if live else None,
        on_stderr=output.to_standard_error if live else None,
        stdin_fd=0 if settings.forward_stdin else None,
    )


class PassedOn:
    """The payload's output on its way out, as it comes.

    The engine cannot look at its clock while it waits here for our reader. So the wait ends with
    the run's wall time; what nobody read by then is held, and the engine does what is due.
    """

    def __init__(self, wall_seconds: float | None) -> None:
        self._until = None if wall_seconds is None else time.monotonic() + wall_seconds
        self._held: dict[int, bytearray] = {}  # one each: a byte at a time must not cost more
        self._closed = False

    def to_standard_output(self, chunk: bytes) -> None:
        self._pass_on(render.STANDARD_OUTPUT, chunk)

    def to_standard_error(self, chunk: bytes) -> None:
        self._pass_on(render.STANDARD_ERROR, chunk)

    def _pass_on(self, descriptor: int, chunk: bytes) -> None:
        if self._closed:  # the engine is killing the sandbox for that
            return
        rest = memoryview(chunk)
        if descriptor not in self._held:
            try:
                rest = render.write_bytes(descriptor, rest, self._until)
            except BaseException:
                self._closed = True
                raise
        if rest and sum(map(len, self._held.values())) < _MOST_HELD_BYTES:
            self._held.setdefault(descriptor, bytearray()).extend(rest)

    def finish(self, *, ended_by_itself: bool) -> None:
        """Write what is held: all of it, or of a command that was ended what is taken at once."""
        until = None if ended_by_itself else self._until
        for descriptor, held in self._held.items():
            render.write_bytes(descriptor, memoryview(held), until)


def _exit_status(outcome: Outcome) -> int:
    if outcome.reason is Reason.EXITED:
        return outcome.exit_code or 0
    if outcome.reason is Reason.SIGNALED:
        return 128 + (outcome.signal or 0)
    return EXIT_TIMED_OUT if outcome.reason is Reason.TIMED_OUT else EXIT_KILLED
