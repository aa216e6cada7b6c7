"""What to run, and what came of it.

Knows: the shape and bounds of a command, an outcome, its usage. Must not know: where it runs.
Called by: caller (makes commands), engine (runs them, makes outcomes).
"""

from __future__ import annotations

from kis.errors import Code, SandboxError
from kis.frozen import Frozen
from kis.vocabulary import DEFAULT_USER_ID, FOREIGN_IDS, USER_IDS, Demand, Reason, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from kis.receipt import Receipt

# execve(2): one string may take 32 pages with its NUL; all of them, with their pointers, at most
# three quarters of the 8 MiB stack that the kernel presumes, whatever RLIMIT_STACK says.
MAX_ARGUMENT_BYTES = 131071
MAX_TOTAL_BYTES = 6 << 20
_POINTER_BYTES = 8
_MAX_CWD_BYTES = 4095


class Command(Frozen):
    """A program with its arguments and surroundings; bytes throughout, as the kernel sees them.

    ``env`` is added to the base's default environment and kept in order; ``cwd`` is absolute or
    relative to HOME; ``user`` is ``(uid, gid)`` inside, ``None`` for the default user. ``stdin``
    is the whole input (``None``: empty). ``repr`` shows neither environment nor input.

    Raises ``command_invalid`` or ``argument_too_long`` naming the field, never its value.
    """

    __slots__ = ("argv", "cwd", "env", "stderr", "stdin", "user")
    _hidden = frozenset({"env", "stdin"})
    argv: tuple[bytes, ...]
    env: tuple[tuple[bytes, bytes], ...]
    cwd: bytes | None
    user: tuple[int, int] | None
    stdin: bytes | None
    stderr: Literal["separate", "merged"]

    def __init__(
        self,
        argv: Sequence[str | bytes],
        env: Mapping[str, str]
        | Mapping[bytes, bytes]
        | Sequence[tuple[str | bytes, str | bytes]]
        | None = None,
        cwd: str | bytes | None = None,
        user: str | int | tuple[int, int] | None = None,
        stdin: bytes | None = None,
        stderr: Literal["separate", "merged"] = "separate",
    ) -> None:
        if stdin is not None and not isinstance(stdin, bytes):
            raise _invalid("stdin", "must be bytes")
        if stderr not in ("separate", "merged"):
            raise _invalid("stderr", "must be separate or merged")
        arguments, variables = _arguments(argv), _environment(env)
        _refuse_too_long(arguments, variables)
        self._set("argv", arguments, "env", variables, "cwd", _directory(cwd))
        self._set("user", _user(user), "stdin", stdin, "stderr", stderr)

    @property
    def uid(self) -> int:
        """Id inside the sandbox."""
        return DEFAULT_USER_ID if self.user is None else self.user[0]

    @property
    def gid(self) -> int:
        """Group id inside the sandbox."""
        return DEFAULT_USER_ID if self.user is None else self.user[1]

    @property
    def merged(self) -> bool:
        """Whether standard error goes where standard output goes, in the order of writing."""
        return self.stderr == "merged"

    def demands(self, tier: Tier) -> frozenset[Demand]:
        """Return what the command itself relies on: to run as somebody else than the default.

        In the process tier the default is the caller, so any named user is somebody else.
        """
        default = None if tier is Tier.PROCESS else (DEFAULT_USER_ID, DEFAULT_USER_ID)
        other = self.user is not None and self.user != default
        return frozenset({Demand.OTHER_USER}) if other else frozenset()


class Usage(Frozen):
    """What a command used: seconds and bytes. ``None`` where the backend cannot tell."""

    __slots__ = ("cpu_seconds", "max_rss_bytes", "stderr_bytes", "stdout_bytes", "wall_seconds")
    wall_seconds: float
    cpu_seconds: float | None
    max_rss_bytes: int | None
    stdout_bytes: int
    stderr_bytes: int

    def __init__(
        self,
        wall_seconds: float = 0.0,
        cpu_seconds: float | None = None,
        max_rss_bytes: int | None = None,
        stdout_bytes: int = 0,
        stderr_bytes: int = 0,
    ) -> None:
        self._set("wall_seconds", wall_seconds, "cpu_seconds", cpu_seconds)
        self._set("max_rss_bytes", max_rss_bytes)
        self._set("stdout_bytes", stdout_bytes, "stderr_bytes", stderr_bytes)


