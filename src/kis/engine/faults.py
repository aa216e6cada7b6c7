"""What a fault of the launcher means to the caller.

Knows: the steps of a launch and the plan's origins. Must not know: how a launch is made.
Called by: engine. Pure.
"""

from __future__ import annotations

import errno
import os

from kis.engine import blob, channel
from kis.errors import Code, SandboxError, escaped, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kis.engine.backend import Plan
    from kis.engine.channel import Fault

_TREE_STEPS = (
    channel.STEP_IDMAP,
    channel.STEP_SOURCE,
    channel.STEP_ROOT,
    channel.STEP_MOUNT,
    channel.STEP_TARGET,
)
_WHAT = {
    channel.STEP_IDMAP: "its file system takes no id map",
    channel.STEP_SOURCE: "the source cannot be used",
    channel.STEP_MOUNT: "it cannot be mounted",
    channel.STEP_TARGET: "the target cannot be used",
    channel.STEP_ROOT: "it cannot be the root",
}
_EXHAUSTED = {
    errno.EMFILE: "Raise the limit on open files (ulimit -n): a sandbox takes one for each mount.",
    errno.ENFILE: "The machine has no open files left (fs.file-max).",
    errno.ENOMEM: "The machine, or the group that kis runs in, has no memory left.",
}
_HINTS = {
    channel.STEP_IDMAP: "Mount it read-only, or put the files on a file system that takes id maps "
    "(ext4, xfs, btrfs, tmpfs; not a container's overlay).",
    channel.STEP_SOURCE: "Something else may stand at its path now: admit it again.",
    channel.STEP_TARGET: "A target must not pass through a link, and one inside another mount or "
    "a read-only directory of the base must be there already.",
}


def origin_of(fault: Fault, plan: Plan) -> str:
    """Return which input the faulty record comes from, or the empty text."""
    if fault.record is None or fault.record >= len(plan.origins):
        return ""
    return plan.origins[fault.record]


def takes_no_map(fault: Fault, plan: Plan, writable: frozenset[str]) -> str | None:
    """Return the origin to bind plainly in another attempt, or ``None`` if that is no way out.

    Only what is read-only may go without a map: files made in a rw mount would belong to an id
    of the sandbox instead of the owner that was promised.
    """
    origin = origin_of(fault, plan)
    record = plan.steps[fault.record][0] if origin and fault.record is not None else None
    if fault.step == channel.STEP_IDMAP and (origin == "base" or origin.startswith("mounts[")):
        return None if origin in writable else origin
    overlaid = record in (blob.ROOT, blob.OVERLAY) and bool(plan.mode & blob.PRIVILEGED)
    if overlaid and origin == "base" and fault.step in (channel.STEP_MOUNT, channel.STEP_ROOT):
        return origin  # before Linux 5.19 no overlay takes mapped layers
    return None


def exhaustion(fault: Fault) -> SandboxError | None:
    """Return the error of a launch that ran out of something, whatever it was at: neither the
    platform nor an input is to blame. ``None`` for every other fault."""
    hint = _EXHAUSTED.get(fault.errno)
    if hint is None:
        return None
    return SandboxError(
        Code.SETUP_FAILED,
        f"the launcher failed at step {fault.step_name} ({os.strerror(fault.errno)})",
        hint,
        {"step": fault.step_name, "errno": fault.errno},
    )


def fault_error(fault: Fault, plan: Plan) -> SandboxError:
    """Return the typed error for a launch that failed."""
    origin = origin_of(fault, plan)
    reason = os.strerror(fault.errno) if fault.errno else "unknown"
    detail = f"{escaped(fault.detail)}: {reason}" if fault.detail else reason
    details: dict[str, object] = {
        "step": fault.step_name,
        "errno": fault.errno,
        "origin": origin,
        "detail": escaped(fault.detail),
    }
    if fault.step in _TREE_STEPS and origin:
        code = Code.BASE_INVALID if origin == "base" else Code.MOUNT_INVALID
        if origin == "secrets":
            code = Code.SETUP_FAILED
        subject = _subject(fault, plan)
        what = _WHAT[fault.step]
        return SandboxError(
            code, f"{origin}{subject}: {what} ({detail})", _HINTS.get(fault.step, ""), details
        )
    return SandboxError(
        Code.SETUP_FAILED,
        f"the launcher failed at step {fault.step_name} ({detail})",
        "",
        details,
    )


def _subject(fault: Fault, plan: Plan) -> str:
    """Name the target and, where there is one, the source of the faulty record."""
    step = plan.steps[fault.record or 0]
    if step[0] in (blob.BIND, blob.OVERLAY):
        return f" {quoted(step[-1])} at {quoted(step[-2])}"
    paths = [value for value in step[1:] if isinstance(value, bytes) and value.startswith(b"/")]
    return f" {quoted(paths[0])}" if paths else ""
