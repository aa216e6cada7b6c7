"""A profile denies what it does not say, and says no to what it cannot mean."""

from __future__ import annotations

import math
from collections.abc import Callable

import made_up
import pytest

from kis.errors import Code, ErrProfileUnsatisfiable, SandboxError
from kis.identity import MountSource
from kis.limits import Limits
from kis.profile import (
    Device,
    EscapeHatch,
    Mount,
    NetworkPolicy,
    Profile,
    Secret,
    Tmpfs,
)
from kis.vocabulary import (
    GRANTABLE_CAPABILITIES,
    ISOLATION,
    LIMITS,
    UNLIMITED,
    Demand,
    NetworkMode,
    Tier,
)


def source(
    path: bytes = b"/host/data", kind: str = "directory", owner: tuple[int, int] = (1000, 1000)
) -> MountSource:
    return made_up.source(path, kind, owner)


def refused(make: Callable[[], object], code: Code, field: str) -> SandboxError:
    with pytest.raises(SandboxError) as caught:
        make()
    assert caught.value.code is code
    assert caught.value.details["field"] == field
    return caught.value


def test_profile_without_words_grants_nothing() -> None:
    """P1: an unset field denies."""
    profile = Profile()
    assert profile.network.mode is NetworkMode.OFF
    assert not profile.network.named
    assert profile.mounts == profile.devices == profile.tmpfs == profile.secrets == ()
    assert profile.capabilities == ()
    assert not profile.writable_root
    assert profile.escape_hatch == EscapeHatch(False, False, False)
    assert profile.limits.resolved_open_files == 1024
    assert profile.limits.resolved_wall_seconds == 300.0
    assert profile.limits.resolved_output_bytes == 64 << 20
    assert profile.limits.named == frozenset()


def test_profile_demands_all_isolation_in_a_confining_tier() -> None:
    granted = {
        Demand.NETWORK_LOOPBACK,
        Demand.NETWORK_EGRESS,
        Demand.NETWORK_EGRESS_ALLOW,
        Demand.NETWORK_HOST,
        Demand.MOUNT_READ_ONLY,
        Demand.MOUNT_READ_WRITE,
        Demand.MOUNT_ELSEWHERE,
        Demand.WRITABLE_ROOT,
        Demand.CAPABILITIES_GRANTED,
        Demand.DEVICES_GRANTED,
        Demand.OTHER_USER,
    }
    for tier in (Tier.CONTAINER, Tier.MICROVM, Tier.WASM):
        assert Profile().demands(tier) == (ISOLATION - granted) | LIMITS


def test_profile_of_host_tier_does_not_demand_own_root() -> None:
    demands = Profile().demands(Tier.HOST)
    assert Demand.OWN_ROOT not in demands
    assert {Demand.NETWORK_OFF, Demand.NO_NEW_PRIVILEGES, Demand.SYSTEM_CALLS_FILTERED} <= demands


def test_profile_of_process_tier_demands_only_what_was_named() -> None:
    """The hatch waives isolation that nobody named, never a limit."""
    tier = Tier.PROCESS
    assert Profile().demands(tier) == {Demand.WALL_TIME, Demand.OUTPUT_CAP}
    assert Demand.NETWORK_OFF in Profile(network=NetworkPolicy("off")).demands(tier)
    assert Demand.OPEN_FILES in Profile(limits=Limits(open_files=7)).demands(tier)
    assert Demand.MOUNT_READ_ONLY in Profile(mounts=[Mount(source(), "/m")]).demands(tier)


@pytest.mark.parametrize(
    ("grant", "demand"),
    [
        (lambda: Profile(network=NetworkPolicy("loopback")), Demand.NETWORK_LOOPBACK),
        (lambda: Profile(network=NetworkPolicy("egress")), Demand.NETWORK_EGRESS),
        (
            lambda: Profile(network=NetworkPolicy("egress", ["pypi.org"])),
            Demand.NETWORK_EGRESS_ALLOW,
        ),
        (lambda: Profile(network=NetworkPolicy("host")), Demand.NETWORK_HOST),
        (lambda: Profile(mounts=[Mount(source(), "/m")]), Demand.MOUNT_READ_ONLY),
        (lambda: Profile(mounts=[Mount(source(), "/m")]), Demand.MOUNT_ELSEWHERE),
        (lambda: Profile(mounts=[Mount(source(), "/m", "rw")]), Demand.MOUNT_READ_WRITE),
        (lambda: Profile(tmpfs=[Tmpfs("/t")]), Demand.MOUNT_ELSEWHERE),
        (lambda: Profile(secrets=[Secret("s", b"x")]), Demand.MOUNT_ELSEWHERE),
        (lambda: Profile(writable_root=True), Demand.WRITABLE_ROOT),
        (lambda: Profile(capabilities=["CHOWN"]), Demand.CAPABILITIES_GRANTED),
        (lambda: Profile(devices=[Device(source(b"/dev/x", "device"))]), Demand.DEVICES_GRANTED),
    ],
)
def test_profile_grant_adds_its_demand(grant: Callable[[], Profile], demand: Demand) -> None:
    assert demand not in Profile().demands(Tier.CONTAINER)
    assert demand in grant().demands(Tier.CONTAINER)


