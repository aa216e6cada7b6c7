"""Working something out once must give what working it out anew gives."""

from __future__ import annotations

import gc

import pytest

from kis.backends.namespaces import Namespaces
from kis.engine import blob
from kis.engine.backend import Backend, Plan, Request
from kis.engine.host import Host
from kis.engine.prepare import Preparations, Prepared
from kis.errors import SandboxError
from kis.profile import NetworkPolicy, Profile, Secret
from kis.vocabulary import Tier
from tests.made_up import ROOT, host_base

HERE = ROOT


@pytest.mark.parametrize("start", [1879048192, 1879048192 + 65536, 2147287040])
@pytest.mark.parametrize("mode", ["off", "loopback"])
@pytest.mark.parametrize("again", [True, False])
def test_a_moved_plan_equals_one_made_for_that_range(start: int, mode: str, again: bool) -> None:
    base = host_base()
    request = Request(Profile(NetworkPolicy(mode)), base, HERE, 1000, 1000)
    prepared = Prepared(Namespaces(), request, again=again)
    expected = Namespaces().plan(request.replace(ids_start=start))
    assert prepared.plan(start) == expected
    assert prepared.encoded(prepared.plan(start)) == blob.encode(expected.steps)


class Odd(Backend):
    """Its plan depends on the range in a way that is no mere addition."""

    tier, name = Tier.CONTAINER, "odd"

    def wants_ids(self, host: Host) -> bool:
        return True

    def plan(self, request: Request) -> Plan:
        start = request.ids_start or 0
        return Plan(
            self.tier,
            self.name,
            ((blob.MODE, 1), (blob.UID_MAP, 0, start, start % 7 + 1)),
            ("", ""),
        )


def test_a_plan_that_moves_oddly_is_refused() -> None:
    request = Request(Profile(), host_base(), HERE, 1000, 1000)
    with pytest.raises(SandboxError) as refused:
        Prepared(Odd(), request, again=True)
    assert refused.value.code == "invariant_failed"


def prepare(memory: Preparations, profile: Profile, base: object) -> Prepared:
    return memory.prepare(
        [Namespaces()],
        HERE,
        profile,
        base,
        None,
        (1000, 1000),
        "container",
        None,
        frozenset(),  # type: ignore[arg-type]
    )


def test_the_same_inputs_are_worked_out_once_and_others_anew() -> None:
    memory, base, profile = Preparations(), host_base(), Profile()
    first = prepare(memory, profile, base)
    assert prepare(memory, profile, base) is first
    assert prepare(memory, Profile(writable_root=True), base) is not first


def test_nothing_is_remembered_of_a_profile_with_secrets_or_of_a_base_that_is_gone() -> None:
    memory, base = Preparations(), host_base()
    secret = Profile(secrets=[Secret("token", b"hunter2")])
    assert prepare(memory, secret, base) is not prepare(memory, secret, base)
    assert not memory._kept
    prepare(memory, Profile(), base)
    assert memory._kept
    del base
    gc.collect()
    assert not memory._kept
