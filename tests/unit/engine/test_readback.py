"""Read-back: what is as planned holds, and every single difference is found and named."""

from __future__ import annotations

from typing import Any

import pytest
from made_up import IDS_START, ORDINARY, ROOT, plan_of, source

from kis.engine import blob, readback
from kis.engine.backend import Plan
from kis.engine.channel import Hello, Ready
from kis.engine.host import NAMESPACES, Host
from kis.engine.observe import Place, Unreadable, Waiting
from kis.errors import Code, SandboxError
from kis.profile import EscapeHatch, Mount, NetworkPolicy, Profile

PID = 4242
OWN = {kind: 10 + n for n, kind in enumerate(NAMESPACES)}
INSIDE = {kind: 20 + n for n, kind in enumerate(NAMESPACES)}
SPACE = frozenset({b"nosuid", b"nodev"})
NAMES = (b"HOME", b"PATH")


def here(host: Host) -> Host:
    return host.replace(namespaces=tuple(OWN.items()), seccomp_filters=3, machine=host.machine)


def place(plan: Plan, **changes: Any) -> Place:
    """A sandbox as the kernel would show it, if the launcher did what the plan says."""
    shared_net = bool(plan.mode & blob.NET_HOST)
    inside = {**INSIDE, "net": OWN["net"]} if shared_net else INSIDE
    read_only = {b"ro"} if plan.mode & blob.ROOT_READONLY else {b"rw"}
    mounts: list[Any] = [(b"/", SPACE | read_only | {b"relatime"}, b"tmpfs", ())]
    for step in plan.steps:
        if step[0] == blob.BIND:
            bits = {1: b"ro", 2: b"nosuid", 4: b"nodev", 8: b"noexec"}
            options = frozenset(name for bit, name in bits.items() if step[2] & bit)
            mounts.append((step[4], options, b"ext4", ()))
        elif step[0] == blob.SPACE_BIND:
            mounts.append((step[5], SPACE | {b"rw"}, b"tmpfs", ()))
        elif step[0] == blob.PROC:
            mounts.append((step[1], SPACE | {b"ro", b"noexec"}, b"proc", ()))
        elif step[0] == blob.DEVPTS:
            mounts.append((step[1], frozenset({b"rw", b"nosuid", b"noexec"}), b"devpts", ()))
        elif step[0] == blob.MASK:
            mounts.append((step[1], SPACE | {b"ro", b"noexec"}, b"tmpfs", ()))
    seen: dict[str, Any] = {
        "namespaces": tuple(inside.items()),
        "uid_map": tuple(s[1:] for s in plan.steps if s[0] == blob.UID_MAP),
        "gid_map": tuple(s[1:] for s in plan.steps if s[0] == blob.GID_MAP),
        "interfaces": (b"lo",),
        "loopback_is_up": bool(plan.mode & blob.LOOPBACK),
        "mounts": tuple(mounts),
    }
    return Place(**{**seen, **changes})


def waiting(plan: Plan, **changes: Any) -> Waiting:
    uid = plan.outside(blob.UID_MAP, 1000)
    gid = plan.outside(blob.GID_MAP, 1000)
    mask = plan.capability_mask()
    seen: dict[str, Any] = {
        "uids": (uid,) * 4,
        "gids": (gid,) * 4,
        "groups": () if plan.mode & blob.PRIVILEGED else (600,),
        "capabilities": (mask,) * 5,
        "no_new_privs": 1,
        "seccomp_mode": 2,
        "seccomp_filters": 4,
        "pids": (PID, 2),
        "namespaces": place(plan).namespaces,
        "root": b"/",
        "cwd": b"/home/user",
        "descriptors": {
            0: (70, 0),
            1: (71, 1),
            2: (72, 1),
            3: (80, 0o2000002),
            4: (81, 0o2000000),
        },
        "session": PID,
        "terminal": 0,
        "open_files": 1024,
        "core_limit": 1,
    }
    return Waiting(**{**seen, **changes})


def ready(**changes: Any) -> Ready:
    answers = tuple((number, error) for number, (_, error) in readback.PROBES.items())
    said: dict[str, Any] = {
        "id": 1,
        "keyring": 0,
        "dumpable": 0,
        "probes": answers,
        "names": NAMES,
    }
    return Ready(**{**said, **changes})