def test_mount_at_its_own_path_is_not_elsewhere() -> None:
    profile = Profile(mounts=[Mount(source(), "/host/data")])
    assert Demand.MOUNT_ELSEWHERE not in profile.demands(Tier.HOST)


@pytest.mark.parametrize(
    "target",
    ["", "relative", "/", "//", "/.", "/a/../b", "/..", "/a\0b", "/proc", "/proc/x", "/sys/fs",
     "/dev", "/dev/shm", "/./proc", "//dev", "/" + "x" * 256, "/x" * 2048, 7, None],
)  # fmt: skip
def test_mount_refuses_target(target: object) -> None:
    refused(lambda: Mount(source(), target), Code.MOUNT_INVALID, "mounts.target")  # type: ignore[arg-type]
    refused(lambda: Tmpfs(target), Code.MOUNT_INVALID, "mounts.target")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "normal"),
    [
        ("/m/a b:c", b"/m/a b:c"),
        ("/m/日本", "/m/日本".encode()),
        ("//m//./x/", b"/m/x"),
        (b"/m/\xff", b"/m/\xff"),
        ("/m/\udcff", b"/m/\xff"),
        ("/-v\n", b"/-v\n"),
        ("/device", b"/device"),
        ("/a..b", b"/a..b"),
    ],
)
def test_mount_normalises_target(target: str | bytes, normal: bytes) -> None:
    """A11: awkward paths are paths."""
    assert Mount(source(), target).target == normal


def test_mount_refuses_bad_parts() -> None:
    refused(lambda: Mount("/path", "/m"), Code.MOUNT_INVALID, "mounts.source")  # type: ignore[arg-type]
    refused(lambda: Mount(source(), "/m", "wo"), Code.MOUNT_INVALID, "mounts.mode")
    device = source(b"/dev/x", "device")
    refused(lambda: Mount(device, "/m"), Code.MOUNT_INVALID, "mounts.source")
    for owner in ((1,), (1, -1), (True, 1), [1, 1], (1, 0xFFFFFFFF), ("1", 1)):
        refused(
            lambda owner=owner: Mount(source(), "/m", "rw", owner),
            Code.MOUNT_INVALID,
            "mounts.owner",
        )


def test_mount_of_roots_directory_needs_an_owner() -> None:
    """Files would be made on the host as root; that must be said, never happen by itself."""
    for owner in ((0, 0), (0, 5), (5, 0)):
        error = refused(
            lambda owner=owner: Mount(source(owner=owner), "/m", "rw"),
            Code.MOUNT_INVALID,
            "mounts.owner",
        )
        assert "owner=" in error.hint
    assert Mount(source(owner=(0, 0)), "/m").target == b"/m"
    assert Mount(source(owner=(0, 0)), "/m", "rw", (5, 6)).file_owner == (5, 6)
    assert Mount(source(owner=(7, 8)), "/m", "rw").file_owner == (7, 8)


def test_mount_owner_of_read_only_is_refused() -> None:
    """What would not be enforced is not accepted."""
    refused(lambda: Mount(source(), "/m", "ro", (1, 1)), Code.MOUNT_INVALID, "mounts.owner")


def test_profile_refuses_target_twice() -> None:
    mount = Mount(source(), "/m")
    for parts in (
        {"mounts": [mount, Mount(source(b"/other"), "/m/")]},
        {"mounts": [mount], "tmpfs": [Tmpfs("/m")]},
        {"tmpfs": [Tmpfs("/run/secrets/s")], "secrets": [Secret("s", b"")]},
        {"secrets": [Secret("s", b""), Secret("s", b"")]},
    ):
        refused(
            lambda parts=parts: Profile(**parts),  # type: ignore[arg-type]
            Code.MOUNT_INVALID,
            "mounts.target",
        )
    assert len(Profile(mounts=[mount, Mount(source(), "/m/sub")]).mounts) == 2


def test_device_keeps_its_path_below_dev() -> None:
    assert Device(source(b"/dev/dri/card0", "device")).target == b"/dev/dri/card0"
    assert Device(source(b"/made/here", "device")).target == b"/dev/here"
    refused(lambda: Device(source()), Code.MOUNT_INVALID, "devices")


