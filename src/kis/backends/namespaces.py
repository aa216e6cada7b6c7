"""The container tier's own backend: every namespace, an own root, filters, no capability.

Knows: how a profile becomes records, as root and without privilege. Must not know: how they run.
Called by: engine, through the seam. Pure: facts come in as a Host.
"""

from __future__ import annotations

import errno
import os

from kis.engine import blob
from kis.engine.backend import DEFAULT_PATH, Backend, Finding, Plan
from kis.engine.channel import STEP_NAMESPACES
from kis.engine.limits import command_limits, core_limit, limits_claims
from kis.errors import quoted
from kis.linux.filesystem import bound_plainly, home_of, plan_tree
from kis.profile import tier_isolation
from kis.vocabulary import (
    AGENT_USER_ID,
    DEFAULT_USER_ID,
    GRANTABLE_CAPABILITIES,
    Demand,
    NetworkMode,
    Status,
    Tier,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kis.engine.backend import Request
    from kis.engine.blob import Step
    from kis.engine.channel import Fault
    from kis.engine.host import Host

IDS = 65536
_FILTERED_ARCHITECTURES = ("x86_64", "aarch64")
_GRANTS = frozenset(
    {
        Demand.NETWORK_OFF,
        Demand.NETWORK_LOOPBACK,
        Demand.NETWORK_HOST,
        Demand.MOUNT_READ_ONLY,
        Demand.MOUNT_READ_WRITE,
        Demand.MOUNT_ELSEWHERE,
        Demand.WRITABLE_ROOT,
        Demand.CAPABILITIES_GRANTED,
        Demand.DEVICES_GRANTED,
    }
)
_PING_GROUPS = "net/ipv4/ping_group_range"
_LOWEST_PORT = "net/ipv4/ip_unprivileged_port_start"


class Namespaces(Backend):
    """As root each sandbox has an id range of its own; without privilege our one id is its user."""

    tier = Tier.CONTAINER
    name = "namespaces"

    def probe(self, host: Host) -> Finding:
        machine = host.machine
        if machine.system != "Linux":
            return Finding(Status.ABSENT, reason=f"needs Linux, this is {machine.system}")
        if machine.architecture not in _FILTERED_ARCHITECTURES:
            return Finding(
                Status.ABSENT, reason=f"has no system call filter for {machine.architecture}"
            )
        if machine.memfd_noexec == 2:
            return _unusable(
                machine.release,
                "vm.memfd_noexec is 2, so that the agent cannot run from a sealed file",
                "Set it to 0 or 1: sysctl vm.memfd_noexec=1",
            )
        if host.is_initial_root and host.missing_capabilities:
            return _unusable(
                machine.release,
                f"root lacks {', '.join('CAP_' + name for name in host.missing_capabilities)}",
                "Start kis as an ordinary user, or give its container those capabilities.",
            )
        refused = _namespaces_switched_off(host)
        return refused or Finding(Status.USABLE, machine.release)

    def claims(self, host: Host) -> frozenset[Demand]:
        claims = tier_isolation(Tier.CONTAINER) | _GRANTS | limits_claims(host)
        # A limit of 1 keeps a program from being started, 0 does not; a socket asks no limit.
        handler = host.machine.core_handler
        if handler == "socket" or (handler == "program" and host.core_limit == 0):
            claims -= {Demand.NO_HOST_CORE}
        if host.privileged:
            claims |= {Demand.OTHER_USER}
        return claims

    def wants_ids(self, host: Host) -> bool:
        return host.privileged

    def plan(self, request: Request) -> Plan:
        tree, sources = plan_tree(request)
        records = [*_identity(request), *tree, *_confinement(request)]
        homes = [(request.uid, home_of(request.uid))]
        return Plan(
            self.tier,
            self.name,
            tuple(step for step, _ in records),
            tuple(origin for _, origin in records),
            tuple(sources),
            command_limits(request.profile, request.host),
            b":".join((*request.base.path_entries, DEFAULT_PATH)),
            tuple(homes),
            b"/tmp",
            _mechanisms(request),
        )

    def refused(self, host: Host, fault: Fault, agent_path: bytes) -> Finding | None:
        machine, denied = host.machine, fault.errno in (errno.EPERM, errno.EACCES)
        if denied and not host.privileged and machine.apparmor_restricts_user_namespaces:
            return _unusable(
                machine.release,
                "AppArmor lets no unprivileged program use the user namespaces that it makes "
                "(kernel.apparmor_restrict_unprivileged_userns is 1)",
                _apparmor_hint(agent_path),
            )
        if fault.step != STEP_NAMESPACES:
            return None
        refused = _namespaces_switched_off(host)
        if refused:
            return refused
        if fault.errno in (errno.ENOSPC, errno.EUSERS):
            return _unusable(
                machine.release,
                "the limit on namespaces is reached",
                "Raise user.max_user_namespaces and its siblings, or end other sandboxes.",
            )
        if denied or fault.errno == errno.ENOSYS:
            return _unusable(
                machine.release,
                "the kernel's switches allow user namespaces, and yet they are refused: by the "
                "seccomp filter or security module of an outer container",
                "Start the outer container with a filter that allows clone with CLONE_NEWUSER "
                "(docker: --security-opt seccomp=unconfined), or kis on the host itself.",
            )
        return _unusable(
            machine.release,
            f"the kernel refused to make namespaces: {os.strerror(fault.errno)}",
            "It needs every namespace type, and Linux 5.12 or newer.",
        )


def _unusable(version: str, reason: str, hint: str) -> Finding:
    return Finding(Status.UNUSABLE, version, reason, hint)


def _apparmor_hint(agent_path: bytes) -> str:
    path = agent_path.decode("utf-8", "backslashreplace")
    return (
        f"As root, put into /etc/apparmor.d/kis-init: abi <abi/4.0>, profile kis-init {path} "
        "flags=(unconfined) { userns, } and load it: apparmor_parser -r /etc/apparmor.d/kis-init"
    )


def _namespaces_switched_off(host: Host) -> Finding | None:
    machine = host.machine
    if machine.max_user_namespaces == 0:
        return _unusable(
            machine.release,
            "user namespaces are off: user.max_user_namespaces is 0",
            "sysctl user.max_user_namespaces=15000",
        )
    if host.is_initial_root:
        return None
    if machine.unprivileged_user_namespaces == 0:
        return _unusable(
            machine.release,
            "user namespaces are off for ordinary users: kernel.unprivileged_userns_clone is 0",
            "Start kis as root, or: sysctl kernel.unprivileged_userns_clone=1",
        )
    return None


def _identity(request: Request) -> list[tuple[Step, str]]:
    """MODE, the id maps, and who the agent is."""
    network = request.profile.network.mode
    mode = 0 if request.profile.writable_root else blob.ROOT_READONLY
    if network is NetworkMode.LOOPBACK:
        mode |= blob.LOOPBACK
    if network is NetworkMode.HOST:
        mode |= blob.NET_HOST
    if request.ids_start is not None:
        start = request.ids_start
        steps: list[Step] = [
            (blob.MODE, mode | blob.PRIVILEGED),
            (blob.UID_MAP, 0, start, IDS),
            (blob.GID_MAP, 0, start, IDS),
            (blob.AGENT, AGENT_USER_ID, AGENT_USER_ID),
        ]
    else:
        steps = [
            (blob.MODE, mode),
            (blob.UID_MAP, DEFAULT_USER_ID, request.host.euid, 1),
            (blob.GID_MAP, DEFAULT_USER_ID, request.host.egid, 1),
            (blob.AGENT, DEFAULT_USER_ID, DEFAULT_USER_ID),
        ]
    return [(step, "identity") for step in steps]


def _confinement(request: Request) -> list[tuple[Step, str]]:
    """What follows the tree: network switches, capabilities, limits, filters."""
    records: list[tuple[Step, str]] = []
    if request.profile.network.mode is NetworkMode.LOOPBACK:
        # Inside its own network namespace every id may ping and every port be listened on.
        top = 65534 if request.ids_start is not None else DEFAULT_USER_ID
        first = 0 if request.ids_start is not None else DEFAULT_USER_ID
        values = ((_PING_GROUPS, f"{first} {top}"), (_LOWEST_PORT, "0"))
        records += [((blob.SYSCTL, n.encode(), v.encode()), "network") for n, v in values]
    granted = request.profile.capabilities
    mask = sum(1 << GRANTABLE_CAPABILITIES[name] for name in granted)
    records.append(((blob.CAPS, mask), "capabilities"))
    records.append(((blob.RLIMIT, *core_limit(request.host)), "limits"))
    records.append(((blob.FILTER, blob.FILTER_PAYLOAD), "filters"))
    return records


def _mechanisms(request: Request) -> tuple[tuple[str, str], ...]:
    """Per field of the profile, what enforces it here."""
    privileged = request.ids_start is not None
    networks = {
        NetworkMode.OFF: "own network namespace, loopback down",
        NetworkMode.LOOPBACK: "own network namespace, loopback up",
        NetworkMode.HOST: "the host's network namespace (escape hatch)",
    }
    plain_base = bound_plainly(request)
    found = [
        ("network.mode", networks.get(request.profile.network.mode, "none")),
        ("user", "own id range, never the host's root" if privileged else "the one mapped id"),
        ("base", "bound plainly: owners show as nobody" if plain_base else _base_words(request)),
        ("writable_root", _root_words(request)),
        ("capabilities", "capability sets of the process, in its own user namespace"),
        ("limits.open_files", "RLIMIT_NOFILE"),
        ("limits.wall_seconds", "the engine's clock: SIGTERM, then SIGKILL of the sandbox"),
        ("limits.output_bytes", "counted by the engine, which kills the sandbox"),
    ]
    for at, mount in enumerate(request.profile.mounts):
        field = f"mounts[{at}]"
        mapped = privileged and field not in request.plain
        how = "id-mapped" if mapped else "bound plainly"
        if not mount.writable and not mapped:
            whose = "anybody" if privileged else "you"
            how += f"; sockets and pipes lying there that {whose} may use can be used"
        found.append((field, f"bind of the opened source, {how}"))
    found += [(f"devices[{at}]", "bind of the node") for at in range(len(request.profile.devices))]
    found += [(f"tmpfs[{at}]", "own tmpfs") for at in range(len(request.profile.tmpfs))]
    found += [
        (f"secrets[{at}]", "file 0400 in own tmpfs") for at in range(len(request.profile.secrets))
    ]
    return tuple(found)


def _root_words(request: Request) -> str:
    if not request.profile.writable_root:
        return "root mount, read-only"
    if request.base.kind == "host":
        return "root mount, writable; the host's own trees below it stay read-only"
    return "root mount, writable"


def _base_words(request: Request) -> str:
    if request.base.kind == "host":
        return "curated host tree, bound read-only"
    mapped = request.ids_start is not None
    below = f"overlay over {quoted(request.base.trees[0][0].path)}"
    return below + (", id-mapped" if mapped else "")
