"""A command on its way in, and its outcome on the way out; the same for both drivers.

Knows: commands, plans, runs, receipts. Must not know: how one waits in between.
Called by: sandbox, aio.
"""

from __future__ import annotations

from kis.command import Outcome, Usage
from kis.engine import blob, channel, life
from kis.engine.life import Run
from kis.engine.link import Link
from kis.engine.readback import Expected, shown
from kis.engine.streams import Streams
from kis.errors import Code, SandboxError, os_reason
from kis.identity import mint
from kis.receipt import Entry, Receipt
from kis.vocabulary import USER_IDS, MountMode, Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kis.command import Command
    from kis.engine.backend import Plan
    from kis.engine.life import Sink
    from kis.engine.readback import Check
    from kis.profile import Profile

_UMASK = 0o022
_MAX_REPORTED_NAMES_BYTES = 32_768
_USER_NAMES = {number: name.encode() for name, number in USER_IDS.items()}


class Exchange:
    """One command in one sandbox: begun with ``begin``, concluded with ``outcome``."""

    def __init__(
        self,
        link: Link,
        profile: Profile,
        command: Command,
        *,
        sandbox: str,
        sinks: tuple[Sink | None, Sink | None] = (None, None),
        stdin_fd: int | None = None,
    ) -> None:
        limits = profile.limits
        self.link = link
        self.profile = profile
        self.command = command
        self.sandbox = sandbox
        self.sinks = sinks
        self.stdin_fd = stdin_fd
        self.number = link.life.commands + 1
        self.run = Run(
            self.number,
            wall_seconds=limits.resolved_wall_seconds,
            grace_seconds=limits.resolved_grace_seconds,
            output_bytes=limits.resolved_output_bytes,
            sinks=sinks,
        )
        self.variables = variables(link.plan, command)
        self.cwd = working_directory(link.plan, command)

    def begin(self) -> None:
        """Make the pipes and send the command; it waits inside until it was looked at."""
        link, command = self.link, self.command
        plan = link.plan
        try:
            streams = Streams(
                merged=command.merged,
                stdin=command.stdin,
                source=self.stdin_fd,
                owner=self._owner(),
            )
        except OSError as error:
            raise SandboxError(
                Code.SETUP_FAILED,
                f"the command's pipes cannot be made: {os_reason(error)}",
                "Is the limit on open files (ulimit -n) reached?",
                {"step": "streams"},
            ) from error
        names = tuple(name for name, _ in self.variables)
        reported = sum(map(len, names)) + 4 * len(names) <= _MAX_REPORTED_NAMES_BYTES
        expected = Expected(
            command.uid, command.gid, streams.inodes, names if reported else None, self.cwd
        )
        link.begin(self.run, self._packets(plan, reported), streams, expected)

    def _packets(self, plan: Plan, reported: bool) -> list[bytes]:
        command = self.command
        same = channel.UNCHANGED_ID
        return channel.encode_exec(
            self.number,
            uid=command.uid if plan.confined else same,
            gid=command.gid if plan.confined else same,
            capabilities=plan.capability_mask(),
            flags=channel.NEW_SESSION | (channel.REPORT_NAMES if reported else 0),
            umask=_UMASK,
            cwd=self.cwd,
            argv=command.argv,
            environment=[name + b"=" + value for name, value in self.variables],
            limits=plan.limits,
            last=self.link.life.one_shot,
        )

    def _owner(self) -> tuple[int, int] | None:
        """Whose the pipes must be, so that the payload can open ``/dev/stdout`` by its name."""
        plan, command = self.link.plan, self.command
        if not plan.mode & blob.PRIVILEGED:
            return None
        uid = plan.outside(blob.UID_MAP, command.uid)
        gid = plan.outside(blob.GID_MAP, command.gid)
        return None if uid is None or gid is None else (uid, gid)

    def outcome(self) -> Outcome:
        """Return how the command ended. Raises ``SandboxError`` where a promise was not kept."""
        run = self.run
        if self.link.life.failure is not None:
            raise self.link.life.failure
        if run.failure is not None:
            raise run.failure
        if run.failed is not None:
            raise life.exec_error(run.failed, self.command.argv[0], self.cwd)
        if run.reason is None and run.exited is None:
            raise SandboxError(
                Code.AGENT_UNREACHABLE,
                "the sandbox died under its command",
                "Something on the host killed it: the kernel's out-of-memory killer, or a person.",
            )
        exited = run.exited
        code, signal = (None, None) if exited is None else (exited.code, exited.signal)
        reason = run.reason or (Reason.EXITED if signal is None else Reason.SIGNALED)
        return Outcome(
            bytes(run.kept[life.STDOUT]),
            bytes(run.kept[life.STDERR]),
            reason,
            code,
            signal,
            run.truncated,
            self._usage(),
            self.receipt(reason, code, signal),
        )

    def _usage(self) -> Usage:
        run, exited = self.run, self.run.exited
        started, ended = run.started_at, run.ended_at
        return Usage(
            0.0 if started is None or ended is None else ended - started,
            None if exited is None else (exited.user_us + exited.system_us) / 1e6,
            None if exited is None else exited.peak_rss_kib * 1024,
            run.counts[life.STDOUT],
            run.counts[life.STDERR],
        )

    def receipt(self, reason: Reason, exit_code: int | None, signal: int | None) -> Receipt:
        """Return what was asked, which mechanism enforces it, what was seen, and the end."""
        plan, checks = self.link.plan, self.link.checks
        after_payload = self.number > 1

        def entries() -> list[Entry]:
            return [*_asked(self.profile, self.command, plan), *_proven(checks, after_payload)]

        # Put into words when somebody reads them: that takes as long as a fork.
        return Receipt(
            mint("run_"),
            self.sandbox,
            plan.tier,
            plan.backend,
            entries,
            reason,
            exit_code,
            signal,
        )