def test_capabilities_are_normalised() -> None:
    assert Profile(capabilities=["cap_setuid", "CHOWN", "chown"]).capabilities == (
        "CHOWN",
        "SETUID",
    )


def test_capability_that_ends_confinement_is_unsatisfiable() -> None:
    with pytest.raises(ErrProfileUnsatisfiable) as caught:
        Profile(capabilities=["SYS_ADMIN"])
    assert caught.value.details["unmet"] == ["own_root"]
    refused(lambda: Profile(capabilities=["FLY"]), Code.PROFILE_INVALID, "capabilities")
    refused(lambda: Profile(capabilities="CHOWN"), Code.PROFILE_INVALID, "capabilities")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: NetworkPolicy("on"), "network.mode"),
        (lambda: NetworkPolicy("egress", "pypi.org"), "network.allow"),
        (lambda: NetworkPolicy("off", ["pypi.org"]), "network.allow"),
        (lambda: NetworkPolicy(None, ["pypi.org"]), "network.allow"),
        (lambda: NetworkPolicy("egress", ["a\0b"]), "network.allow"),
        (lambda: EscapeHatch(allow_net_host=1), "escape_hatch.allow_net_host"),
        (lambda: Profile(writable_root="no"), "writable_root"),
        (lambda: Profile(network="off"), "network"),
        (lambda: Profile(mounts=["/m"]), "mounts"),
        (lambda: Secret("", b""), "secrets.name"),
        (lambda: Secret("a/b", b""), "secrets.name"),
        (lambda: Secret("..", b""), "secrets.name"),
        (lambda: Secret("x" * 256, b""), "secrets.name"),
        (lambda: Secret("s", b"x" * ((1 << 20) + 1)), "secrets.content"),
        (lambda: Secret("s", "text"), "secrets.content"),
        (lambda: Limits(open_files=0), "limits.open_files"),
        (lambda: Limits(open_files=True), "limits.open_files"),
        (lambda: Limits(open_files="7"), "limits.open_files"),
        (lambda: Limits(open_files=(1 << 20) + 1), "limits.open_files"),
        (lambda: Limits(wall_seconds=0), "limits.wall_seconds"),
        (lambda: Limits(wall_seconds=-1), "limits.wall_seconds"),
        (lambda: Limits(wall_seconds=math.nan), "limits.wall_seconds"),
        (lambda: Limits(wall_seconds=math.inf), "limits.wall_seconds"),
        (lambda: Limits(wall_seconds=10**400), "limits.wall_seconds"),
        (lambda: Limits(wall_seconds="soon"), "limits.wall_seconds"),
        (lambda: Limits(grace_seconds=UNLIMITED), "limits.grace_seconds"),
        (lambda: Limits(output_bytes="1T"), "limits.output_bytes"),
        (lambda: Limits(output_bytes=1.5), "limits.output_bytes"),
        (lambda: Limits(output_bytes=1 << 50), "limits.output_bytes"),
    ],
)
def test_profile_field_refuses_value(make: Callable[[], object], field: str) -> None:
    error = refused(make, Code.PROFILE_INVALID, field)
    assert error.message.startswith(field)


def test_limits_take_text_and_unlimited() -> None:
    limits = Limits(UNLIMITED, "2m", "1KiB", "500ms")
    assert limits.resolved_open_files is None
    assert limits.resolved_wall_seconds == 120.0
    assert limits.resolved_output_bytes == 1024
    assert limits.resolved_grace_seconds == 0.5
    assert limits.named == {"open_files", "wall_seconds", "output_bytes", "grace_seconds"}
    lifted = Profile(limits=Limits(UNLIMITED, UNLIMITED, UNLIMITED))
    assert not lifted.demands(Tier.CONTAINER) & LIMITS


def test_secret_content_is_never_shown() -> None:
    profile = Profile(secrets=[Secret("token", b"hunter2")])
    assert "hunter2" not in repr(profile)
    assert profile.secrets[0].target == b"/run/secrets/token"


def test_profile_replace_keeps_what_was_not_named() -> None:
    """A network that nobody named is not named by a copy."""
    assert not Profile().replace(writable_root=True).network.named
    assert not NetworkPolicy().replace().named
    assert NetworkPolicy("off").replace().named


def test_unknown_capability_is_answered_with_those_there_are() -> None:
    error = refused(lambda: Profile(capabilities=["FOO"]), Code.PROFILE_INVALID, "capabilities")
    assert all(name in error.hint for name in GRANTABLE_CAPABILITIES)


def test_roots_directory_needs_an_owner_who_may_write_there() -> None:
    error = refused(
        lambda: Mount(source(owner=(0, 0)), "/m", "rw"), Code.MOUNT_INVALID, "mounts.owner"
    )
    assert "owner=UID[:GID]" in error.hint
    assert "chown" in error.hint
