"""Proven: whatever differs from the plan is seen before the payload's first instruction.

One thing at a time is weakened between planning and launch (the launcher then really does less), or
in what the kernel or the inside reports. Each time the run must end with `enforcement_mismatch`
naming the field, and the payload's marker must not appear.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import drive
import pytest

TEXT = (Path(__file__).parent / "tamper.py").read_text()

# Weakening -> the fields of which one must be named.
PLAN = {
    "no_filter": ("seccomp_mode",),
    "filter_twice": ("seccomp_filters",),
    "root_left_writable": ("root_writable", "mounts"),
    "loopback_up": ("loopback_up",),
    "network_of_the_host": ("namespace.net", "interfaces"),
    "base_writable": ("mounts",),
    "mount_writable": ("mounts",),
    "mount_with_set_id": ("mounts",),
    "one_mount_more": ("mounts",),
    "one_mount_less": ("mounts",),
    "no_mask": ("mounts",),
    "other_host_ids": ("uid", "uid_map"),
    "more_capabilities": ("capabilities.",),
}
COMMAND = {
    "command_with_capabilities": ("capabilities.",),
    "command_as_another_user": ("uid",),
    "command_with_another_group": ("gid",),
    "command_without_a_session": ("session",),
    "command_with_a_variable_more": ("environment",),
    "command_with_more_files": ("open_files",),
    "command_without_limits": ("open_files", "core_bytes"),
}
OBSERVED = {
    "uids": ("uid",),
    "gids": ("gid",),
    "groups": ("groups",),
    "capabilities": ("capabilities.CapAmb",),
    "bounding set": ("capabilities.CapBnd",),
    "no_new_privs": ("no_new_privs",),
    "seccomp_mode": ("seccomp_mode",),
    "seccomp_filters": ("seccomp_filters",),
    "pids": ("pids",),
    "uid_map": ("uid_map",),
    "gid_map": ("gid_map",),
    "interfaces": ("interfaces",),
    "loopback_is_up": ("loopback_up",),
    "mounts": ("mounts",),
    "mount propagates": ("mounts",),
    "mount with devices": ("mounts",),
    "root": ("same_place",),
    "descriptor more": ("descriptors",),
    "session": ("session",),
    "terminal": ("terminal",),
    "open_files": ("open_files",),
    "core_limit": ("core_bytes",),
    **{
        f"{kind} namespace of the engine": (f"namespace.{kind}",)
        for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
    },
}
READY = {
    "dumpable": ("dumpable",),
    "names": ("environment",),
    "no probes": ("filter.",),
    **{f"probe {number}": ("filter.",) for number in range(1, 11)},
}
ALL = {
    **{f"plan: {name}": fields for name, fields in PLAN.items()},
    **{f"command: {name}": fields for name, fields in COMMAND.items()},
    **{f"observed: {name}": fields for name, fields in OBSERVED.items()},
    **{f"ready: {name}": fields for name, fields in READY.items()},
    "hello: keyring of the launcher": ("session_keyring",),
}
# What an ordinary user's sandbox cannot even be told to do: the kernel stops the launcher first.
IMPOSSIBLE_WITHOUT_PRIVILEGE = {
    "plan: other_host_ids": "there is one id",
    "command: command_as_another_user": "there is one id",
    "command: command_with_another_group": "there is one id",
}


def run_weakened(starter: drive.Starter, name: str) -> tuple[dict[str, Any], bool]:
    """What the run said, and whether the payload left its marker."""
    with starter.room() as room:
        for part in ("rw", "ro"):
            (room / part).mkdir()
            starter.give(room / part)
        if starter.is_root:
            os.chown(room / "rw", drive.ORDINARY_UID, drive.ORDINARY_UID)
        done = starter.script(TEXT, name, str(room))
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout), (room / "rw" / "marker").exists()


def test_nothing_weakened_runs(starter: drive.Starter) -> None:
    """The control: the same run, left alone, leaves its marker."""
    said, marked = run_weakened(starter, "nothing")
    assert (said["code"], said.get("exit_code"), marked) == (None, 0, True), said


@pytest.mark.parametrize("name", ALL)
def test_difference_is_seen_before_the_first_instruction(starter: drive.Starter, name: str) -> None:
    if not starter.is_root and name in IMPOSSIBLE_WITHOUT_PRIVILEGE:
        pytest.skip(IMPOSSIBLE_WITHOUT_PRIVILEGE[name])
    said, marked = run_weakened(starter, name)
    assert (said["code"], marked) == ("enforcement_mismatch", False), said
    assert said["field"].startswith(ALL[name]), said


def test_every_weakening_has_an_expectation(user: drive.Starter) -> None:
    """The two files fit together, and every field that is read back has a test of its own."""
    code = TEXT.replace('\nif __name__ == "__main__":', "\nif False:")
    done = user.script(code + "\nprint(json.dumps(every_weakening()))")
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout)) == sorted(ALL)


def test_every_field_of_a_receipt_is_covered(starter: drive.Starter) -> None:
    """Every observed or self-reported entry that holds is one that some weakening changes."""
    shown = starter.contained_json("true")
    fields = {
        entry["field"]
        for entry in shown["receipt"]["entries"]
        if entry["source"] != "engine" and entry["holds"] is not None
    }
    prefixes = tuple(prefix for wanted in ALL.values() for prefix in wanted)
    uncovered = {field for field in fields if not field.startswith(prefixes)}
    assert uncovered == set()


WANTED = (
    r"uid_map|gid_map|capabilities\.Cap(Inh|Prm|Eff|Bnd|Amb)|no_new_privs|seccomp_mode"
    r"|seccomp_filters|namespace\.(user|mnt|pid|net|ipc|uts|cgroup)|interfaces|mounts"
    r"|root_writable|descriptors|environment|session_keyring|terminal"
)


def test_receipt_holds_what_was_promised(starter: drive.Starter) -> None:
    """The fields that must be read back at least, all of them holding."""
    shown = starter.contained_json("true")
    entries = {entry["field"]: entry for entry in shown["receipt"]["entries"]}
    found = [name for name in entries if re.fullmatch(WANTED, name)]
    assert len(found) == 24, sorted(entries)
    assert all(entries[name]["holds"] for name in found), shown["receipt"]
    for entry in entries.values():
        assert entry["source"] in ("observed", "self_reported", "engine")
        assert entry["after_payload"] is False
        assert entry["holds"] is not False
