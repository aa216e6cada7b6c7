"""Resource limits that a profile means on a machine, as setrlimit(2) takes them.

Knows: the profile's limits and the host's hard ones. Must not know: who sets them.
Called by: backends.
"""

from __future__ import annotations

from kis.errors import Code, SandboxError
from kis.vocabulary import LIMITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kis.engine.host import Host
    from kis.profile import Profile
    from kis.vocabulary import Demand

RLIMIT_CORE = 4
RLIMIT_NOFILE = 7


def limits_claims(host: Host) -> frozenset[Demand]:
    """Return the limits that every local backend enforces."""
    return LIMITS


def command_limits(profile: Profile, host: Host) -> tuple[tuple[int, int, int], ...]:
    """Return each command's limits: number, soft, hard.

    Raises ``profile_unsatisfiable`` where more open files are asked for than the host's hard
    limit allows; a limit that was not named is lowered to it.
    """
    asked = profile.limits.resolved_open_files
    most = host.open_files_limit
    if asked is not None and asked > most and "open_files" in profile.limits.named:
        raise SandboxError(
            Code.PROFILE_UNSATISFIABLE,
            f"limits.open_files is {asked}, the hard limit here is {most}",
            "Ask for less, or raise the hard limit of the process that starts kis (ulimit -Hn).",
            {"field": "limits.open_files", "most": most, "unmet": ["open_files"]},
        )
    files = most if asked is None else min(asked, most)
    return ((RLIMIT_NOFILE, files, files), core_limit(host))


def core_limit(host: Host) -> tuple[int, int, int]:
    """Return the limit that keeps crashes from leaving a core file on the host.

    One byte, not none: where core_pattern is a pipe, core(5), the kernel starts the host's
    handler at 0 but not at 1.
    """
    most = min(1, host.core_limit)
    return (RLIMIT_CORE, most, most)
