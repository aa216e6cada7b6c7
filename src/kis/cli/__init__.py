"""The command line: words in, exit status out.

Knows: the verbs and what an exit status means. Must not know: what a verb does; each has a file
that is imported only when it is called. Called by: the ``kis`` script and ``python -m kis``.
"""

from __future__ import annotations

import os
import sys

from kis.cli import render
from kis.errors import Code, SandboxError, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_REFUSED = 125
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
EXIT_SIGNALED = 128

_HELP = """\
usage: kis sandbox run [FLAGS] [--] COMMAND…       run a command inside a boundary
       kis sandbox explain [FLAGS] [--] COMMAND…   show what run would do, run nothing
       kis sandbox backends [--json]               show what this machine can do
       kis --version

kis sandbox run --help lists the flags. Exit status: the command's own; 124 timed out;
125 kis refused or failed; 126 not executable; 127 not found; 128+n ended by signal n;
137 with a line on standard error: out of memory, output limit, killed.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status; never raises.

    Without a verb the help goes to standard error and the status is 125: a script that lost its
    arguments must not look like one that succeeded. With ``argv`` unsaid this is the whole
    process, and it ends here.
    """
    if argv is None:
        # Everything has ended and is written by now, by write(2). Taking the interpreter down
        # module by module would add a tenth to the time of a run.
        os._exit(_status(sys.argv[1:]))
    return _status(argv)


def _status(argv: Sequence[str]) -> int:
    _fill_standard_descriptors()
    # Bytes as they came, whatever the locale made of them.
    words = [os.fsencode(word).decode("utf-8", "surrogateescape") for word in argv]
    try:
        return _guarded(words)
    except render.OutputClosed:
        return EXIT_SIGNALED + 13
    except SandboxError:
        # Printing failed and so would printing that.
        return EXIT_REFUSED


def _guarded(words: Sequence[str]) -> int:
    """Dispatch, and turn every exception into a line and a status."""
    try:
        return _dispatch(words)
    except SandboxError as error:
        found = error
    except render.OutputClosed:
        raise
    except KeyboardInterrupt:
        return EXIT_SIGNALED + 2
    except Exception as error:  # noqa: BLE001 (a traceback and status 1 would look like the payload)
        found = _invariant_failed(error)
    render.write_error(found, _wants_json(words))
    return {
        Code.EXEC_MISSING: EXIT_NOT_FOUND,
        Code.EXEC_FORBIDDEN: EXIT_NOT_EXECUTABLE,
    }.get(found.code, EXIT_REFUSED)


def _dispatch(words: Sequence[str]) -> int:
    first = words[0] if words else ""
    if first in ("-h", "--help", "help"):
        render.write_text(render.STANDARD_OUTPUT, _HELP)
        return 0
    if first in ("-V", "--version"):
        from kis import __version__

        render.write_text(render.STANDARD_OUTPUT, f"kis {__version__}\n")
        return 0
    if first != "sandbox":
        return _no_verb(first, ("sandbox",))
    verb = words[1] if len(words) > 1 else ""
    if verb == "run":
        from kis.cli.run import run

        return run(words[2:])
    if verb == "explain":
        from kis.cli.explain import explain

        return explain(words[2:])
    if verb == "backends":
        from kis.cli.backends import backends

        return backends(words[2:])
    if verb in ("-h", "--help"):
        render.write_text(render.STANDARD_OUTPUT, _HELP)
        return 0
    return _no_verb(verb, ("run", "explain", "backends"))


def _no_verb(word: str, known: Sequence[str]) -> int:
    if word:
        raise SandboxError(
            Code.CONFIG_INVALID,
            f"unknown verb {quoted(word)}",
            f"Known: {' '.join(known)}.",
            {"field": "verb"},
        )
    render.write_text(render.STANDARD_ERROR, _HELP)
    return EXIT_REFUSED


def _wants_json(words: Sequence[str]) -> bool:
    """Whether ``--json`` stands among the flags, as far as flags that may be wrong can tell."""
    from kis.cli.flags import RUN_FLAGS, leading_words

    return "--json" in leading_words(words[2:], RUN_FLAGS)


def _invariant_failed(error: Exception) -> SandboxError:
    """Return our own mistake as an error: its kind and place, never its words or values."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return SandboxError(
        Code.INVARIANT_FAILED,
        f"unexpected {type(error).__name__}{place}",
        "This is a mistake in kis; please report it with this line.",
    )


def _fill_standard_descriptors() -> None:
    """Open ``/dev/null`` where 0 to 2 are closed.

    Else the next descriptor that we open gets that number, and output meant for a closed
    standard output is written into it.
    """
    while (descriptor := os.open("/dev/null", os.O_RDWR)) <= render.STANDARD_ERROR:
        # Kept open without the close-on-exec that Python sets: it stands for an inherited one.
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