def expected(**changes: Any) -> readback.Expected:
    started: dict[str, Any] = {
        "uid": 1000,
        "gid": 1000,
        "pipes": (70, 71, 72),
        "names": NAMES,
        "cwd": b"/home/user",
    }
    made = readback.Expected(**{**started, **changes})
    made.hello = Hello(5, 6)
    return made


def of_place(plan: Plan, host: Host, seen: Place) -> list[Any]:
    return readback.compare_place(plan, readback.planned_mounts(plan), here(host), seen)


def of_command(
    plan: Plan, host: Host, seen: Waiting, said: Ready | None = None, **started: Any
) -> list[Any]:
    return readback.compare_command(
        plan, here(host), expected(**started), seen, place(plan), said or ready(), PID
    )


def of_command_with(plan: Plan, hello: Hello, said: Ready) -> list[Any]:
    started = expected()
    started.hello = hello
    return readback.compare_command(
        plan, here(ROOT), started, waiting(plan), place(plan), said, PID
    )


def failing(checks: list[Any]) -> list[str]:
    return [check[0] for check in checks if check[4] is False]


PROFILES = {
    "deny-all": Profile(),
    "loopback": Profile(network=NetworkPolicy("loopback")),
    "host network": Profile(
        network=NetworkPolicy("host"), escape_hatch=EscapeHatch(allow_net_host=True)
    ),
    "capabilities": Profile(capabilities=["CHOWN", "SYS_CHROOT"]),
    "writable root": Profile(writable_root=True),
    "mounts": Profile(mounts=[Mount(source(b"/a"), "/w"), Mount(source(b"/b"), "/w/x y", "rw")]),
}


@pytest.mark.parametrize("host", [ROOT, ORDINARY], ids=["root", "ordinary"])
@pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))
def test_what_is_as_planned_holds(profile: Profile, host: Host) -> None:
    plan = plan_of(profile, host=host)
    if any(step[0] == blob.OVERLAY for step in plan.steps):
        # Only the types differ from what ``place`` makes up.
        mounts = (*place(plan).mounts, (b"/usr", SPACE | {b"rw"}, b"overlay", ()))
        checks = of_place(plan, host, place(plan, mounts=mounts))
    else:
        checks = of_place(plan, host, place(plan))
    checks += of_command(plan, host, waiting(plan))
    assert failing(checks) == []
    assert all(check[4] is True for check in checks if check[0] != "cwd")
    readback.refuse_mismatch(checks)


OTHER_PLACES: list[tuple[str, str, Any]] = [
    ("uid_map", "uid_map", ((0, 0, 4294967295),)),
    ("uid_map", "uid_map", ()),
    ("gid_map", "gid_map", ((0, 0, 4294967295),)),
    ("interfaces", "interfaces", (b"lo", b"eth0")),
    ("interfaces", "interfaces", ()),
    ("loopback_up", "loopback_is_up", True),
]


@pytest.mark.parametrize(("field", "attribute", "value"), OTHER_PLACES)
def test_a_place_that_differs(field: str, attribute: str, value: Any) -> None:
    plan = plan_of()
    assert failing(of_place(plan, ROOT, place(plan, **{attribute: value}))) == [field]


@pytest.mark.parametrize("kind", NAMESPACES)
def test_a_namespace_of_the_host(kind: str) -> None:
    plan = plan_of()
    seen = place(plan, namespaces=tuple({**INSIDE, kind: OWN[kind]}.items()))
    assert failing(of_place(plan, ROOT, seen)) == [f"namespace.{kind}"]


def test_an_own_network_where_the_hosts_was_granted() -> None:
    plan = plan_of(PROFILES["host network"])
    seen = place(plan, namespaces=tuple(INSIDE.items()))
    assert failing(of_place(plan, ROOT, seen)) == ["namespace.net"]


