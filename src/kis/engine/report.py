"""What the engine tells without running anything: plans in words, backends as they are.

Knows: plans and findings. Must not know: how they are printed. Called by: engine.
"""

from __future__ import annotations

from kis.engine import blob
from kis.frozen import Frozen
from kis.vocabulary import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from kis.engine.backend import Backend, Finding, Plan
    from kis.engine.host import Host
    from kis.vocabulary import Tier


class Explanation(Frozen):
    """A plan in words: every step, and per field of the profile what enforces it."""

    __slots__ = ("backend", "demands", "mechanisms", "steps", "tier")
    tier: Tier
    backend: str
    demands: tuple[str, ...]
    mechanisms: tuple[tuple[str, str], ...]
    steps: tuple[str, ...]

    def __init__(
        self,
        tier: Tier,
        backend: str,
        demands: tuple[str, ...],
        mechanisms: tuple[tuple[str, str], ...],
        steps: tuple[str, ...],
    ) -> None:
        self._set("tier", tier, "backend", backend, "demands", demands)
        self._set("mechanisms", mechanisms, "steps", steps)

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON-ready values."""
        return {
            "tier": str(self.tier),
            "backend": self.backend,
            "demands": list(self.demands),
            "mechanisms": dict(self.mechanisms),
            "steps": list(self.steps),
        }


class Report(Frozen):
    """What one backend is on this machine; ``claims`` is empty unless it is usable."""

    __slots__ = ("backend", "claims", "hint", "reason", "status", "tier", "version")
    tier: Tier
    backend: str
    status: Status
    version: str
    claims: tuple[str, ...]
    reason: str
    hint: str

    def __init__(self, backend: Backend, finding: Finding, here: Host) -> None:
        usable = finding.status is Status.USABLE
        claims = sorted(map(str, backend.claims(here))) if usable else ()
        self._set("tier", backend.tier, "backend", backend.name, "status", finding.status)
        self._set("version", finding.version, "claims", tuple(claims))
        self._set("reason", finding.reason, "hint", finding.hint)

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON-ready values."""
        return {
            "tier": str(self.tier),
            "backend": self.backend,
            "status": str(self.status),
            "version": self.version,
            "claims": list(self.claims),
            "reason": self.reason,
            "hint": self.hint,
        }


def explanation(plan: Plan, demands: Iterable[str]) -> Explanation:
    """Return a plan in words. Contents of files, secrets among them, are only sized."""
    return Explanation(
        plan.tier,
        plan.backend,
        tuple(sorted(demands)),
        plan.mechanisms,
        tuple(blob.describe(step) for step in plan.steps),
    )
