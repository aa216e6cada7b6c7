"""The closed sets of words that every room shares.

Knows: tiers, network modes, demands, reasons and the few numbers the kernel fixes for them.
Must not know: how any of it is enforced. Called by: everything.
"""

from __future__ import annotations

from enum import StrEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final


class Tier(StrEnum):
    """The kind of border between payload and host, weakest first."""

    PROCESS = "process"
    HOST = "host"
    CONTAINER = "container"
    MICROVM = "microvm"
    WASM = "wasm"


class NetworkMode(StrEnum):
    """What the payload can reach. ``OFF`` is the zero value; ``HOST`` is an escape hatch."""

    OFF = "off"
    LOOPBACK = "loopback"
    EGRESS = "egress"
    HOST = "host"


class MountMode(StrEnum):
    """Whether a mount can be written. ``RO`` when nothing is said."""

    RO = "ro"
    RW = "rw"


class Reason(StrEnum):
    """Why a command ended; every end has exactly one."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    KILLED = "killed"


class Status(StrEnum):
    """What a backend is on this machine. ``ABSENT`` is normal, ``UNUSABLE`` is an error."""

    ABSENT = "absent"
    UNUSABLE = "unusable"
    USABLE = "usable"


class Demand(StrEnum):
    """A property that a caller relies on and a backend may claim. See docs/tiers.md."""

    OWN_ROOT = "own_root"
    OWN_PROCESSES = "own_processes"
    OWN_IPC = "own_ipc"
    OWN_HOSTNAME = "own_hostname"
    NO_CAPABILITIES = "no_capabilities"
    NO_NEW_PRIVILEGES = "no_new_privileges"
    SYSTEM_CALLS_FILTERED = "system_calls_filtered"
    SET_ID_DENIED = "set_id_denied"
    CLEAN_ENVIRONMENT = "clean_environment"
    CLEAN_DESCRIPTORS = "clean_descriptors"
    MINIMAL_DEVICES = "minimal_devices"
    NO_HOST_CORE = "no_host_core"
    NETWORK_OFF = "network_off"
    NETWORK_LOOPBACK = "network_loopback"
    NETWORK_EGRESS = "network_egress"
    NETWORK_EGRESS_ALLOW = "network_egress_allow"
    NETWORK_HOST = "network_host"
    MOUNT_READ_ONLY = "mount_read_only"
    MOUNT_READ_WRITE = "mount_read_write"
    MOUNT_ELSEWHERE = "mount_elsewhere"
    WRITABLE_ROOT = "writable_root"
    CAPABILITIES_GRANTED = "capabilities_granted"
    DEVICES_GRANTED = "devices_granted"
    OTHER_USER = "other_user"
    WALL_TIME = "wall_time"
    OUTPUT_CAP = "output_cap"
    OPEN_FILES = "open_files"


LIMITS: Final = frozenset({Demand.WALL_TIME, Demand.OUTPUT_CAP, Demand.OPEN_FILES})
ISOLATION: Final = frozenset(Demand) - LIMITS


class Unlimited:
    """The one way to say that a limit is lifted. Only ``UNLIMITED`` exists; compare with ``is``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNLIMITED"

    def __reduce__(self) -> str:
        # By name, so that a pickled limit comes back as the same object.
        return "UNLIMITED"


UNLIMITED: Final = Unlimited()

# Capabilities that may be granted, by their number in linux/capability.h: each acts only on
# what the sandbox's own user namespace owns, so that none of them weakens the border.
GRANTABLE_CAPABILITIES: Final = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "NET_BIND_SERVICE": 10,
    "SYS_CHROOT": 18,
}

# Every other capability of capabilities(7), with the demand that granting it would break.
REFUSED_CAPABILITIES: Final = {
    "DAC_READ_SEARCH": Demand.OWN_ROOT,  # open_by_handle_at leaves the mounted trees
    "SETPCAP": Demand.NO_CAPABILITIES,
    "LINUX_IMMUTABLE": Demand.MOUNT_READ_ONLY,
    "NET_BROADCAST": Demand.NETWORK_OFF,
    "NET_ADMIN": Demand.NETWORK_OFF,
    "NET_RAW": Demand.NETWORK_OFF,
    "IPC_LOCK": Demand.OPEN_FILES,
    "IPC_OWNER": Demand.OWN_IPC,
    "SYS_MODULE": Demand.SYSTEM_CALLS_FILTERED,
    "SYS_RAWIO": Demand.MINIMAL_DEVICES,
    "SYS_PTRACE": Demand.OWN_PROCESSES,
    "SYS_PACCT": Demand.SYSTEM_CALLS_FILTERED,
    "SYS_ADMIN": Demand.OWN_ROOT,
    "SYS_BOOT": Demand.SYSTEM_CALLS_FILTERED,
    "SYS_NICE": Demand.OWN_PROCESSES,
    "SYS_RESOURCE": Demand.OPEN_FILES,
    "SYS_TIME": Demand.SYSTEM_CALLS_FILTERED,
    "SYS_TTY_CONFIG": Demand.MINIMAL_DEVICES,
    "MKNOD": Demand.MINIMAL_DEVICES,
    "LEASE": Demand.MOUNT_READ_ONLY,
    "AUDIT_WRITE": Demand.SYSTEM_CALLS_FILTERED,
    "AUDIT_CONTROL": Demand.SYSTEM_CALLS_FILTERED,
    "SETFCAP": Demand.SET_ID_DENIED,
    "MAC_OVERRIDE": Demand.SYSTEM_CALLS_FILTERED,
    "MAC_ADMIN": Demand.SYSTEM_CALLS_FILTERED,
    "SYSLOG": Demand.SYSTEM_CALLS_FILTERED,
    "WAKE_ALARM": Demand.SYSTEM_CALLS_FILTERED,
    "BLOCK_SUSPEND": Demand.SYSTEM_CALLS_FILTERED,
    "AUDIT_READ": Demand.SYSTEM_CALLS_FILTERED,
    "PERFMON": Demand.SYSTEM_CALLS_FILTERED,
    "BPF": Demand.SYSTEM_CALLS_FILTERED,
    "CHECKPOINT_RESTORE": Demand.OWN_PROCESSES,
}

# Ids inside a sandbox (design: one default user; the agent's id is nobody else's).
DEFAULT_USER_ID: Final = 1000
AGENT_USER_ID: Final = 65533
# What the host's system accounts are shown as where a host tree needs an id map: nobody's to be.
FOREIGN_IDS: Final = range(64000, 65532)
USER_IDS: Final = {"user": DEFAULT_USER_ID, "root": 0, "nobody": 65534}
