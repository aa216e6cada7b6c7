"""What a sandbox's file system is made of: the base, what everybody has, and the grants."""

from __future__ import annotations

from typing import Any

import pytest
from made_up import IDS_START, ORDINARY, ROOT, directory_base, plan_of, source

from kis.engine import admission, blob
from kis.engine.backend import Plan
from kis.errors import Code, SandboxError
from kis.profile import Device, EscapeHatch, Mount, NetworkPolicy, Profile, Secret, Tmpfs
from kis.vocabulary import FOREIGN_IDS

USER, NOBODY = IDS_START + 1000, IDS_START + 65534
NO_FILE = 0xFFFFFFFD


def found(plan: Plan, record: int, path: bytes | None = None) -> Any:
    [step] = [s for s in plan.steps if s[0] == record and (path is None or path in s)]
    return step


def map_of(plan: Plan, target: bytes) -> set[tuple[int, int, int]]:
    """The id map of a mount: kind, id on disk, host id; each for one id."""
    index = found(plan, blob.BIND, target)[3]
    if index == blob.NONE:
        return set()
    [step] = [s for s in plan.steps if s[0] == blob.IDMAP and s[1] == index]
    assert step[2] * 4 == len(step) - 3
    entries = [step[at : at + 4] for at in range(3, len(step), 4)]
    assert all(count == 1 for *_, count in entries)
    return {(kind, disk, outside) for kind, disk, outside, _ in entries}


def mounted(mode: str, owner: tuple[int, int], named: tuple[int, int] | None = None) -> Profile:
    return Profile(mounts=[Mount(source(b"/s", owner=owner), "/w", mode, named)])


@pytest.mark.parametrize(
    ("profile", "wanted"),
    [
        (mounted("rw", (500, 600)), {(0, 500, USER), (1, 600, USER)}),
        # Named owner: the source keeps its own, which is nobody's inside.
        (
            mounted("rw", (0, 0), (4321, 4322)),
            {(0, 4321, USER), (1, 4322, USER), (0, 0, 0), (1, 0, 0)},
        ),
        (mounted("rw", (0, 0), (0, 0)), {(0, 0, USER), (1, 0, USER)}),
        # Read-only: the group is unmapped, so that no socket there can be written to.
        (mounted("ro", (500, 600)), {(0, 500, USER), (1, NO_FILE, NOBODY)}),
        (mounted("ro", (0, 0)), {(0, NO_FILE, NOBODY), (1, NO_FILE, NOBODY)}),
    ],
)
def test_whom_a_mount_stands_for(profile: Profile, wanted: set[tuple[int, int, int]]) -> None:
    assert map_of(plan_of(profile), b"/w") == wanted


def test_a_mount_that_takes_no_map_goes_plainly_when_told_so() -> None:
    plan = plan_of(mounted("ro", (500, 600)), plain=frozenset({"mounts[0]"}))
    assert map_of(plan, b"/w") == set()
    how = dict(plan.mechanisms)["mounts[0]"]
    assert "bound plainly" in how
    # Started by root no payload is the caller: of sockets there only what is anybody's is open.
    assert "anybody may use" in how
    rootless = plan_of(mounted("ro", (500, 600)), host=ORDINARY)
    assert "you may use" in dict(rootless.mechanisms)["mounts[0]"]


def test_without_privilege_there_is_no_map() -> None:
    plan = plan_of(mounted("rw", (500, 600)), host=ORDINARY)
    assert map_of(plan, b"/w") == set()
    assert found(plan, blob.UID_MAP) == (blob.UID_MAP, 1000, 500, 1)


@pytest.mark.parametrize(
    ("owner", "named"), [((501, 600), None), ((0, 5), (0, 5)), ((500, 600), (500, 601))]
)
def test_without_privilege_nobody_else_can_be_stood_for(
    owner: tuple[int, int], named: tuple[int, int] | None
) -> None:
    with pytest.raises(SandboxError) as caught:
        plan_of(mounted("rw", owner, named), host=ORDINARY)
    assert caught.value.code is Code.MOUNT_INVALID


