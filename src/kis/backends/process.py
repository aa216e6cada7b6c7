"""The process tier: no border at all, and said so. For one's own code, behind its hatch.

Knows: what can be kept without confinement (limits, a clean environment). Must not know: how a
process is started. Called by: engine, through the seam.
"""

from __future__ import annotations

from kis.engine import blob
from kis.engine.backend import Backend, Finding, Plan
from kis.engine.limits import command_limits, limits_claims
from kis.errors import Code, SandboxError
from kis.vocabulary import Demand, Status, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kis.engine.backend import Request
    from kis.engine.host import Host
    from kis.identity import Base


class Process(Backend):
    """A supervised child of ours: own streams, clean environment and descriptors, limits."""

    tier = Tier.PROCESS
    name = "process"

    def probe(self, host: Host) -> Finding:
        if host.machine.system != "Linux":
            return Finding(Status.ABSENT, reason=f"needs Linux, this is {host.machine.system}")
        return Finding(Status.USABLE, host.machine.release)

    def claims(self, host: Host) -> frozenset[Demand]:
        return limits_claims(host) | {Demand.NETWORK_HOST}

    def plan(self, request: Request) -> Plan:
        _refuse_other_base(request.base)
        named = "open_files" in request.profile.limits.named
        limits = command_limits(request.profile, request.host)
        unconfined = "none: the process tier runs unconfined"
        mechanisms = [
            ("network.mode", unconfined),
            ("user", "the caller's own"),
            ("base", unconfined),
            ("limits.open_files", "RLIMIT_NOFILE" if named else unconfined),
            ("limits.wall_seconds", "the engine's clock: SIGTERM, then SIGKILL of every child"),
            ("limits.output_bytes", "counted by the engine, which kills every child"),
        ]
        return Plan(
            self.tier,
            self.name,
            ((blob.MODE, blob.SUPERVISE),),
            ("identity",),
            limits=limits if named else (),
            homes=(),
            other_home=b"/tmp",
            mechanisms=tuple(mechanisms),
        )


def _refuse_other_base(base: Base) -> None:
    """Raise where the base is another tree than the host's own, which is all there is here."""
    if base.kind == "host" and not base.extended:
        return
    raise SandboxError(
        Code.PROFILE_UNSATISFIABLE,
        "the process tier has no base: a command there sees the host's own files",
        "Leave the base out, or name a tier that has a root of its own: --tier container.",
        {"field": "base", "unmet": [str(Demand.OWN_ROOT)]},
    )
