"""From flags and files to what the engine takes.

Knows: every setting, its flag, its key, which one wins. Must not know: how any is enforced, or
how anything is printed. Called by: cli. The caller's environment is handed in, not read.
"""

from __future__ import annotations

from kis.caller.bases import resolve_base
from kis.caller.files import config_invalid, nearest_hint, one_of, read_named_file
from kis.caller.mountspec import (
    MountSpec,
    admitted,
    either_mount,
    open_path,
    short_mount,
)
from kis.command import Command
from kis.errors import Code, SandboxError, quoted
from kis.frozen import Frozen
from kis.limits import Limits
from kis.profile import (
    MAX_SECRET_BYTES,
    Device,
    EscapeHatch,
    Mount,
    NetworkPolicy,
    Profile,
    Secret,
    Tmpfs,
)
from kis.vocabulary import UNLIMITED, NetworkMode, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from kis.engine.engine import Engine
    from kis.identity import Base

    Made = TypeVar("Made")

_MAX_ENV_FILE_BYTES = 1 << 20
_LIFTED_FIELD = {
    "open-files": "open_files",
    "timeout": "wall_seconds",
    "wall": "wall_seconds",
    "output": "output_bytes",
}


class Request(Frozen):
    """Everything that ``Engine.run`` and ``Engine.explain`` take, admitted and checked."""

    __slots__ = ("backend", "base", "command", "profile", "tier")
    command: Command
    profile: Profile
    base: Base
    tier: Tier | None
    backend: str | None

    def __init__(
        self,
        command: Command,
        profile: Profile,
        base: Base,
        tier: Tier | None,
        backend: str | None,
    ) -> None:
        self._set("command", command, "profile", profile, "base", base)
        self._set("tier", tier, "backend", backend)


class Settings:
    """What flags and file said, before anything was opened. Later words win over earlier ones.

    Repeatable settings add up; of two with the same target or name the later one wins.
    """

    __slots__ = (
        "allow",
        "argv",
        "backend",
        "base",
        "capabilities",
        "cwd",
        "devices",
        "env",
        "forward_stdin",
        "hatches",
        "json",
        "limits",
        "merge_stderr",
        "mounts",
        "network_mode",
        "receipt",
        "secrets",
        "tier",
        "tmpfs",
        "user",
        "writable_root",
    )

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = tuple(_encoded(word) for word in argv)
        self.tier: Tier | None = None
        self.backend: str | None = None
        self.base = b"host"
        self.network_mode: str | None = None
        self.allow: list[str] = []
        self.mounts: dict[bytes, MountSpec] = {}
        self.tmpfs: dict[bytes, None] = {}
        self.devices: dict[bytes, None] = {}
        self.secrets: dict[str, bytes] = {}
        self.env: dict[bytes, bytes] = {}
        self.cwd: bytes | None = None
        self.user: str | int | None = None
        self.capabilities: list[str] = []
        self.limits: dict[str, object] = {}
        self.writable_root = False
        self.hatches: dict[str, bool] = {}
        self.merge_stderr = False
        self.forward_stdin = False
        self.json = False
        self.receipt: bytes | None = None

    def mount(self, spec: MountSpec) -> None:
        """Add a mount, instead of an earlier one at the same target."""
        self.mounts[spec.target] = spec

    def limit(self, name: str, value: object, said_by: str) -> None:
        """Set a limit, checked now, so that the error can name the flag or key."""
        translated(said_by, lambda: Limits(**{name: value}))  # type: ignore[arg-type]
        self.limits[name] = value

    def lift(self, names: Sequence[str], said_by: str) -> None:
        """Lift limits by name."""
        for name in names:
            field = _LIFTED_FIELD.get(name.replace("_", "-"))
            if field is None:
                hint = nearest_hint(name, _LIFTED_FIELD)
                raise config_invalid(
                    said_by, f"{quoted(name)} is no limit that can be lifted", hint
                )
            self.limits[field] = UNLIMITED

    def variable(self, text: str, environ: Mapping[bytes, bytes], said_by: str) -> None:
        """Add ``NAME=VALUE``, or the caller's own value of ``NAME``."""
        name, equals, value = _encoded(text).partition(b"=")
        if not name:
            raise config_invalid(said_by, "the name of a variable is empty")
        if not equals:
            if name not in environ:
                raise config_invalid(said_by, f"{quoted(name)} is not set in kis's environment")
            value = environ[name]
        self.env[name] = value


def read_settings(
    pairs: Sequence[tuple[str, str]], argv: Sequence[str], environ: Mapping[bytes, bytes]
) -> Settings:
    """Return the settings of a command line: first its profile file, then its flags.

    Texts hold bytes that are no UTF-8 as surrogates. Raises ``config_invalid``.
    """
    settings = Settings(argv)
    files = [value for name, value in pairs if name == "--profile"]
    if files:
        from kis.caller.profilefile import apply_profile_file

        apply_profile_file(settings, _encoded(files[-1]))
    # Files of variables come before single variables, wherever they stand on the line.
    for name, value in sorted(pairs, key=lambda pair: pair[0] == "--env"):
        if name != "--profile":
            _APPLY[name](settings, value, environ)
    return settings


