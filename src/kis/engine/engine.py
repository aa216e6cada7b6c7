"""The one path: profile, host facts, selection, plan, launch, sandbox, outcome and receipt.

Knows: the order of things. Must not know: any backend, file format, environment variable.
Called by: api. Keeps no state but live handles and what it has read of the machine.
"""

from __future__ import annotations

import os

from kis.engine import admission, blob, host, launch, select
from kis.engine.admission import refuse_wrong_types
from kis.engine.exchange import Exchange
from kis.engine.faults import exhaustion, fault_error, takes_no_map
from kis.engine.link import Link
from kis.engine.prepare import EXAMPLE_IDS, Preparations
from kis.engine.report import Explanation, Report, explanation
from kis.engine.sandbox import Sandbox, drive, end
from kis.errors import Code, SandboxError
from kis.identity import mint
from kis.profile import EscapeHatch, Profile
from kis.vocabulary import DEFAULT_USER_ID, Status, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from kis.command import Command, Outcome
    from kis.engine.backend import Backend, Finding, Plan
    from kis.engine.channel import Fault
    from kis.engine.host import Host
    from kis.engine.life import Sink
    from kis.engine.prepare import Prepared
    from kis.identity import Base, MountSource

    class IdRange(Protocol):
        """65536 host ids that nobody else uses until they are released.

        ``descriptor`` is what holds them: the sandbox keeps a copy as long as it lives.
        """

        @property
        def start(self) -> int: ...

        @property
        def descriptor(self) -> int: ...

        def release(self) -> None: ...

    class IdRanges(Protocol):
        def acquire(self) -> IdRange: ...

    class HostTree(Protocol):
        """Admits the curated host tree; what belongs to it is Linux's affair."""

        def __call__(
            self, extra_trees: Sequence[tuple[int, bytes]], path_entries: Sequence[bytes]
        ) -> Base: ...

    Devices = Callable[[], list[tuple[MountSource, bytes]]]


class Core:
    """What the blocking and the asyncio engine share: everything but waiting."""

    def __init__(
        self,
        backends: Sequence[Backend],
        agent_path: str | bytes,
        *,
        host_tree: HostTree,
        devices: Devices,
        id_ranges: IdRanges | None = None,
    ) -> None:
        self.table = tuple(backends)
        self._agent = launch.Agent(agent_path)
        self._host_tree = host_tree
        self._devices = devices
        self._id_ranges = id_ranges
        self._known: tuple[int, Host] | None = None
        self.preparations = Preparations()

    def host(self) -> Host:
        """Return the facts of the machine (read once) and of the calling thread (read anew)."""
        known, pid = self._known, os.getpid()
        if known is None or known[0] != pid:
            here = host.read_host(host.read_machine())
            self._known = (pid, here)
            return here
        here = host.read_host(known[1].machine, known[1])
        self._known = (pid, here)
        return here

    def admit_host_base(
        self,
        extra_trees: Sequence[tuple[int, bytes]] = (),
        path_entries: Sequence[bytes] = (),
    ) -> Base:
        """Return the curated host tree as a base.

        ``extra_trees`` are open directories and the absolute paths at which they appear,
        read-only; ``path_entries`` come first in PATH. Raises ``base_invalid``.
        """
        return self._host_tree(extra_trees, path_entries)

    def admit_directory(self, descriptor: int) -> Base:
        """Return an open root file system directory as a base. Raises ``base_invalid``."""
        return admission.admit_directory(descriptor, self._devices())

    def admit_mount(self, descriptor: int) -> MountSource:
        """Return an open file or directory as a mount source. Raises ``mount_invalid``."""
        return admission.admit_mount(descriptor)

    def admit_device(self, descriptor: int) -> MountSource:
        """Return an open device node as a source. Raises ``mount_invalid``."""
        return admission.admit_device(descriptor)

    def explain(
        self,
        command: Command,
        profile: Profile,
        base: Base,
        *,
        tier: Tier | str | None = None,
        backend: str | None = None,
    ) -> Explanation:
        """Return the plan in words, having started nothing. Raises as ``run`` does before it."""
        refuse_wrong_types(command=command, profile=profile, base=base)
        attempt = Attempt(self, profile, base, command, tier, backend, told_only=True)
        demands = select.demands_of(profile, command, attempt.backend.tier)
        return explanation(attempt.plan(), map(str, demands))

    def canary(self, backend: Backend, here: Host) -> Attempt:
        """Return an attempt at the least that a backend must manage."""
        hatch = EscapeHatch(allow_process_tier=backend.tier is Tier.PROCESS)
        bare = admission.make_base("host", ())
        return Attempt(
            self, Profile(escape_hatch=hatch), bare, None, backend.tier, backend.name, here
        )

    def close(self) -> None:
        """Close what is kept open between launches. Live sandboxes stay alive."""
        self._agent.close()
        self.preparations.clear()