def test_the_host_tree_is_bound_without_a_map_and_read_only() -> None:
    usr = found(plan_of(), blob.BIND, b"/usr")
    assert usr[2:4] == (blob.RDONLY | blob.NOSUID | blob.NODEV, blob.NONE)


BELOW = [Mount(source(b"/s"), "/usr/share/x")]


def test_the_host_tree_gets_an_upper_where_something_is_to_be_made_in_it() -> None:
    plan = plan_of(Profile(mounts=BELOW))
    [index] = [step[2] for step in plan.steps if step[0] == blob.OVERLAY and step[3] == b"/usr"]
    [shown] = [step for step in plan.steps if step[0] == blob.IDMAP and step[1] == index]
    first = IDS_START + FOREIGN_IDS.start
    assert shown[3:] == (0, 0, first, len(FOREIGN_IDS), 1, 0, first, len(FOREIGN_IDS))
    # Without privilege nothing can be made below what belongs to root.
    assert found(plan_of(Profile(mounts=BELOW), host=ORDINARY), blob.BIND, b"/usr")


@pytest.mark.parametrize(
    "profile",
    [
        Profile(writable_root=True),
        Profile(writable_root=True, capabilities=["DAC_OVERRIDE"]),
        *(
            Profile(mounts=BELOW, capabilities=[name])
            for name in ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID")
        ),
    ],
)
def test_nobody_inside_becomes_an_owner_in_the_host_tree(profile: Profile) -> None:
    assert found(plan_of(profile), blob.BIND, b"/usr")[4] == b"/usr"
    assert found(plan_of(profile), blob.BIND, b"/usr")[3] == blob.NONE


def test_a_directory_is_the_lower_layer_of_the_root() -> None:
    assert found(plan_of(base=directory_base()), blob.ROOT) == (blob.ROOT, 1, 1, 0, b"/srv/root")
    own = plan_of(base=directory_base(500), host=ORDINARY)
    assert found(own, blob.ROOT) == (blob.ROOT, 1, 1, blob.NONE, b"/srv/root")


@pytest.mark.parametrize(
    "plan",
    [
        plan_of(base=directory_base(), plain=frozenset({"base"})),
        plan_of(base=directory_base(0), host=ORDINARY),
    ],
)
def test_a_directory_that_takes_no_map_is_bound_entry_by_entry(plan: Plan) -> None:
    assert found(plan, blob.ROOT)[1] == 0
    assert found(plan, blob.BIND, b"/usr")[3] == blob.NONE
    assert found(plan, blob.LINK, b"/bin") == (blob.LINK, b"/bin", b"usr/bin")
    # Nothing can be made in its own /etc.
    assert not [s for s in plan.steps if s[0] == blob.FILE]
    assert "bound plainly" in dict(plan.mechanisms)["base"]


def contents(plan: Plan) -> dict[bytes, bytes]:
    return {step[4]: step[5] for step in plan.steps if step[0] == blob.FILE}


def test_names_are_resolved_by_the_host_only_on_its_network() -> None:
    assert b"nameserver" not in contents(plan_of())[b"/etc/resolv.conf"]
    hatch = EscapeHatch(allow_net_host=True)
    shared = plan_of(Profile(network=NetworkPolicy("host"), escape_hatch=hatch))
    assert b"192.0.2.53" in contents(shared)[b"/etc/resolv.conf"]


def test_a_base_keeps_its_own_accounts() -> None:
    passwd = contents(plan_of(base=directory_base()))[b"/etc/passwd"]
    assert passwd.startswith(b"root:x:0:0:root:/root:/bin/ash\nuser:x:1000:1000:")


def test_home_is_the_users_alone() -> None:
    home = found(plan_of(uid=1234, gid=77), blob.SPACE_BIND, b"/home/u1234")
    assert home[1:5] == (0o700, 1234, 77, 0)