def admit(settings: Settings, engine: Engine, environ: Mapping[bytes, bytes]) -> Request:
    """Open everything that the settings name and have the engine admit it.

    Raises ``mount_invalid``, ``base_invalid``, ``command_invalid``, ``config_invalid``.
    """
    command = Command(
        settings.argv,
        env=tuple(settings.env.items()),
        cwd=settings.cwd,
        user=settings.user,
        stderr="merged" if settings.merge_stderr else "separate",
    )
    network = translated("--allow", lambda: NetworkPolicy(settings.network_mode, settings.allow))
    profile = Profile(
        network=network,
        tmpfs=[Tmpfs(target) for target in settings.tmpfs],
        capabilities=settings.capabilities,
        limits=Limits(**settings.limits),  # type: ignore[arg-type]
        writable_root=settings.writable_root,
        escape_hatch=EscapeHatch(**settings.hatches),
    )
    profile = profile.replace(
        mounts=[_admit_mount(spec, engine) for spec in settings.mounts.values()],
        devices=[_admit_device(path, engine) for path in settings.devices],
        secrets=[_read_secret(name, path) for name, path in settings.secrets.items()],
    )
    base = resolve_base(settings.base, engine, environ)
    return Request(command, profile, base, settings.tier, settings.backend)


def translated(said_by: str, make: Callable[[], Made]) -> Made:
    """Make a part of the profile; what is invalid is the flag's or the key's fault."""
    try:
        return make()
    except SandboxError as error:
        if error.code is not Code.PROFILE_INVALID:
            raise
        what = error.message.removeprefix(f"{error.details.get('field')} ")
        raise config_invalid(said_by, what, error.hint) from None


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _admit_mount(spec: MountSpec, engine: Engine) -> Mount:
    source = admitted(open_path(spec.source, "mount source"), engine.admit_mount)
    return Mount(source, spec.target, spec.mode, spec.owner)


def _admit_device(path: bytes, engine: Engine) -> Device:
    return Device(admitted(open_path(path, "device"), engine.admit_device))


def _read_secret(name: str, path: bytes) -> Secret:
    content = read_named_file(path, MAX_SECRET_BYTES, f"secret {quoted(name)}")
    return translated("--secret", lambda: Secret(name, content))


def _set_secret(settings: Settings, text: str) -> None:
    name, _, path = text.partition("=")
    if not name or not path.startswith("@") or len(path) == 1:
        # Not shown: somebody may have written the secret itself here.
        raise config_invalid("--secret", "must be NAME=@FILE")
    settings.secrets[name] = _encoded(path[1:])


def _set_variables(settings: Settings, path: str, environ: Mapping[bytes, bytes]) -> None:
    """Add the variables of a file. A line that is wrong may be part of a secret: it is counted."""
    content = read_named_file(_encoded(path), _MAX_ENV_FILE_BYTES, "--env-file")
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip() or line.startswith(b"#"):
            continue
        place = f"line {number} of {quoted(_encoded(path))}"
        name, equals, value = line.partition(b"=")
        if not (name.isascii() and name.decode("ascii").isidentifier()):
            raise config_invalid(
                "--env-file",
                f"{place} is neither NAME=VALUE nor NAME",
                "A name in a file is made of letters, digits and _, and starts with no digit.",
            )
        if not equals and name not in environ:
            raise config_invalid("--env-file", f"{place}: not set in kis's environment")
        settings.env[name] = value if equals else environ[name]


def _set_open_files(settings: Settings, text: str) -> None:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise config_invalid("--open-files", "must be a whole number of at most nine digits")
    settings.limit("open_files", int(text), "--open-files")


def _set_hatch(settings: Settings, name: str) -> None:
    settings.hatches[name] = True


_APPLY: dict[str, Callable[[Settings, str, Mapping[bytes, bytes]], None]] = {
    "--tier": lambda s, v, _: setattr(s, "tier", Tier(one_of(v, Tier, "--tier"))),
    "--backend": lambda s, v, _: setattr(s, "backend", v),
    "--base": lambda s, v, _: setattr(s, "base", _encoded(v)),
    "--net": lambda s, v, _: setattr(s, "network_mode", one_of(v, NetworkMode, "--net")),
    "--allow": lambda s, v, _: s.allow.append(v),
    "-v": lambda s, v, _: s.mount(short_mount(v, "-v")),
    "--mount": lambda s, v, _: s.mount(either_mount(v, "--mount")),
    "--tmpfs": lambda s, v, _: s.tmpfs.update({_encoded(v): None}),
    "--env": lambda s, v, environ: s.variable(v, environ, "--env"),
    "--env-file": _set_variables,
    "--secret": lambda s, v, _: _set_secret(s, v),
    "--cwd": lambda s, v, _: setattr(s, "cwd", _encoded(v)),
    "--user": lambda s, v, _: setattr(s, "user", v),
    "-i": lambda s, _v, _e: setattr(s, "forward_stdin", True),
    "--cap": lambda s, v, _: s.capabilities.append(v),
    "--device": lambda s, v, _: s.devices.update({_encoded(v): None}),
    "--open-files": lambda s, v, _: _set_open_files(s, v),
    "--timeout": lambda s, v, _: s.limit("wall_seconds", v, "--timeout"),
    "--grace": lambda s, v, _: s.limit("grace_seconds", v, "--grace"),
    "--output-limit": lambda s, v, _: s.limit("output_bytes", v, "--output-limit"),
    "--unlimited": lambda s, v, _: s.lift(v.split(","), "--unlimited"),
    "--merge-stderr": lambda s, _v, _e: setattr(s, "merge_stderr", True),
    "--writable-root": lambda s, _v, _e: setattr(s, "writable_root", True),
    "--receipt": lambda s, v, _: setattr(s, "receipt", _encoded(v)),
    "--json": lambda s, _v, _e: setattr(s, "json", True),
    "--allow-process-tier": lambda s, _v, _e: _set_hatch(s, "allow_process_tier"),
    "--allow-net-host": lambda s, _v, _e: _set_hatch(s, "allow_net_host"),
    "--allow-emulation": lambda s, _v, _e: _set_hatch(s, "allow_emulation"),
}
