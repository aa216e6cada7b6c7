"""Which file system a payload sees, by the name that a user gives it.

Knows: ``host``, ``python``, and directories. Must not know: how a base is mounted.
Called by: config.
"""

from __future__ import annotations

import os
import sys

from kis.caller.mountspec import admitted
from kis.command import Command
from kis.errors import Code, SandboxError, os_reason, quoted
from kis.frozen import Frozen
from kis.limits import Limits
from kis.profile import EscapeHatch, Profile
from kis.vocabulary import Reason, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from kis.engine.engine import Engine
    from kis.identity import Base

NAMED_BASES = ("host", "python")

# What an interpreter says of itself, each ended by a NUL because a path can hold anything else.
_QUESTION = (
    "import os, sys; sys.stdout.buffer.write(b''.join(os.fsencode(p) + b'\\0' for p in"
    " (sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)))"
)


class Interpreter(Frozen):
    """A Python: the directory its program is in, and the trees it needs; absolute paths."""

    __slots__ = ("directory", "prefixes")
    directory: bytes
    prefixes: tuple[bytes, ...]

    def __init__(self, executable: bytes, prefixes: tuple[bytes, ...]) -> None:
        self._set("directory", os.path.dirname(executable), "prefixes", prefixes)


def resolve_base(name: bytes, engine: Engine, environ: Mapping[bytes, bytes]) -> Base:
    """Return the admitted base: ``host``, ``python``, or the directory of that path.

    A directory that is called like a named base is written ``./host``. Raises ``base_invalid``.
    """
    if name == b"host":
        return engine.admit_host_base()
    if name == b"python":
        interpreter = find_interpreter(engine, environ)
        return _admit_trees(interpreter_trees(interpreter), interpreter.directory, engine)
    return admitted(_open_directory(name), engine.admit_directory)


def interpreter_trees(interpreter: Interpreter) -> tuple[bytes, ...]:
    """Return the directories outside ``/usr`` that the interpreter needs, none below another.

    A prefix that is reached through a link appears at both of its paths: the interpreter was
    configured with one, and its own links may lead to the other.
    """
    wanted: set[bytes] = set()
    for prefix in interpreter.prefixes:
        wanted |= {os.path.normpath(prefix), os.path.realpath(prefix)}
    if b"/" in wanted:
        raise _invalid("the interpreter's prefix is the whole file system")
    outside = [path for path in wanted if not _is_below(path, b"/usr")]
    return tuple(
        sorted(
            path
            for path in outside
            if not any(path != other and _is_below(path, other) for other in outside)
        )
    )


def find_interpreter(engine: Engine, environ: Mapping[bytes, bytes]) -> Interpreter:
    """Return the first ``python3`` of the caller's PATH, shims followed.

    The interpreter that runs kis answers for itself; any other is asked, by running it as the
    caller would: unconfined, with the caller's environment. A shim cannot be followed otherwise.
    """
    for directory in environ.get(b"PATH", b"").split(b":"):
        program = os.path.join(directory, b"python3")
        if os.path.isabs(directory) and os.path.isfile(program) and os.access(program, os.X_OK):
            if directory == os.path.dirname(os.fsencode(sys.executable)):
                return _this_interpreter()
            return _ask(program, engine, environ)
    raise _invalid("there is no python3 on PATH")


def _this_interpreter() -> Interpreter:
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    return Interpreter(os.fsencode(sys.executable), tuple(map(os.fsencode, prefixes)))


def _ask(program: bytes, engine: Engine, environ: Mapping[bytes, bytes]) -> Interpreter:
    question = Command(
        [program, "-I", "-c", _QUESTION], env=tuple(environ.items()), cwd=os.getcwdb()
    )
    profile = Profile(
        limits=Limits(wall_seconds=10, output_bytes="64KiB"),
        escape_hatch=EscapeHatch(allow_process_tier=True),
    )
    with engine.admit_host_base() as base:
        answer = engine.run(question, profile, base, tier=Tier.PROCESS)
    paths = answer.stdout.split(b"\0")
    if answer.reason is not Reason.EXITED or answer.exit_code != 0 or len(paths) != 6:
        raise _invalid(f"{quoted(program)} does not answer as a Python interpreter")
    if not all(os.path.isabs(path) for path in paths[:5]):
        raise _invalid(f"{quoted(program)} does not know where it is installed")
    return Interpreter(paths[0], tuple(paths[1:5]))


def _admit_trees(paths: tuple[bytes, ...], directory: bytes, engine: Engine) -> Base:
    trees: list[tuple[int, bytes]] = []
    try:
        for path in paths:
            trees.append((_open_directory(path), path))
        return engine.admit_host_base(trees, path_entries=(directory,))
    finally:
        for descriptor, _ in trees:
            os.close(descriptor)


def _is_below(path: bytes, directory: bytes) -> bool:
    return path == directory or path.startswith(directory.rstrip(b"/") + b"/")


def _open_directory(path: bytes) -> int:
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else "a NUL in the path"
        raise _invalid(f"base {quoted(path)} cannot be opened: {reason}") from error


def _invalid(what: str) -> SandboxError:
    return SandboxError(Code.BASE_INVALID, what, details={"field": "base"})
