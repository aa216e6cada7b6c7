"""What the container tier's backend claims, by the facts of the machine."""

from __future__ import annotations

import pytest

from kis.backends.namespaces import Namespaces
from kis.engine.host import Host, Machine
from kis.vocabulary import Demand, Status


@pytest.mark.parametrize(
    ("handler", "core_limit", "claimed"),
    [
        ("", 0, True),
        ("program", 1 << 30, True),
        ("program", 0, False),  # RLIMIT_CORE 0 does not keep the handler from being started
        ("socket", 1 << 30, False),
        ("socket", 0, False),
    ],
)
def test_no_core_on_the_host_is_claimed_only_where_a_limit_stops_it(
    handler: str, core_limit: int, claimed: bool
) -> None:
    here = Host(Machine(core_handler=handler), core_limit=core_limit)
    assert (Demand.NO_HOST_CORE in Namespaces().claims(here)) is claimed


@pytest.mark.parametrize(
    ("machine", "word"),
    [
        (Machine(max_user_namespaces=0), "max_user_namespaces"),
        (Machine(unprivileged_user_namespaces=0), "unprivileged_userns_clone"),
        (Machine(memfd_noexec=2), "memfd_noexec"),
    ],
)
def test_a_switch_that_forbids_namespaces_is_named(machine: Machine, word: str) -> None:
    ordinary = Host(machine, euid=500, egid=500, capabilities=0)
    finding = Namespaces().probe(ordinary)
    assert finding.status is Status.UNUSABLE
    assert word in finding.reason
    assert finding.hint


def test_root_that_lacks_capabilities_is_never_run_as_hosts_root() -> None:
    finding = Namespaces().probe(Host(Machine(), capabilities=0))
    assert finding.status is Status.UNUSABLE
    assert "CAP_SYS_ADMIN" in finding.reason