class Attempt:
    """One sandbox on its way to being launched, from selection on; maybe more than once."""

    def __init__(
        self,
        core: Core,
        profile: Profile,
        base: Base,
        command: Command | None,
        tier: Tier | str | None,
        backend: str | None,
        here: Host | None = None,
        *,
        told_only: bool = False,
    ) -> None:
        """With ``told_only`` no id range is taken: the plan is made for an example of one."""
        self.core = core
        self.profile = profile
        self.base = base
        self.command = command
        self.here = here or core.host()
        self.tier = tier
        self.name = backend
        self.id = mint("sbx_")
        self.uid = DEFAULT_USER_ID if command is None else command.uid
        self.gid = DEFAULT_USER_ID if command is None else command.gid
        self.plain: frozenset[str] = frozenset()
        self.prepared = self._prepare()
        self.backend = self.prepared.backend
        self._ids: IdRange | None = None
        self._start: int | None = None
        if self.backend.wants_ids(self.here):
            self._ids = None if told_only else self._acquire()
            self._start = EXAMPLE_IDS if self._ids is None else self._ids.start

    def _acquire(self) -> IdRange:
        ranges = self.core._id_ranges
        if ranges is None:
            raise SandboxError(
                Code.SETUP_FAILED,
                "started by root, a sandbox needs a range of host ids, and none were handed in",
                "Give the engine id_ranges=.",
                {"step": "identity"},
            )
        return ranges.acquire()

    def _prepare(self) -> Prepared:
        return self.core.preparations.prepare(
            self.core.table,
            self.here,
            self.profile,
            self.base,
            self.command,
            (self.uid, self.gid),
            self.tier,
            self.name,
            self.plain,
        )

    def plan(self) -> Plan:
        """Return the plan of this attempt. Pure, given the ids."""
        return self.prepared.plan(self._start)

    def launch(self, *, one_shot: bool) -> Link:
        """Start the launcher and return the link to it; nothing was waited for."""
        plan = self.plan()
        sources = [source.descriptor for source in plan.sources]
        if -1 in sources:
            raise SandboxError(Code.MOUNT_INVALID, "a mount source or base was closed already")
        launched = launch.launch(
            self.core._agent,
            self.prepared.encoded(plan),
            sources,
            supervise=bool(plan.mode & blob.SUPERVISE),
            privileged=bool(plan.mode & blob.PRIVILEGED),
            lease=None if self._ids is None else self._ids.descriptor,
        )
        return Link(launched, plan, self.prepared.mounts, self.here, one_shot=one_shot)

    def again(self, fault: Fault, plan: Plan) -> bool:
        """Whether a launch that failed is worth another with less: a file system without maps."""
        mounts = enumerate(self.profile.mounts)
        writable = frozenset(f"mounts[{at}]" for at, mount in mounts if mount.writable)
        origin = takes_no_map(fault, plan, writable)
        if origin is None or origin in self.plain:
            return False
        self.plain |= {origin}
        self.prepared = self._prepare()
        return True

    def refused(self, fault: Fault, plan: Plan) -> SandboxError:
        """Return the error for a launch that failed for good."""
        ran_out = exhaustion(fault)
        if ran_out is not None:
            return ran_out
        finding = self.backend.refused(self.here, fault, self.core._agent.path)
        if finding is None:
            return fault_error(fault, plan)
        message = f"the {self.backend.name} backend cannot be used: {finding.reason}"
        others = [other for other in self.core.table if other is not self.backend]
        return select.unavailable(others, self.here, message, finding.hint, self.backend.tier)

    def release(self) -> None:
        """Give the id range back. More than once does no harm."""
        ids, self._ids = self._ids, None
        if ids is not None:
            ids.release()


