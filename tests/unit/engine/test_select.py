"""Selection: order of the tier, the first one present decides, and nothing weaker ever runs."""

from __future__ import annotations

import pytest

from kis.command import Command
from kis.engine import select
from kis.engine.backend import AbsentBackend, Backend, Finding
from kis.engine.host import Host, Machine
from kis.errors import Code, SandboxError
from kis.profile import EscapeHatch, NetworkPolicy, Profile
from kis.vocabulary import Demand, Status, Tier

HOST = Host(Machine())
EVERYTHING = frozenset(Demand)


class Fake(Backend):
    def __init__(
        self,
        tier: Tier,
        name: str,
        status: Status = Status.USABLE,
        claims: frozenset[Demand] = EVERYTHING,
    ) -> None:
        self.tier = tier
        self.name = name
        self._finding = Finding(status, reason=f"{name} is {status}", hint="Do this.")
        self._claims = claims

    def probe(self, host: Host) -> Finding:
        return self._finding

    def claims(self, host: Host) -> frozenset[Demand]:
        return self._claims


def chosen(
    backends: list[Backend],
    tier: str | None = "container",
    name: str | None = None,
    profile: Profile | None = None,
) -> str:
    command = Command(["true"])
    return select.choose(backends, HOST, profile or Profile(), command, tier, name).name


def error(backends: list[Backend], **asked: object) -> SandboxError:
    with pytest.raises(SandboxError) as caught:
        chosen(backends, **asked)  # type: ignore[arg-type]
    return caught.value


def test_order_of_the_tier() -> None:
    first, second = Fake(Tier.CONTAINER, "one"), Fake(Tier.CONTAINER, "two")
    assert chosen([Fake(Tier.HOST, "none"), first, second]) == "one"
    assert chosen([second, first]) == "two"


def test_absent_is_routed_around() -> None:
    absent = AbsentBackend(Tier.CONTAINER, "one", "not here")
    assert chosen([absent, Fake(Tier.CONTAINER, "two")]) == "two"


def test_the_first_present_one_decides_even_if_it_is_unusable() -> None:
    broken = Fake(Tier.CONTAINER, "one", Status.UNUSABLE)
    found = error([broken, Fake(Tier.CONTAINER, "two"), Fake(Tier.HOST, "three")])
    assert found.code is Code.TIER_UNAVAILABLE
    assert "one is unusable" in found.message
    assert found.hint.startswith("Usable here: host, container")
    assert found.hint.endswith(" Do this.")  # so that a command in it can be pasted
    assert found.details["usable_tiers"] == ["host", "container"]


def test_the_first_present_one_decides_even_if_another_would_satisfy() -> None:
    poor = Fake(Tier.CONTAINER, "one", claims=EVERYTHING - {Demand.OWN_ROOT, Demand.WALL_TIME})
    found = error([poor, Fake(Tier.CONTAINER, "two"), Fake(Tier.PROCESS, "process")])
    assert found.code is Code.PROFILE_UNSATISFIABLE
    assert found.details["unmet"] == ["own_root", "wall_time"]
    assert "--tier container --backend two" in found.hint
    assert "process" not in found.hint


def test_nothing_named_means_microvm() -> None:
    found = error([AbsentBackend(Tier.MICROVM, "qemu", "no"), Fake(Tier.CONTAINER, "c")], tier=None)
    assert found.code is Code.TIER_UNAVAILABLE
    assert found.details == {"tier": "microvm", "usable_tiers": ["container"]}
    assert "qemu: no" in found.message


def test_a_named_backend_is_used_or_refused() -> None:
    both = [Fake(Tier.CONTAINER, "one"), Fake(Tier.CONTAINER, "two")]
    assert chosen([*both], name="two") == "two"
    assert chosen([*both], tier=None, name="two") == "two"
    absent = AbsentBackend(Tier.CONTAINER, "three", "gone")
    assert error([*both, absent], name="three").code is Code.TIER_UNAVAILABLE


@pytest.mark.parametrize(
    ("tier", "name", "field"),
    [("jail", None, "tier"), ("host", "one", "backend"), (None, "zero", "backend")],
)
def test_unknown_names_are_config_errors(tier: str | None, name: str | None, field: str) -> None:
    found = error([Fake(Tier.CONTAINER, "one")], tier=tier, name=name)
    assert found.code is Code.CONFIG_INVALID
    assert found.details["field"] == field


def test_the_process_tier_needs_its_hatch_before_anything_else() -> None:
    found = error([], tier="process")
    assert str(found) == (
        "escape_hatch_forbidden: the process tier runs unconfined and requires "
        "escape_hatch.allow_process_tier"
    )
    hatch = Profile(escape_hatch=EscapeHatch(allow_process_tier=True))
    assert chosen([Fake(Tier.PROCESS, "p")], tier="process", profile=hatch) == "p"


@pytest.mark.parametrize("tier", ["container", "host", "process"])
def test_host_networking_needs_its_hatch_in_every_tier(tier: str) -> None:
    hatch = EscapeHatch(allow_process_tier=True)
    profile = Profile(network=NetworkPolicy("host"), escape_hatch=hatch)
    found = error([Fake(Tier(tier), "b")], tier=tier, profile=profile)
    assert str(found) == (
        "escape_hatch_forbidden: host networking removes network confinement and requires "
        "escape_hatch.allow_net_host"
    )


def test_the_hatch_of_the_process_tier_waives_no_limit() -> None:
    hatch = Profile(escape_hatch=EscapeHatch(allow_process_tier=True))
    nothing = Fake(Tier.PROCESS, "p", claims=frozenset())
    found = error([nothing], tier="process", profile=hatch)
    assert found.details["unmet"] == ["output_cap", "wall_time"]


def test_no_confining_tier_is_said_as_such() -> None:
    hint = error([Fake(Tier.PROCESS, "p")], tier="container").hint
    assert hint == "No tier that confines is usable here."


def test_another_user_of_the_process_tier_is_no_matter_of_root() -> None:
    hatch = Profile(escape_hatch=EscapeHatch(allow_process_tier=True))
    poor = Fake(Tier.PROCESS, "p", claims=EVERYTHING - {Demand.OTHER_USER})
    with pytest.raises(SandboxError) as caught:
        select.choose([poor], HOST, hatch, Command(["true"], user="root"), "process", None)
    assert "started by root" not in caught.value.hint
    assert "whoever starts kis" in caught.value.hint