def edited(mounts: tuple[Any, ...], which: bytes, **changes: Any) -> tuple[Any, ...]:
    names = ("path", "options", "kind", "tags")
    return tuple(
        tuple(changes.get(name, value) for name, value in zip(names, mount, strict=True))
        if mount[0] == which
        else mount
        for mount in mounts
    )


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        (b"/usr", {"options": frozenset({b"rw", b"nosuid", b"nodev"})}),
        (b"/usr", {"options": frozenset({b"ro", b"nodev"})}),
        (b"/usr", {"options": frozenset({b"ro", b"nosuid"})}),
        (b"/usr", {"tags": (b"shared:7",)}),
        (b"/usr", {"tags": (b"master:7",)}),
        (b"/usr", {"path": b"/usr2"}),
        (b"/tmp", {"kind": b"ext4"}),
        (b"/tmp", {"options": frozenset({b"rw", b"nosuid"})}),
        (b"/tmp", {"options": SPACE | {b"ro"}}),
        (b"/proc", {"options": SPACE | {b"rw", b"noexec"}}),
        (b"/proc", {"kind": b"tmpfs"}),
        (b"/proc/keys", {"options": SPACE | {b"rw", b"noexec"}}),
        (b"/dev/pts", {"kind": b"tmpfs"}),
        (b"/dev/null", {"options": frozenset({b"ro", b"noexec"})}),
        (b"/", {"kind": b"overlay"}),
        (b"/w", {"options": frozenset({b"rw", b"nosuid", b"nodev"})}),
    ],
)
def test_a_mount_that_differs(path: bytes, changes: dict[str, Any]) -> None:
    plan = plan_of(PROFILES["mounts"])
    mounts = edited(place(plan).mounts, path, **changes)
    assert mounts != place(plan).mounts
    assert failing(of_place(plan, ROOT, place(plan, mounts=mounts))) == ["mounts"]


@pytest.mark.parametrize(
    ("extra", "found"),
    [
        ((b"/host", SPACE | {b"ro"}, b"ext4", ()), True),
        ((b"/usr/local", frozenset({b"ro", b"nosuid", b"nodev"}), b"nfs", ()), False),
        ((b"/usr/local", frozenset({b"rw", b"nosuid", b"nodev"}), b"nfs", ()), True),
        ((b"/usr/local", frozenset({b"ro", b"nosuid"}), b"nfs", ()), True),
        ((b"/usrlocal", frozenset({b"ro", b"nosuid", b"nodev"}), b"nfs", ()), True),
        ((b"/tmp/x", SPACE | {b"rw"}, b"tmpfs", ()), True),
    ],
)
def test_a_mount_more(extra: Any, found: bool) -> None:
    """Only what a bound tree carries along, at least as restricted as the tree itself."""
    plan = plan_of()
    seen = place(plan, mounts=(*place(plan).mounts, extra))
    assert failing(of_place(plan, ROOT, seen)) == (["mounts"] if found else [])


def test_a_mount_less() -> None:
    plan = plan_of()
    for mount in place(plan).mounts[1:]:
        left = tuple(m for m in place(plan).mounts if m != mount)
        assert failing(of_place(plan, ROOT, place(plan, mounts=left))) == ["mounts"]


def test_a_writable_root() -> None:
    plan = plan_of()
    mounts = edited(place(plan).mounts, b"/", options=SPACE | {b"rw"})
    assert failing(of_place(plan, ROOT, place(plan, mounts=mounts))) == ["mounts", "root_writable"]


@pytest.mark.parametrize(
    ("hello", "of_command", "fresh"),
    [
        (Hello(5, 6), 0, True),
        (Hello(5, 6), 6, True),
        (Hello(0, 0), 0, True),
        (Hello(5, 5), 0, False),
        (Hello(5, 5), 5, False),
        (Hello(5, 6), 5, False),
        (Hello(5, 6), 7, False),
        (Hello(0, 0), 7, False),
    ],
)
def test_the_session_keyring(hello: Hello, of_command: int, fresh: bool) -> None:
    plan = plan_of()
    checks = of_command_with(plan, hello, ready(keyring=of_command))
    assert failing(checks) == ([] if fresh else ["session_keyring"])