class Engine(Core):
    """The blocking engine. Any number of threads may use it at once."""

    def create(
        self,
        profile: Profile,
        base: Base,
        *,
        tier: Tier | str | None = None,
        backend: str | None = None,
    ) -> Sandbox:
        """Return a live sandbox, for any number of commands. Raises ``SandboxError``."""
        refuse_wrong_types(profile=profile, base=base)
        return self._create(Attempt(self, profile, base, None, tier, backend))

    def _create(self, attempt: Attempt) -> Sandbox:
        try:
            link = self._greeted(attempt)
        except BaseException:
            attempt.release()
            raise
        claims = attempt.backend.claims(attempt.here)
        return Sandbox(attempt.id, link, attempt.profile, claims, attempt.uid, attempt.release)

    def _greeted(self, attempt: Attempt) -> Link:
        while True:
            link = attempt.launch(one_shot=False)
            try:
                drive(link, link.is_greeted)
                if link.life.live:
                    return link
            except BaseException:
                end(link)
                raise
            end(link)
            raise_unless_again(attempt, link)

    def run(
        self,
        command: Command,
        profile: Profile,
        base: Base,
        *,
        tier: Tier | str | None = None,
        backend: str | None = None,
        on_stdout: Sink | None = None,
        on_stderr: Sink | None = None,
        stdin_fd: int | None = None,
    ) -> Outcome:
        """Run one command in a sandbox of its own and return the outcome.

        Streams as in ``Sandbox.run``. Raises ``SandboxError`` where the command could not be
        started or a promise not be kept, never for a command that fails.
        """
        refuse_wrong_types(command=command, profile=profile, base=base)
        attempt = Attempt(self, profile, base, command, tier, backend)
        try:
            while True:
                link = attempt.launch(one_shot=True)
                try:
                    exchange = Exchange(
                        link,
                        profile,
                        command,
                        sandbox=attempt.id,
                        sinks=(on_stdout, on_stderr),
                        stdin_fd=stdin_fd,
                    )
                    exchange.begin()
                    drive(link, link.is_gone)
                finally:
                    end(link)
                if link.life.fault is None:
                    return exchange.outcome()
                raise_unless_again(attempt, link)
        finally:
            attempt.release()

    def backends(self) -> list[Report]:
        """Return what every backend is here; one that seems usable is tried."""
        here = self.host()
        reports = []
        for backend in self.table:
            finding = backend.probe(here)
            if finding.status is Status.USABLE:
                finding = self._tried(backend, finding, here)
            reports.append(Report(backend, finding, here))
        return reports

    def _tried(self, backend: Backend, finding: Finding, here: Host) -> Finding:
        try:
            self._create(self.canary(backend, here)).close()
        except SandboxError as error:
            return finding.replace(status=Status.UNUSABLE, reason=error.message, hint=error.hint)
        return finding


def raise_unless_again(attempt: Attempt, link: Link) -> None:
    """After a launch that came to nothing: return if another is worth it, else say why."""
    fault = link.life.fault
    if fault is not None:
        if attempt.again(fault, link.plan):
            return
        raise attempt.refused(fault, link.plan)
    raise link.life.failure or SandboxError(
        Code.AGENT_UNREACHABLE, "the sandbox died before it was ready"
    )
