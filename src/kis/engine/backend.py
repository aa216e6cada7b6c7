"""The seam between the engine and the ways to confine: what a backend is asked and answers.

Knows: the records that pass the seam. Must not know: any backend. Called by: engine, backends.
"""

from __future__ import annotations

from kis.engine import blob
from kis.frozen import Frozen
from kis.vocabulary import Demand, Status, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kis.engine.blob import Step
    from kis.engine.channel import Fault
    from kis.engine.host import Host
    from kis.identity import Base, MountSource
    from kis.profile import Profile

DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


class Finding(Frozen):
    """What a backend is on a machine; ``hint`` says what would help."""

    __slots__ = ("hint", "reason", "status", "version")
    status: Status
    version: str
    reason: str
    hint: str

    def __init__(self, status: Status, version: str = "", reason: str = "", hint: str = "") -> None:
        self._set("status", status, "version", version, "reason", reason, "hint", hint)


class Request(Frozen):
    """All that a plan may depend on.

    ``uid``, ``gid`` are the user's ids inside; ``ids_start`` is the first host id of the
    sandbox's own range (``None``: no range). ``plain`` names the origins ("base", "mounts[0]")
    whose file system has turned out to take no id map.
    """

    __slots__ = ("base", "gid", "host", "ids_start", "plain", "profile", "uid")
    profile: Profile
    base: Base
    host: Host
    uid: int
    gid: int
    ids_start: int | None
    plain: frozenset[str]

    def __init__(
        self,
        profile: Profile,
        base: Base,
        host: Host,
        uid: int,
        gid: int,
        ids_start: int | None = None,
        plain: frozenset[str] = frozenset(),
    ) -> None:
        self._set("profile", profile, "base", base, "host", host, "uid", uid, "gid", gid)
        self._set("ids_start", ids_start, "plain", plain)


class Plan(Frozen):
    """Everything that the launcher will do, as data; equal requests give equal plans.

    ``steps`` are records of docs/wire.md and ``origins`` says of each which input it comes from;
    ``sources`` are what the steps' source indices mean. ``limits`` are each command's resource
    limits (number, soft, hard). ``homes`` maps ids inside to their HOME; ``mechanisms`` says per
    field of the profile what enforces it. Secrets' contents are in the steps: ``repr`` hides them.
    """

    __slots__ = (
        "backend",
        "homes",
        "limits",
        "mechanisms",
        "origins",
        "other_home",
        "path",
        "sources",
        "steps",
        "tier",
    )
    _hidden = frozenset({"steps"})
    tier: Tier
    backend: str
    steps: tuple[Step, ...]
    origins: tuple[str, ...]
    sources: tuple[MountSource, ...]
    limits: tuple[tuple[int, int, int], ...]
    path: bytes
    homes: tuple[tuple[int, bytes], ...]
    other_home: bytes
    mechanisms: tuple[tuple[str, str], ...]

    def __init__(
        self,
        tier: Tier,
        backend: str,
        steps: tuple[Step, ...],
        origins: tuple[str, ...],
        sources: tuple[MountSource, ...] = (),
        limits: tuple[tuple[int, int, int], ...] = (),
        path: bytes = DEFAULT_PATH,
        homes: tuple[tuple[int, bytes], ...] = (),
        other_home: bytes = b"/tmp",
        mechanisms: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._set("tier", tier, "backend", backend, "steps", steps, "origins", origins)
        self._set("sources", sources, "limits", limits, "path", path, "homes", homes)
        self._set("other_home", other_home, "mechanisms", mechanisms)

    def with_steps(self, steps: tuple[Step, ...]) -> Plan:
        """Return the same plan with other steps, one for one."""
        return self.replace(steps=steps)

    @property
    def mode(self) -> int:
        """Bits of the MODE record."""
        mode: int = self.steps[0][1]
        return mode

    @property
    def confined(self) -> bool:
        """Whether there is anything to prove: the process tier has no border."""
        return not self.mode & blob.SUPERVISE

    def home(self, uid: int) -> bytes:
        """Return the HOME of an id inside."""
        return dict(self.homes).get(uid, self.other_home)

    def outside(self, record: int, inside: int) -> int | None:
        """Return the host id that UID_MAP or GID_MAP gives to an id inside, or ``None``."""
        for step in self.steps:
            if step[0] == record:
                first, outside, count = step[1:4]
                if first <= inside < first + count:
                    host_id: int = outside + inside - first
                    return host_id
        return None

    def capability_mask(self) -> int:
        """Return the capabilities that commands are granted."""
        return next((step[1] for step in self.steps if step[0] == blob.CAPS), 0)


class Backend:
    """One way to confine, at one tier. Pure but for nothing: everything it knows it is handed."""

    tier: Tier
    name: str

    def probe(self, host: Host) -> Finding:
        """Return what this backend is here, from facts alone; a canary run may know better."""
        raise NotImplementedError

    def claims(self, host: Host) -> frozenset[Demand]:
        """Return the demands that this backend can enforce here."""
        raise NotImplementedError

    def wants_ids(self, host: Host) -> bool:
        """Return whether each sandbox takes a range of host ids of its own here."""
        return False

    def plan(self, request: Request) -> Plan:
        """Return the plan. Raises ``SandboxError`` for what only a plan can find wrong."""
        raise NotImplementedError

    def refused(self, host: Host, fault: Fault, agent_path: bytes) -> Finding | None:
        """Return why the platform forbids what a launch needs, and what would help, or ``None``
        where the fault is not the platform's."""
        return None


class AbsentBackend(Backend):
    """A backend that is known by name and not here: selection goes round it."""

    def __init__(self, tier: Tier, name: str, reason: str) -> None:
        self.tier = tier
        self.name = name
        self._reason = reason

    def probe(self, host: Host) -> Finding:
        return Finding(Status.ABSENT, reason=self._reason)

    def claims(self, host: Host) -> frozenset[Demand]:
        return frozenset()
