"""A fault of the launcher is blamed on what the caller gave, where it comes from that."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from made_up import ORDINARY, ROOT, directory_base, plan_of, source

from kis.backends.namespaces import Namespaces
from kis.engine import blob, channel, faults
from kis.engine.backend import Plan
from kis.engine.channel import Fault
from kis.engine.host import Host, Machine
from kis.errors import Code
from kis.profile import Mount, Profile, Secret

PROFILE = Profile(
    mounts=[Mount(source(b"/s\x1b[2J"), "/ro"), Mount(source(b"/rw"), "/rw", "rw")],
    secrets=[Secret("k", b"hunter2")],
)


def record_of(plan: Plan, origin: str, record: int) -> int:
    return next(
        at for at, step in enumerate(plan.steps) if plan.origins[at] == origin and step[0] == record
    )


def fault(step: int, record: int | None, error: int = errno.EINVAL) -> Fault:
    return Fault(step, error, record, b"de\x07tail")


@pytest.mark.parametrize(
    ("step", "origin", "record", "code"),
    [
        (channel.STEP_SOURCE, "mounts[0]", blob.BIND, Code.MOUNT_INVALID),
        (channel.STEP_TARGET, "mounts[1]", blob.BIND, Code.MOUNT_INVALID),
        (channel.STEP_IDMAP, "mounts[1]", blob.BIND, Code.MOUNT_INVALID),
        (channel.STEP_MOUNT, "base", blob.BIND, Code.BASE_INVALID),
        (channel.STEP_TARGET, "base", blob.LINK, Code.BASE_INVALID),
        (channel.STEP_NETWORK, "base", blob.SPACE, Code.SETUP_FAILED),
    ],
)
def test_who_is_to_blame(step: int, origin: str, record: int, code: Code) -> None:
    plan = plan_of(PROFILE)
    error = faults.fault_error(fault(step, record_of(plan, origin, record)), plan)
    assert error.code is code
    assert error.message.isprintable()
    assert "hunter2" not in str(error.to_dict())


@pytest.mark.parametrize("record", [None, 4095])
def test_a_fault_of_no_record(record: int | None) -> None:
    error = faults.fault_error(fault(channel.STEP_MOUNT, record), plan_of(PROFILE))
    assert error.code is Code.SETUP_FAILED
    assert error.details["step"] == "mount"


WRITABLE = frozenset({"mounts[1]"})


def test_only_what_is_read_only_may_go_without_a_map() -> None:
    plan = plan_of(PROFILE)
    for origin, wanted in (("mounts[0]", "mounts[0]"), ("mounts[1]", None)):
        found = fault(channel.STEP_IDMAP, record_of(plan, origin, blob.BIND))
        assert faults.takes_no_map(found, plan, WRITABLE) == wanted
    assert faults.takes_no_map(fault(channel.STEP_IDMAP, None), plan, WRITABLE) is None


def test_a_base_may_go_without_a_map() -> None:
    plan = plan_of(base=directory_base())
    root = record_of(plan, "base", blob.ROOT)
    for step in (channel.STEP_IDMAP, channel.STEP_MOUNT):
        assert faults.takes_no_map(fault(step, root), plan, WRITABLE) == "base"
    assert faults.takes_no_map(fault(channel.STEP_TARGET, root), plan, WRITABLE) is None


def refused(host: Host, step: int, error: int) -> str:
    found = Namespaces().refused(host, fault(step, None, error), b"/opt/kis/kis-init")
    return "" if found is None else f"{found.reason} | {found.hint}"


def ordinary(**machine: Any) -> Host:
    return ORDINARY.replace(machine=Machine(**machine))


@pytest.mark.parametrize(
    ("host", "error", "words"),
    [
        (ordinary(max_user_namespaces=0), errno.ENOSPC, "user.max_user_namespaces is 0"),
        (ordinary(unprivileged_user_namespaces=0), errno.EPERM, "unprivileged_userns_clone is 0"),
        (ordinary(apparmor_restricts_user_namespaces=1), errno.EACCES, "/opt/kis/kis-init"),
        (ordinary(), errno.EPERM, "seccomp filter or security module of an outer container"),
        (ordinary(), errno.ENOSYS, "seccomp filter or security module of an outer container"),
        (ordinary(), errno.ENOSPC, "limit on namespaces"),
        (ordinary(), errno.EINVAL, "every namespace type"),
        (ROOT, errno.EINVAL, "every namespace type"),
    ],
)
def test_which_power_forbids_namespaces(host: Host, error: int, words: str) -> None:
    assert words in refused(host, channel.STEP_NAMESPACES, error)


def test_apparmor_shows_late() -> None:
    """It lets the namespace be made, and then denies what is done in it."""
    host = ordinary(apparmor_restricts_user_namespaces=1)
    assert "AppArmor" in refused(host, channel.STEP_MOUNT, errno.EACCES)
    assert refused(host, channel.STEP_MOUNT, errno.EINVAL) == ""


def test_an_ordinary_fault_is_not_the_platforms() -> None:
    assert refused(ROOT, channel.STEP_TARGET, errno.EPERM) == ""