def test_a_grant_covers_what_the_base_would_put_there() -> None:
    plan = plan_of(Profile(mounts=[Mount(source(b"/s"), "/etc"), Mount(source(b"/h"), "/home")]))
    assert not contents(plan)
    assert not [s for s in plan.steps if s[0] == blob.SPACE_BIND and s[5].startswith(b"/home")]


def test_a_secret_is_the_users_own_and_survives_a_grant_above_it() -> None:
    profile = Profile(secrets=[Secret("k", b"v")], tmpfs=[Tmpfs("/run/x")])
    secret = found(plan_of(profile), blob.FILE, b"/run/secrets/k")
    assert secret == (blob.FILE, 0o400, 1000, 1000, b"/run/secrets/k", b"v")


def test_a_device_is_a_device_where_nothing_else_is() -> None:
    profile = Profile(devices=[Device(source(b"/dev/kvm", "device", (0, 0)))])
    plan = plan_of(profile)
    assert not found(plan, blob.BIND, b"/dev/kvm")[2] & blob.NODEV
    assert not found(plan, blob.BIND, b"/dev/null")[2] & blob.NODEV
    assert found(plan, blob.BIND, b"/usr")[2] & blob.NODEV


def test_what_says_something_of_the_host_is_masked() -> None:
    assert found(plan_of(), blob.MASK) == (blob.MASK, b"/proc/keys")


def test_the_agent_has_an_id_of_its_own_wherever_there_are_two() -> None:
    assert found(plan_of(), blob.AGENT) == (blob.AGENT, 65533, 65533)
    assert found(plan_of(host=ORDINARY), blob.AGENT) == (blob.AGENT, 1000, 1000)


def test_root_owns_what_is_not_the_users() -> None:
    for host, root in ((ROOT, 0), (ORDINARY, 1000)):
        assert found(plan_of(host=host), blob.DIR, b"/run")[1:4] == (0o755, root, root)


def test_a_device_that_only_its_owner_may_use_is_refused_to_root() -> None:
    """The node's owner is nobody inside; without privilege admission has asked the kernel."""
    shut = Profile(devices=[Device(source(b"/dev/fuse", "device", (0, 0), mode=0o660))])
    with pytest.raises(SandboxError) as caught:
        plan_of(shut)
    assert caught.value.code is Code.MOUNT_INVALID
    assert caught.value.details["field"] == "devices"
    assert "mode 0660" in caught.value.message
    assert "chmod" in caught.value.hint
    assert found(plan_of(shut, host=ORDINARY), blob.BIND, b"/dev/fuse")
    readable = Profile(devices=[Device(source(b"/dev/rtc", "device", (0, 0), mode=0o664))])
    assert found(plan_of(readable), blob.BIND, b"/dev/rtc")


@pytest.mark.parametrize(("uid", "home"), [(0, b"/root"), (1000, b"/home/user")])
def test_what_every_sandbox_has_replaces_the_bases_tree(uid: int, home: bytes) -> None:
    """One thing at each path, though the base holds something there or a link on the way."""
    names = (b"", b"/root", b"/usr")
    trees = [(source(b"/srv" + name, owner=(0, 0)), name or b"/") for name in names]
    links = [(b"/home", b"/usr/home"), (b"/tmp", b"/var/tmp"), (b"/bin", b"usr/bin")]
    base = admission.make_base("directory", trees, links)
    plan = plan_of(base=base, plain=frozenset({"base"}), uid=uid, gid=uid)
    assert found(plan, blob.SPACE_BIND, home)
    bound = {step[4] for step in plan.steps if step[0] == blob.BIND}
    assert (b"/root" in bound) is (uid != 0)
    assert b"/usr" in bound
    linked = {step[1] for step in plan.steps if step[0] == blob.LINK}
    assert b"/bin" in linked
    assert b"/tmp" not in linked
    assert (b"/home" in linked) is (uid == 0)
