"""Machines, handles, bases and plans that need no machine: everything here is made up.

Knows how a plan comes about without descriptors or a kernel. Used by the unit tests of the engine
and by the laws of plans.
"""

from __future__ import annotations

from typing import Any

from kis.backends.namespaces import Namespaces
from kis.engine import admission
from kis.engine.backend import Plan, Request
from kis.engine.host import Host, Machine
from kis.identity import _KEY, Base, MountSource, _make_handle
from kis.profile import Profile

IDS_START = 0x70000000
ROOT = Host(Machine(sensitive_proc=(b"keys",)))
ORDINARY = Host(
    Machine(sensitive_proc=(b"keys",)), euid=500, egid=600, groups=(600,), capabilities=0
)


def source(
    path: bytes, kind: str = "directory", owner: tuple[int, int] = (500, 600), mode: int = 0o666
) -> MountSource:
    return _make_handle(
        MountSource,
        _KEY,
        descriptor=-1,
        kind=kind,
        path=path,
        device=1,
        inode=2,
        mode=mode,
        owner_uid=owner[0],
        owner_gid=owner[1],
    )


def host_base() -> Base:
    trees = [(source(b"/usr", owner=(0, 0)), b"/usr")]
    trees += [(source(b"/dev/" + n, "device", (0, 0)), b"/dev/" + n) for n in (b"null", b"zero")]
    files = [(b"/etc/localtime", b"TZif"), (b"/etc/resolv.conf", b"nameserver 192.0.2.53\n")]
    return admission.make_base("host", trees, [(b"/bin", b"usr/bin")], files)


def directory_base(owner: int = 0) -> Base:
    places = [(b"/srv/root", b"/"), (b"/srv/root/usr", b"/usr"), (b"/srv/root/etc", b"/etc")]
    trees = [(source(path, owner=(owner, owner)), place) for path, place in places]
    trees.append((source(b"/dev/null", "device", (0, 0)), b"/dev/null"))
    passwd = (b"/etc/passwd", b"root:x:0:0:root:/root:/bin/ash")
    return admission.make_base("directory", trees, [(b"/bin", b"usr/bin")], [passwd])


def request(
    profile: Profile | None = None, base: Base | None = None, host: Host = ROOT, **more: Any
) -> Request:
    """A request as root or, with ``host=ORDINARY``, without privilege."""
    start = IDS_START if host.privileged else None
    what: dict[str, Any] = {"uid": 1000, "gid": 1000, "ids_start": start, **more}
    return Request(profile or Profile(), base or host_base(), host, **what)


def plan_of(
    profile: Profile | None = None, base: Base | None = None, host: Host = ROOT, **more: Any
) -> Plan:
    return Namespaces().plan(request(profile, base, host, **more))