UID = IDS_START + 1000
OTHER_COMMANDS: list[tuple[str, str, Any]] = [
    ("uid", "uids", (UID, UID, UID, 0)),
    ("uid", "uids", (0, 0, 0, 0)),
    ("gid", "gids", (UID, 0, UID, UID)),
    ("groups", "groups", (27,)),
    ("pids", "pids", (PID,)),
    ("pids", "pids", (PID, 1)),
    ("pids", "pids", (PID + 1, 2)),
    ("pids", "pids", (PID, 5, 2)),
    ("no_new_privs", "no_new_privs", 0),
    ("seccomp_mode", "seccomp_mode", 0),
    ("seccomp_filters", "seccomp_filters", 3),
    ("seccomp_filters", "seccomp_filters", 5),
    ("same_place", "namespaces", tuple(OWN.items())),
    ("same_place", "root", b"/usr"),
    ("descriptors", "descriptors", {0: (70, 0), 1: (71, 1)}),
    ("descriptors", "descriptors", {0: (70, 0), 1: (71, 1), 2: (71, 1)}),
    ("descriptors", "descriptors", {0: (70, 0), 1: (71, 1), 2: (72, 1), 9: (5, 0)}),
    ("session", "session", 1),
    ("terminal", "terminal", 34816),
    ("open_files", "open_files", 1025),
    ("core_bytes", "core_limit", 0),
    *(
        (
            f"capabilities.{name}",
            "capabilities",
            tuple(1 if other == name else 0 for other in readback.CAPABILITY_SETS),
        )
        for name in readback.CAPABILITY_SETS
    ),
]


@pytest.mark.parametrize(("field", "attribute", "value"), OTHER_COMMANDS)
def test_a_command_that_differs(field: str, attribute: str, value: Any) -> None:
    plan = plan_of()
    checks = of_command(plan, ROOT, waiting(plan, **{attribute: value}))
    assert failing(checks) == [field]
    with pytest.raises(SandboxError) as caught:
        readback.refuse_mismatch(checks)
    assert caught.value.code is Code.ENFORCEMENT_MISMATCH
    assert caught.value.details["field"] == field
    assert caught.value.message.isprintable()


def test_without_privilege_the_callers_groups_stay_and_no_others() -> None:
    plan = plan_of(host=ORDINARY)
    assert failing(of_command(plan, ORDINARY, waiting(plan, groups=(600, 27)))) == ["groups"]


@pytest.mark.parametrize("number", readback.PROBES)
def test_a_filter_that_lets_a_call_through(number: int) -> None:
    plan = plan_of()
    answers = tuple((n, 0 if n == number else e) for n, (_, e) in readback.PROBES.items())
    name = f"filter.{readback.PROBES[number][0]}"
    assert failing(of_command(plan, ROOT, waiting(plan), ready(probes=answers))) == [name]


def test_probes_that_were_not_answered() -> None:
    plan = plan_of()
    assert len(failing(of_command(plan, ROOT, waiting(plan), ready(probes=())))) == 10


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("dumpable", {"dumpable": 1}),
        ("dumpable", {"dumpable": 2}),
        ("environment", {"names": (*NAMES, b"LD_PRELOAD")}),
        ("environment", {"names": NAMES[:1]}),
    ],
)
def test_what_the_inside_says_of_itself(field: str, said: dict[str, Any]) -> None:
    plan = plan_of()
    assert failing(of_command(plan, ROOT, waiting(plan), ready(**said))) == [field]


def test_a_directory_through_a_link_is_told_but_no_fault() -> None:
    plan = plan_of()
    checks = of_command(plan, ROOT, waiting(plan, cwd=b"/tmp"), cwd=b"/var/tmp")
    [cwd] = [check for check in checks if check[0] == "cwd"]
    assert cwd[2:5] == (b"/var/tmp", b"/tmp", None)
    assert failing(checks) == []


def test_what_cannot_be_read_is_marked_and_not_passed_over() -> None:
    plan = plan_of()
    seen = waiting(plan, descriptors=Unreadable("Permission denied"), seccomp_filters=None)
    checks = {check[0]: check for check in of_command(plan, ROOT, seen, names=None)}
    for field in ("descriptors", "seccomp_filters", "environment"):
        assert checks[field][4] is None
        assert str(readback.shown(checks[field][3])).startswith("not readable: ")
