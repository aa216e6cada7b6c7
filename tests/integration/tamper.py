"""Runs one command with something weakened between planning and launch, or in what was observed.

Not a test itself: test_readback.py sends this text to an interpreter of the starter's. Arguments:
the name of the weakening, and a directory of the host that the payload can write to. Prints what
came of it as JSON. The expectations of the engine stay those of the plan that it made.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from kis import Command, Engine, Mount, NetworkPolicy, Profile, SandboxError
from kis.engine import blob, channel, observe, prepare

CHOWN = 1
PLAN_EDITS: dict[str, Callable[[list[Any]], list[Any]]] = {}
COMMAND_EDITS: dict[str, Callable[[dict[str, Any]], None]] = {}
OBSERVED_EDITS: dict[str, Any] = {}
READY_EDITS: dict[str, Any] = {}


def in_plan(edit: Callable[[list[Any]], list[Any]]) -> None:
    PLAN_EDITS[edit.__name__] = edit


def in_command(edit: Callable[[dict[str, Any]], None]) -> None:
    COMMAND_EDITS[edit.__name__] = edit


def without(steps: list[Any], *wanted: Any) -> list[Any]:
    """The records that do not start like this."""
    left = [step for step in steps if step[: len(wanted)] != wanted]
    assert len(left) < len(steps), f"the plan has no record {wanted}"
    return left


def with_mode(steps: list[Any], add: int = 0, drop: int = 0) -> list[Any]:
    assert steps[0][0] == blob.MODE
    return [(blob.MODE, steps[0][1] & ~drop | add), *steps[1:]]


@in_plan
def no_filter(steps: list[Any]) -> list[Any]:
    return without(steps, blob.FILTER)


@in_plan
def filter_twice(steps: list[Any]) -> list[Any]:
    """One filter more than planned, though it only repeats the other."""
    return [*steps, (blob.FILTER, blob.FILTER_PAYLOAD)]


@in_plan
def root_left_writable(steps: list[Any]) -> list[Any]:
    return with_mode(steps, drop=blob.ROOT_READONLY)


@in_plan
def loopback_up(steps: list[Any]) -> list[Any]:
    return with_mode(steps, add=blob.LOOPBACK)


@in_plan
def network_of_the_host(steps: list[Any]) -> list[Any]:
    return with_mode(steps, add=blob.NET_HOST)


@in_plan
def base_writable(steps: list[Any]) -> list[Any]:
    return [
        (step[0], step[1], step[2] & ~blob.RDONLY, *step[3:])
        if step[0] == blob.BIND and step[4] == b"/usr"
        else step
        for step in steps
    ]


@in_plan
def mount_writable(steps: list[Any]) -> list[Any]:
    return [
        (step[0], step[1], step[2] & ~blob.RDONLY, *step[3:])
        if step[0] == blob.BIND and step[4] == b"/ro"
        else step
        for step in steps
    ]


@in_plan
def mount_with_set_id(steps: list[Any]) -> list[Any]:
    return [
        (step[0], step[1], step[2] & ~blob.NOSUID, *step[3:])
        if step[0] == blob.BIND and step[4] == b"/ro"
        else step
        for step in steps
    ]


@in_plan
def one_mount_more(steps: list[Any]) -> list[Any]:
    extra = next(step for step in steps if step[0] == blob.BIND and step[4] == b"/ro")
    at = steps.index(extra)
    return [*steps[: at + 1], (*extra[:4], b"/extra", extra[5]), *steps[at + 1 :]]


@in_plan
def one_mount_less(steps: list[Any]) -> list[Any]:
    return [step for step in steps if step[0] != blob.BIND or step[4] != b"/ro"]


@in_plan
def no_mask(steps: list[Any]) -> list[Any]:
    return without(steps, blob.MASK)


@in_plan
def other_host_ids(steps: list[Any]) -> list[Any]:
    """As root: another range. Rootless there is no other id to be had: the inside one moves."""
    return [
        (*step[:2], step[2] + 65536, step[3])
        if step[0] in (blob.UID_MAP, blob.GID_MAP) and step[3] > 1
        else step
        for step in steps
    ]


@in_plan
def more_capabilities(steps: list[Any]) -> list[Any]:
    return [(blob.CAPS, step[1] | CHOWN) if step[0] == blob.CAPS else step for step in steps]


@in_command
def command_with_capabilities(command: dict[str, Any]) -> None:
    """The agent gives no more than the plan allows, so the plan is widened as well."""
    command["capabilities"] |= CHOWN


@in_command
def command_as_another_user(command: dict[str, Any]) -> None:
    command["uid"] = 0
    command["cwd"] = b"/"  # HOME is closed to others


@in_command
def command_with_another_group(command: dict[str, Any]) -> None:
    command["gid"] = 0


@in_command
def command_without_a_session(command: dict[str, Any]) -> None:
    command["flags"] &= ~channel.NEW_SESSION


@in_command
def command_with_a_variable_more(command: dict[str, Any]) -> None:
    command["environment"] = [*command["environment"], b"LD_PRELOAD=/tmp/x.so"]


@in_command
def command_with_more_files(command: dict[str, Any]) -> None:
    command["limits"] = [
        (number, 2048, 2048) if number == 7 else (number, soft, hard)
        for number, soft, hard in command["limits"]
    ]


@in_command
def command_without_limits(command: dict[str, Any]) -> None:
    command["limits"] = []


# What the kernel might show, one thing at a time.
OBSERVED_EDITS.update(
    uids=lambda seen: (*seen[:3], 0),
    gids=lambda seen: (0, *seen[1:]),
    groups=lambda seen: (*seen, 27),
    capabilities=lambda seen: (*seen[:4], seen[4] | CHOWN),
    no_new_privs=lambda seen: 0,
    seccomp_mode=lambda seen: 0,
    seccomp_filters=lambda seen: seen - 1,
    pids=lambda seen: seen[:1],
    uid_map=lambda seen: ((0, 0, 4294967295),),
    gid_map=lambda seen: ((0, 0, 4294967295),),
    interfaces=lambda seen: (*seen, b"eth0"),
    loopback_is_up=lambda seen: not seen,
    mounts=lambda seen: (*seen, (b"/host", frozenset({b"rw"}), b"ext4", ())),
    root=lambda seen: b"/home",
    session=lambda seen: seen - 1,
    terminal=lambda seen: 1025,
    open_files=lambda seen: seen + 1,
    core_limit=lambda seen: seen + 1,
)
OBSERVED_EDITS["bounding set"] = ("capabilities", lambda seen: (*seen[:3], CHOWN, seen[4]))
OBSERVED_EDITS["descriptor more"] = (
    "descriptors",
    lambda seen: {**seen, 9: (4711, 0)} if isinstance(seen, dict) else seen,
)
OBSERVED_EDITS["mount propagates"] = (
    "mounts",
    lambda seen: ((*seen[0][:3], (b"shared:1",)), *seen[1:]),
)
OBSERVED_EDITS["mount with devices"] = (
    "mounts",
    lambda seen: tuple(
        (path, options - {b"nodev"}, *rest) if path == b"/usr" else (path, options, *rest)
        for path, options, *rest in seen
    ),
)
for _kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
    OBSERVED_EDITS[f"{_kind} namespace of the engine"] = (
        "namespaces",
        lambda seen, kind=_kind: tuple(
            (name, os.stat(f"/proc/self/ns/{name}").st_ino if name == kind else inode)
            for name, inode in seen
        ),
    )

# What the inside might say of itself.
READY_EDITS.update(
    dumpable=lambda said: 1,
    names=lambda said: (*said, b"LD_PRELOAD"),
)
for _number in range(1, 11):
    READY_EDITS[f"probe {_number}"] = (
        "probes",
        lambda said, number=_number: tuple(
            (probe, 0 if probe == number else error) for probe, error in said
        ),
    )
READY_EDITS["no probes"] = ("probes", lambda said: ())


def substitute(original: object, replacement: object) -> None:
    """Put one function in place of another, wherever kis has imported it to."""
    places = [
        (module, name)
        for key, module in list(sys.modules.items())
        if key.startswith("kis")
        for name, value in list(vars(module).items())
        if value is original
    ]
    assert places
    for module, name in places:
        setattr(module, name, replacement)


def weaken(name: str) -> None:
    kind, _, what = name.partition(": ")
    if kind == "plan":
        edit_plan = PLAN_EDITS[what]
        # The plan that the engine compares with stays what it was; only its encoding is weaker.
        prepare.Prepared.encoded = lambda self, plan: blob.encode(edit_plan(list(plan.steps)))  # type: ignore[method-assign]
    elif kind == "command":
        if what == "command_with_capabilities":
            weaken("plan: more_capabilities")
        encode_exec, edit_command = channel.encode_exec, COMMAND_EDITS[what]

        def weaker(id: int, **command: Any) -> list[bytes]:
            edit_command(command)
            return encode_exec(id, **command)

        substitute(encode_exec, weaker)
    elif kind == "observed":
        field, edit = edit_of(OBSERVED_EDITS, what)
        for see in (observe.observe_place, observe.observe_command):

            def otherwise(pid: int, see: Any = see) -> Any:
                seen = see(pid)
                if field not in type(seen).__slots__:
                    return seen
                return seen.replace(**{field: edit(getattr(seen, field))})

            substitute(see, otherwise)
    elif kind == "ready":
        decode = channel.decode
        field, edit = edit_of(READY_EDITS, what)

        def misheard(packet: bytes) -> Any:
            frame = decode(packet)
            if isinstance(frame, channel.Ready):
                return frame.replace(**{field: edit(getattr(frame, field))})
            return frame

        substitute(decode, misheard)
    elif kind == "hello":
        decode = channel.decode

        def shared_keyring(packet: bytes) -> Any:
            frame = decode(packet)
            if isinstance(frame, channel.Hello):
                return frame.replace(launcher_keyring=4711, agent_keyring=4711)
            return frame

        substitute(decode, shared_keyring)
    else:
        assert name == "nothing", name


def edit_of(table: dict[str, Any], what: str) -> tuple[str, Any]:
    found = table[what]
    return found if isinstance(found, tuple) else (what, found)


def every_weakening() -> list[str]:
    tables = {
        "plan": PLAN_EDITS,
        "command": COMMAND_EDITS,
        "observed": OBSERVED_EDITS,
        "ready": READY_EDITS,
    }
    found = [f"{kind}: {what}" for kind, table in tables.items() for what in table]
    return [*found, "hello: keyring of the launcher"]


def main(name: str, room: str) -> None:
    engine = Engine()
    base = engine.admit_host_base()
    # Everything that is imported late is imported now, so that it can be replaced.
    engine.run(Command(["true"]), Profile(), base, tier="container").check()
    weaken(name)
    mounts = [
        Mount(engine.admit_mount(os.open(room + "/rw", os.O_PATH)), "/rw", "rw"),
        Mount(engine.admit_mount(os.open(room + "/ro", os.O_PATH)), "/ro"),
    ]
    profile = Profile(network=NetworkPolicy("off"), mounts=mounts)
    try:
        outcome = engine.run(Command(["touch", "/rw/marker"]), profile, base, tier="container")
        said: dict[str, Any] = {"code": None, "exit_code": outcome.exit_code}
        said["stderr"] = outcome.stderr.decode()
    except SandboxError as error:
        said = {"code": str(error.code), "field": error.details.get("field"), "message": str(error)}
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
