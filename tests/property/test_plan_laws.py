"""Laws of plans: deny-all is the least, a grant adds and never takes away, values stay values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import IDS_START, ORDINARY, ROOT, directory_base, host_base, request, source

from kis.backends.namespaces import Namespaces
from kis.backends.process import Process
from kis.engine import blob
from kis.engine.backend import Backend, Plan
from kis.engine.host import Host, Machine
from kis.errors import SandboxError
from kis.identity import Base
from kis.profile import (
    Device,
    EscapeHatch,
    Limits,
    Mount,
    NetworkPolicy,
    Profile,
    Secret,
    Tmpfs,
)
from kis.vocabulary import GRANTABLE_CAPABILITIES, UNLIMITED, Demand, Tier

names = st.binary(min_size=1, max_size=12).filter(
    lambda name: not set(name) & {0, ord("/")} and name not in (b".", b"..")
)
awkward = st.sampled_from(
    [b"-v", b"--bind", b"a b", b"a:b", b"a,b", b"new\nline", b"\xff\xfe", b"="]
)
paths = st.lists(st.one_of(names, awkward), min_size=1, max_size=3).map(
    lambda parts: b"/m" + b"/" + b"/".join(parts)
)
owners = st.tuples(st.integers(1, 60_000), st.integers(1, 60_000))
ordinary_owner = st.just((500, 600))


def mounts(owner: Any) -> st.SearchStrategy[Mount]:
    return st.builds(
        lambda path, target, mode, who: Mount(source(path, owner=who), target, mode),
        paths,
        paths,
        st.sampled_from(["ro", "rw"]),
        owner,
    )


capabilities = st.sets(st.sampled_from(sorted(GRANTABLE_CAPABILITIES)))
networks = st.sampled_from([None, "off", "loopback", "host"])
limits = st.builds(
    Limits, open_files=st.one_of(st.none(), st.integers(8, 4096), st.just(UNLIMITED))
)


@st.composite
def profiles(draw: Any, owner: Any = owners) -> Profile:
    taken: set[bytes] = set()
    chosen = []
    for mount in draw(st.lists(mounts(owner), max_size=3)):
        if mount.target not in taken:
            taken.add(mount.target)
            chosen.append(mount)
    scratch = [Tmpfs(b"/t" + path) for path in draw(st.sets(paths, max_size=2))]
    secrets = draw(st.dictionaries(st.sampled_from(["a", "b"]), st.binary(max_size=9), max_size=2))
    return Profile(
        network=NetworkPolicy(draw(networks)),
        mounts=chosen,
        tmpfs=scratch,
        capabilities=sorted(draw(capabilities)),
        limits=draw(limits),
        writable_root=draw(st.booleans()),
        escape_hatch=EscapeHatch(allow_net_host=True),
        secrets=[Secret(name, content) for name, content in secrets.items()],
    )


machines = st.builds(
    Machine,
    sensitive_proc=st.sets(st.sampled_from([b"keys", b"acpi", b"kcore"])).map(
        lambda found: tuple(sorted(found))
    ),
    core_handler=st.sampled_from(["", "program", "socket"]),
)
hosts = st.builds(
    lambda base, machine, files: base.replace(machine=machine, open_files_limit=files),
    st.sampled_from([ROOT, ORDINARY]),
    machines,
    st.sampled_from([4096, 1 << 20]),
)
bases = st.sampled_from([host_base(), directory_base(), directory_base(500)])


def planned(profile: Profile, base: Base, host: Host, **more: Any) -> Plan:
    return Namespaces().plan(request(profile, base, host, **more))


def fitting(profile: Profile, host: Host) -> Profile:
    """As an ordinary user, a rw mount must be one's own."""
    if host.privileged:
        return profile
    kept = [m for m in profile.mounts if not m.writable or m.file_owner == (500, 600)]
    return profile.replace(mounts=kept)


# What stands for a denial in a plan: what must be there for nothing to be granted.
def denials(plan: Plan) -> set[Any]:
    found: set[Any] = set()
    for bit, name in ((blob.LOOPBACK, "loopback"), (blob.NET_HOST, "host network")):
        if not plan.mode & bit:
            found.add(name)
    if plan.mode & blob.ROOT_READONLY:
        found.add("read-only root")
    for number in range(64):
        if not plan.capability_mask() >> number & 1:
            found.add(("capability", number))
    for step in plan.steps:
        if step[0] in (blob.FILTER, blob.MASK, blob.UID_MAP, blob.GID_MAP, blob.RLIMIT):
            found.add(step)
    return found


