"""Which backend runs a command: pure, and never a weaker one than was asked for.

Knows: tiers, findings, demands, claims, hatches. Must not know: how any backend works.
Called by: engine.
"""

from __future__ import annotations

from kis.errors import Code, SandboxError, quoted
from kis.vocabulary import Demand, NetworkMode, Status, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from kis.command import Command
    from kis.engine.backend import Backend
    from kis.engine.host import Host
    from kis.profile import Profile

_HELP = {
    Demand.NO_HOST_CORE: "kernel.core_pattern hands core dumps to a socket, or to a program while "
    "the hard core limit is 0, which does not stop it: raise that to 1 (ulimit -Hc), or write "
    "cores to files.",
    Demand.OPEN_FILES: "Ask for no more open files than the hard limit here (ulimit -Hn).",
    Demand.OTHER_USER: "Only kis started by root has more than one user to give.",
    Demand.NETWORK_EGRESS: "Network mode egress is not built yet.",
}

_PROCESS_HELP = {
    Demand.OTHER_USER: "In the process tier a command runs as whoever starts kis.",
}

DEFAULT_TIER = Tier.MICROVM  # the honest default for anything that the caller did not write


def demands_of(profile: Profile, command: Command | None, tier: Tier) -> frozenset[Demand]:
    """Return every property that this run relies on in a tier."""
    demands = profile.demands(tier)
    return demands if command is None else demands | command.demands(tier)


def choose(
    backends: Sequence[Backend],
    host: Host,
    profile: Profile,
    command: Command | None,
    tier: Tier | str | None,
    name: str | None,
) -> Backend:
    """Return the backend that runs this. Order of the tier; the first one present decides.

    Raises ``escape_hatch_forbidden``, ``tier_unavailable`` or ``profile_unsatisfiable`` (all
    before anything starts), and ``config_invalid`` for a tier or backend that does not exist.
    """
    wanted = _tier(backends, tier, name)
    refuse_shut_hatches(profile, wanted)
    candidates = [b for b in backends if b.tier is wanted and name in (None, b.name)]
    for backend in candidates:
        finding = backend.probe(host)
        if finding.status is Status.ABSENT:
            continue
        if finding.status is Status.UNUSABLE:
            raise unavailable(
                backends,
                host,
                f"the {backend.name} backend of the {wanted} tier cannot be used: {finding.reason}",
                finding.hint,
                wanted,
            )
        unmet = demands_of(profile, command, wanted) - backend.claims(host)
        if unmet:
            raise _unsatisfiable(backends, host, profile, command, backend, unmet)
        return backend
    reasons = "; ".join(f"{b.name}: {b.probe(host).reason}" for b in candidates)
    raise unavailable(
        backends,
        host,
        f"no backend of the {wanted} tier is here ({reasons or 'none is known'})",
        "",
        wanted,
    )


def refuse_shut_hatches(profile: Profile, tier: Tier) -> None:
    """Raise ``escape_hatch_forbidden`` where confinement would end without its named hatch."""
    hatch = profile.escape_hatch
    if tier is Tier.PROCESS and not hatch.allow_process_tier:
        raise _forbidden("the process tier runs unconfined", "allow_process_tier")
    if profile.network.mode is NetworkMode.HOST and not hatch.allow_net_host:
        raise _forbidden("host networking removes network confinement", "allow_net_host")


def unavailable(
    backends: Sequence[Backend], host: Host, message: str, hint: str, wanted: Tier
) -> SandboxError:
    """Return the ``tier_unavailable`` error that names the tiers which can be had."""
    usable = _usable_tiers(backends, host)
    confining = [name for name in usable if name != Tier.PROCESS]
    offer = (
        f"Usable here: {', '.join(usable)} (name one: --tier {confining[-1]})."
        if confining
        else "No tier that confines is usable here."
    )
    return SandboxError(
        Code.TIER_UNAVAILABLE,
        message,
        # Last, so that a command in it can be copied to the end of the line.
        f"{offer} {hint}".strip(),
        {"tier": str(wanted), "usable_tiers": usable},
    )


def _tier(backends: Sequence[Backend], tier: Tier | str | None, name: str | None) -> Tier:
    if tier is not None and tier not in tuple(Tier):
        raise SandboxError(
            Code.CONFIG_INVALID,
            f"no tier is called {quoted(str(tier))}",
            f"The tiers are {', '.join(Tier)}.",
            {"field": "tier"},
        )
    if name is None:
        return DEFAULT_TIER if tier is None else Tier(tier)
    homes = [b.tier for b in backends if b.name == name]
    if not homes or (tier is not None and Tier(tier) not in homes):
        of_tier = "" if tier is None else f" of the {tier} tier"
        raise SandboxError(
            Code.CONFIG_INVALID,
            f"no backend{of_tier} is called {quoted(name)}",
            f"The backends are {', '.join(f'{b.name} ({b.tier})' for b in backends)}.",
            {"field": "backend"},
        )
    return homes[0] if tier is None else Tier(tier)


def _forbidden(what: str, hatch: str) -> SandboxError:
    flag = hatch.replace("_", "-")
    return SandboxError(
        Code.ESCAPE_HATCH_FORBIDDEN,
        f"{what} and requires escape_hatch.{hatch}",
        f"If that is what you want, say --{flag}, or {hatch} = true below [escape_hatch].",
        {"field": f"escape_hatch.{hatch}"},
    )


def _usable_tiers(backends: Sequence[Backend], host: Host) -> list[str]:
    found = {b.tier for b in backends if b.probe(host).status is Status.USABLE}
    return [str(tier) for tier in Tier if tier in found]


def helps_for(unmet: frozenset[Demand], tier: Tier) -> list[str]:
    """Return what can be done about demands that a tier cannot meet, a sentence each."""
    known = _HELP | (_PROCESS_HELP if tier is Tier.PROCESS else {})
    return [known[demand] for demand in sorted(unmet) if demand in known]


def _unsatisfiable(
    backends: Sequence[Backend],
    host: Host,
    profile: Profile,
    command: Command | None,
    backend: Backend,
    unmet: frozenset[Demand],
) -> SandboxError:
    names = sorted(str(demand) for demand in unmet)
    would_do = [
        f"--tier {other.tier} --backend {other.name}"
        for other in backends
        if other is not backend
        and other.tier is not Tier.PROCESS
        and other.probe(host).status is Status.USABLE
        and demands_of(profile, command, other.tier) <= other.claims(host)
    ]
    helps = helps_for(unmet, backend.tier)
    helps.append(f"These would: {'; '.join(would_do)}." if would_do else "No other one here would.")
    return SandboxError(
        Code.PROFILE_UNSATISFIABLE,
        f"the {backend.name} backend of the {backend.tier} tier cannot give "
        f"{', '.join(names)} on this machine",
        " ".join(helps),
        {"tier": str(backend.tier), "backend": backend.name, "unmet": names},
    )
