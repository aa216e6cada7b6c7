"""What every attack script starts with; it is put in front of a family and sent as one text.

Runs inside the sandbox, on Python >= 3.9 and its standard library alone. An attack is a function
that returns a sentence when it got what it wanted, and raises OSError or `Contained` when it did
not. Each runs in a process of its own, so that being killed for it is an answer too. Prints one
JSON object per attack: name, verdict ("out", "contained", "broken") and detail.
"""

import ctypes
import errno
import json
import os
import platform
import signal
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
ATTACKS = {}
GIVEN = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
SYSCALLS = {
    # name: (x86_64, aarch64)
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fchmodat2": (452, 452),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "listmount": (458, 458),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setscheduler": (144, 119),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}


class Contained(Exception):
    """The attack ran to its end and found nothing to take."""


def attack(function):
    """Register an attack under its function's name."""
    ATTACKS[function.__name__] = function
    return function


def number_of(name):
    column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
    return SYSCALLS[name][column]


def raw(number, *arguments):
    """Call the kernel by number; OSError on -1."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    words += [ctypes.c_long(0)] * (6 - len(words))
    result = libc.syscall(ctypes.c_long(number), *words)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def call(name, *arguments):
    """Call the kernel by name; OSError on -1."""
    return raw(number_of(name), *arguments)


def run_one(function):
    """Run one attack in a child: (verdict, detail)."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.alarm(20)
        try:
            verdict = ("out", str(function()))
        except OSError as error:
            verdict = ("contained", errno.errorcode.get(error.errno, str(error)))
        except Contained as reason:
            verdict = ("contained", str(reason))
        except BaseException as error:
            verdict = ("broken", repr(error))
        os.write(writer, json.dumps(verdict).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as stream:
        report = stream.read()
    status = os.waitpid(child, 0)[1]
    if report:
        return json.loads(report)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS:
        return ("contained", "SIGSYS")
    return ("broken", "wait status %d" % status)


def main():
    if "become" in GIVEN:
        os.setresgid(*[GIVEN["become"]] * 3)
        os.setresuid(*[GIVEN["become"]] * 3)
    for name, function in ATTACKS.items():
        if name in GIVEN.get("skip", ()) or name not in GIVEN.get("only", ATTACKS):
            continue
        verdict, detail = run_one(function)
        print(json.dumps({"name": name, "verdict": verdict, "detail": detail}), flush=True)