def _proven(checks: list[Check], after_payload: bool) -> list[Entry]:
    return [
        Entry(field, shown(expected), mechanism, shown(observed), source, after_payload, holds)
        for field, mechanism, expected, observed, holds, source in checks
    ]


def variables(plan: Plan, command: Command) -> list[tuple[bytes, bytes]]:
    """Return the environment: the base's defaults, then what the command says."""
    found = {b"PATH": plan.path, b"HOME": plan.home(command.uid), b"LANG": b"C.UTF-8"}
    found[b"TMPDIR"] = b"/tmp"
    if plan.confined:
        name = _USER_NAMES.get(command.uid, b"u%d" % command.uid)
        found[b"USER"] = found[b"LOGNAME"] = name
    found.update(command.env)
    return list(found.items())


def working_directory(plan: Plan, command: Command) -> bytes:
    """Return where the command starts: absolute, or below HOME."""
    home = plan.home(command.uid)
    if command.cwd is None:
        return home
    return command.cwd if command.cwd.startswith(b"/") else home + b"/" + command.cwd


def _asked(profile: Profile, command: Command, plan: Plan) -> list[Entry]:
    """One entry for every field of the profile and the command that a mechanism stands behind."""
    limits = profile.limits
    mechanisms = dict(plan.mechanisms)
    # In the process tier what was not named is not asked for.
    told, given = plan.confined, "open_files" in limits.named
    values: list[tuple[str, str | int | float | bool | tuple[str, ...] | None]] = [
        ("network.mode", str(profile.network.mode) if told or profile.network.named else None),
        ("user", f"{command.uid}:{command.gid}" if plan.confined else None),
        ("base", None),
        ("writable_root", profile.writable_root),
        ("capabilities", profile.capabilities),
        ("limits.open_files", limits.resolved_open_files if told or given else None),
        ("limits.wall_seconds", limits.resolved_wall_seconds),
        ("limits.output_bytes", limits.resolved_output_bytes),
    ]
    for at, mount in enumerate(profile.mounts):
        mode = "rw" if mount.mode is MountMode.RW else "ro"
        source, target = _text(mount.source.path), _text(mount.target)
        values.append((f"mounts[{at}]", (source, target, mode)))
    values += [(f"devices[{n}]", _text(d.target)) for n, d in enumerate(profile.devices)]
    values += [(f"tmpfs[{n}]", _text(t.target)) for n, t in enumerate(profile.tmpfs)]
    values += [(f"secrets[{n}]", secret.name) for n, secret in enumerate(profile.secrets)]
    return [
        Entry(field, asked, mechanisms[field], None, "engine")
        for field, asked in values
        if field in mechanisms
    ]


def _text(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