# Which denial each grant lifts, and no other.
GRANTS: list[tuple[dict[str, Any], Any]] = [
    ({"network": NetworkPolicy("loopback")}, {"loopback"}),
    ({"network": NetworkPolicy("host")}, {"host network"}),
    ({"writable_root": True}, {"read-only root"}),
    ({"capabilities": ("KILL",)}, {("capability", 5)}),
    ({"mounts": (Mount(source(b"/a"), "/w"),)}, set()),
    ({"mounts": (Mount(source(b"/a"), "/w", "rw"),)}, set()),
    ({"devices": (Device(source(b"/dev/kvm", "device", (0, 0))),)}, set()),
    ({"tmpfs": (Tmpfs("/scratch"),)}, set()),
    ({"secrets": (Secret("s", b"x"),)}, set()),
    ({"limits": Limits(open_files=UNLIMITED)}, set()),
]


@given(base=bases, host=hosts)
def test_deny_all_is_the_identity(base: Base, host: Host) -> None:
    """Saying every default changes nothing."""
    said = Profile(
        network=NetworkPolicy("off"),
        mounts=[],
        capabilities=[],
        limits=Limits(open_files=1024),
        writable_root=False,
    )
    assert planned(Profile(), base, host) == planned(said, base, host)


@given(base=bases, host=hosts)
def test_deny_all_grants_nothing(base: Base, host: Host) -> None:
    plan = planned(Profile(), base, host)
    assert plan.capability_mask() == 0
    assert plan.mode & ~blob.PRIVILEGED == blob.ROOT_READONLY
    assert [step for step in plan.steps if step[0] == blob.FILTER] == [(blob.FILTER, 1)]
    assert all(
        step[2] & blob.RDONLY and step[2] & blob.NOSUID
        for step in plan.steps
        if step[0] == blob.BIND
    )


@given(profile=profiles(), grant=st.sampled_from(GRANTS), base=bases, host=hosts)
def test_a_grant_lifts_its_own_denial_and_no_other(
    profile: Profile, grant: tuple[dict[str, Any], Any], base: Base, host: Host
) -> None:
    changes, lifted = grant
    before = fitting(profile, host)
    [(field, value)] = changes.items()
    if isinstance(value, tuple):
        held = getattr(before, field)
        targets = {getattr(record, "target", record) for record in held}
        value = (*held, *(v for v in value if getattr(v, "target", v) not in targets))
    after = before.replace(**{field: value})
    lost = denials(planned(before, base, host)) - denials(planned(after, base, host))
    assert lost <= lifted


CHANGES: list[tuple[str, Any, frozenset[Demand]]] = [
    ("network", NetworkPolicy("loopback"), frozenset({Demand.NETWORK_LOOPBACK})),
    ("network", NetworkPolicy("host"), frozenset({Demand.NETWORK_HOST})),
    ("network", NetworkPolicy("egress"), frozenset({Demand.NETWORK_EGRESS})),
    ("mounts", (Mount(source(b"/a"), "/w"),), frozenset({Demand.MOUNT_READ_ONLY})),
    ("mounts", (Mount(source(b"/a"), "/w", "rw"),), frozenset({Demand.MOUNT_READ_WRITE})),
    ("devices", GRANTS[6][0]["devices"], frozenset({Demand.DEVICES_GRANTED})),
    ("tmpfs", (Tmpfs("/t"),), frozenset({Demand.MOUNT_ELSEWHERE})),
    ("secrets", (Secret("s", b"x"),), frozenset({Demand.MOUNT_ELSEWHERE})),
    ("capabilities", ("CHOWN",), frozenset({Demand.CAPABILITIES_GRANTED})),
    ("writable_root", True, frozenset({Demand.WRITABLE_ROOT})),
    ("limits", Limits(open_files=77), frozenset({Demand.OPEN_FILES})),
]
# Kept by the engine itself, with no part in a plan.
KEPT_BY_THE_ENGINE = {"limits.wall_seconds", "limits.output_bytes", "limits.grace_seconds"}


@given(
    backend=st.sampled_from([Namespaces(), Process()]),
    change=st.sampled_from(CHANGES),
    host=hosts,
    base=bases,
)
def test_every_field_changes_the_plan_or_is_not_claimed(
    backend: Backend, change: tuple[str, Any, frozenset[Demand]], host: Host, base: Base
) -> None:
    field, value, demanded = change
    profile = Profile(**{field: value})
    assert demanded <= profile.demands(backend.tier)
    if not profile.demands(backend.tier) <= backend.claims(host):
        return
    if backend.tier is Tier.PROCESS and field == "network":
        return  # there is only the host's, which is what was asked for
    if backend.tier is Tier.PROCESS:
        base = host_base()  # it refuses any other
    plain, changed = (backend.plan(request(which, base, host)) for which in (Profile(), profile))
    assert (plain.steps, plain.limits) != (changed.steps, changed.limits)