class Outcome(Frozen):
    """How a command ended. A failing program is data; only ``check`` raises.

    ``exit_code`` is set where ``reason`` is ``exited``, ``signal`` where a signal ended it.
    ``truncated`` says that output beyond the limit was dropped.
    """

    __slots__ = (
        "exit_code",
        "reason",
        "receipt",
        "signal",
        "stderr",
        "stdout",
        "truncated",
        "usage",
    )
    stdout: bytes
    stderr: bytes
    reason: Reason
    exit_code: int | None
    signal: int | None
    truncated: bool
    usage: Usage
    receipt: Receipt

    def __init__(
        self,
        stdout: bytes,
        stderr: bytes,
        reason: Reason,
        exit_code: int | None,
        signal: int | None,
        truncated: bool,
        usage: Usage,
        receipt: Receipt,
    ) -> None:
        self._set("stdout", stdout, "stderr", stderr, "reason", reason)
        self._set("exit_code", exit_code, "signal", signal, "truncated", truncated)
        self._set("usage", usage, "receipt", receipt)

    def text(self) -> str:
        """Return standard output as text; bytes that are no UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    def check(self) -> Outcome:
        """Return this outcome if the command exited with 0, else raise ``CommandFailed``."""
        if self.reason is not Reason.EXITED or self.exit_code != 0:
            raise CommandFailed(self)
        return self


class CommandFailed(Exception):  # noqa: N818 (it is no error of ours)
    """``Outcome.check`` found another end than exit code 0; ``outcome`` has all of it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome

    def __str__(self) -> str:
        end = self.outcome
        if end.reason is Reason.EXITED:
            return f"the command exited with {end.exit_code}"
        by_signal = "" if end.signal is None else f" (signal {end.signal})"
        return f"the command ended: {end.reason}{by_signal}"


def _invalid(field: str, what: str) -> SandboxError:
    return SandboxError(Code.COMMAND_INVALID, f"{field} {what}", details={"field": field})


def _encoded(value: object, field: str) -> bytes:
    # As os.fsencode on Linux; a lone surrogate that stands for no byte has no encoding.
    if isinstance(value, str):
        try:
            value = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise _invalid(field, "holds a lone surrogate") from None
    if not isinstance(value, bytes):
        raise _invalid(field, "must be text or bytes")
    if b"\0" in value:
        raise _invalid(field, "must not hold a NUL")
    return value


def _arguments(argv: object) -> tuple[bytes, ...]:
    if not isinstance(argv, (list, tuple)):
        raise _invalid("argv", "must be a list or tuple of arguments")
    arguments = tuple(_encoded(value, f"argv[{at}]") for at, value in enumerate(argv))
    if not arguments:
        raise _invalid("argv", "must hold at least the program")
    if not arguments[0]:
        raise _invalid("argv[0]", "must not be empty")
    return arguments


def _environment(env: object) -> tuple[tuple[bytes, bytes], ...]:
    items = list(env.items()) if hasattr(env, "items") else env or ()
    if not isinstance(items, (list, tuple)):
        raise _invalid("env", "must be a mapping of names to values")
    variables: dict[bytes, bytes] = {}
    for at, (name, value) in enumerate(items):
        field = f"env[{at}]"
        key = _encoded(name, f"{field} name")
        if not key:
            raise _invalid(f"{field} name", "must not be empty")
        if b"=" in key:
            raise _invalid(f"{field} name", "must not hold '='")
        variables[key] = _encoded(value, f"{field} value")
    return tuple(variables.items())


def _refuse_too_long(argv: tuple[bytes, ...], env: tuple[tuple[bytes, bytes], ...]) -> None:
    sizes = {f"argv[{at}]": len(value) for at, value in enumerate(argv)}
    sizes.update({f"env[{at}]": len(k) + 1 + len(v) for at, (k, v) in enumerate(env)})
    for field, size in sizes.items():
        if size > MAX_ARGUMENT_BYTES:
            raise SandboxError(
                Code.ARGUMENT_TOO_LONG,
                f"{field} has {size} bytes, the kernel takes {MAX_ARGUMENT_BYTES}",
                "Pass it by standard input or in a mounted file.",
                {"field": field, "bytes": size, "most_bytes": MAX_ARGUMENT_BYTES},
            )
    total = sum(sizes.values()) + len(sizes) * (1 + _POINTER_BYTES)
    if total > MAX_TOTAL_BYTES:
        raise SandboxError(
            Code.ARGUMENT_TOO_LONG,
            f"argv and env have {total} bytes together, the kernel takes {MAX_TOTAL_BYTES}",
            "Pass them by standard input or in a mounted file.",
            {"field": "argv", "bytes": total, "most_bytes": MAX_TOTAL_BYTES},
        )


def _directory(cwd: object) -> bytes | None:
    if cwd is None:
        return None
    path = _encoded(cwd, "cwd")
    if not path:
        raise _invalid("cwd", "must not be empty")
    if len(path) > _MAX_CWD_BYTES:
        raise _invalid("cwd", f"must be at most {_MAX_CWD_BYTES} bytes")
    return path


def _user(user: object) -> tuple[int, int] | None:
    if user is None:
        return None
    numbers: list[object] = [user]
    if isinstance(user, str):
        numbers = [USER_IDS.get(user, _number(user))]
        if ":" in user:
            numbers = [_number(part) for part in user.split(":")]
    elif isinstance(user, tuple):
        numbers = list(user)
    if len(numbers) == 1:
        numbers *= 2
    if len(numbers) != 2:
        raise _invalid("user", "must be user, root, nobody, or UID[:GID]")
    return _checked_id(numbers[0]), _checked_id(numbers[1])


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _checked_id(number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        raise _invalid("user", "must be user, root, nobody, or UID[:GID]")
    if not (0 <= number < FOREIGN_IDS.start or number == USER_IDS["nobody"]):
        raise _invalid("user", f"must be 0 to {FOREIGN_IDS.start - 1}, or {USER_IDS['nobody']}")
    return number