def test_every_field_of_a_profile_is_looked_at() -> None:
    assert {field for field, _, _ in CHANGES} | {"escape_hatch"} == set(Profile._fields())


@given(profile=profiles(), base=bases, host=hosts)
def test_equal_inputs_equal_plans(profile: Profile, base: Base, host: Host) -> None:
    wanted = fitting(profile, host)
    assert planned(wanted, base, host) == planned(wanted.replace(), base, host)


@given(profile=profiles(), base=bases, host=hosts)
def test_every_plan_encodes_and_can_be_told(profile: Profile, base: Base, host: Host) -> None:
    plan = planned(fitting(profile, host), base, host)
    assert blob.encode(plan.steps)[:8] == blob.MAGIC
    assert len(plan.steps) == len(plan.origins)
    assert all(blob.describe(step).isprintable() for step in plan.steps)


@given(profile=profiles(), base=bases, host=hosts)
def test_no_secret_is_shown(profile: Profile, base: Base, host: Host) -> None:
    secret = Secret("token", b"hunter2-hunter2")
    wanted = fitting(profile, host).replace(secrets=(secret,))
    plan = planned(wanted, base, host)
    told = repr(plan) + "".join(blob.describe(step) for step in plan.steps) + repr(plan.mechanisms)
    assert "hunter2" not in told
    assert any(step[0] == blob.FILE and step[-1] == secret.content for step in plan.steps)


@given(target=paths, path=paths, host=hosts)
def test_no_value_becomes_an_option(target: bytes, path: bytes, host: Host) -> None:
    """Whatever a path looks like, it only ever fills the place of a path, whole and unchanged."""
    profile = Profile(mounts=[Mount(source(path), target)])
    plain = Profile(mounts=[Mount(source(b"/m/x"), b"/m/y")])
    steps = planned(profile, host_base(), host).steps
    others = planned(plain, host_base(), host).steps
    [bind] = [step for step in steps if step[0] == blob.BIND and step[-1] == path]
    [other] = [step for step in others if step[0] == blob.BIND and step[-1] == b"/m/x"]
    assert bind[4:] == (target, path)
    assert bind[:4] == other[:4]
    assert [step for step in steps if step != bind] == [step for step in others if step != other]


@given(targets=st.lists(paths, min_size=2, max_size=5, unique=True), host=hosts, data=st.data())
def test_parents_are_mounted_before_children_in_any_order_of_declaration(
    targets: list[bytes], host: Host, data: Any
) -> None:
    mounts = [Mount(source(b"/s%d" % n), target) for n, target in enumerate(targets)]
    shuffled = data.draw(st.permutations(mounts))
    order = [
        s[4]
        for s in planned(Profile(mounts=shuffled), host_base(), host).steps
        if s[0] == blob.BIND
    ]
    for at, child in enumerate(order):
        assert not any(later != child and child.startswith(later + b"/") for later in order[at:])
    assert set(targets) <= set(order)


@given(profile=profiles(), base=bases)
def test_no_id_of_the_host_but_those_of_the_range_and_the_owners(
    profile: Profile, base: Base
) -> None:
    """As root the payload's ids are the range's; the host's root is in no map at all."""
    plan = planned(profile, base, ROOT)
    inside = range(IDS_START, IDS_START + 65536)
    for step in plan.steps:
        if step[0] in (blob.UID_MAP, blob.GID_MAP):
            assert step[2] in inside
        elif step[0] == blob.IDMAP:
            entries = [step[at : at + 4] for at in range(3, len(step), 4)]
            assert all(outside in inside for _, _, outside, _ in entries)
            assert all(on_disk != 0 and count == 1 for _, on_disk, _, count in entries)


@given(mount=mounts(owners))
def test_without_privilege_only_ones_own_is_mounted_writable(mount: Mount) -> None:
    profile = Profile(mounts=[mount])
    own = mount.file_owner[0] == 500
    if own or not mount.writable:
        planned(profile, host_base(), ORDINARY)
        return
    with pytest.raises(SandboxError) as caught:
        planned(profile, host_base(), ORDINARY)
    assert caught.value.code == "mount_invalid"
