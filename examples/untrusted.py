"""A guest with bad manners: tries to leave, then does one honest job.

Needs nothing but Python 3.9 and its standard library. Every attempt prints one line, `denied` with
what the kernel said or `ALLOWED`. The exit status is 0 when everything was denied and the job
worked, 1 otherwise, so the same file shows both a working sandbox and a missing one:

    kis sandbox run --tier container -v ./examples:/examples -- python3 /examples/untrusted.py
    python3 examples/untrusted.py            # unconfined: several lines say ALLOWED

No attempt can do harm where it succeeds: files are opened and closed without a byte written, only
files made here are changed, signals have number 0, mounts are private to a child that ends.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import socket
import sqlite3
import stat
import sys
import tempfile
from typing import Callable, List, Tuple

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
PTRACE_TRACEME = 0
MS_REC_PRIVATE = 0x4000 | 0x40000
SESSION_KEYRING = -3
KEYCTL_CALL = {"x86_64": 250, "aarch64": 219}
KEYCTL_GET_KEYRING_ID = 0
OWN_VARIABLES = frozenset(
    "PATH HOME LANG TMPDIR USER LOGNAME SHELL PWD TERM SHLVL _ LC_CTYPE LC_ALL TZ".split()
)

libc = ctypes.CDLL(None, use_errno=True)


class Denied(Exception):
    """The attempt met no error number, but found nothing to take either."""


def checked(result: int) -> int:
    """Return what a C call returned, or raise OSError with its errno when that is -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def in_child(action: Callable[[], object]) -> None:
    """Do it in a process of its own, so that a success changes nothing here; raise its errno."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 255)
        except BaseException:
            os._exit(255)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        raise Denied("killed by signal %d" % os.WTERMSIG(status))
    number = os.WEXITSTATUS(status)
    if number:
        raise OSError(number, os.strerror(number))


def read_password_hashes() -> None:
    with open("/etc/shadow", "rb") as shadow:
        if not shadow.read(1):
            raise Denied("empty")


def write_into_usr() -> None:
    # A file without a name: it is gone when it is closed, even where it could be made.
    os.close(os.open("/usr", os.O_TMPFILE | os.O_WRONLY, 0o600))


def connect_out() -> None:
    # A datagram socket that is connected picks a route, and sends nothing.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))


def signal_a_stranger() -> None:
    # Number 0 only asks. Processes above us belong to whoever started us.
    strangers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    for pid in sorted(strangers):
        if pid in (os.getpid(), os.getsid(0), os.getpgrp()):
            continue
        try:
            os.kill(pid, 0)
        except OSError:
            continue
        if pid != 1 and not belongs_to_us(pid):
            return
    raise Denied("%d processes in sight, none to signal" % len(strangers))


def belongs_to_us(pid: int) -> bool:
    """Whether a process descends from this one."""
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            with open("/proc/%d/stat" % pid, "rb") as stat_file:
                pid = int(stat_file.read().rpartition(b")")[2].split()[1])
        except OSError:
            return True
    return False


def mount_something() -> None:
    def attempt() -> None:
        # The namespace is private to this child: where this is allowed, nobody sees the mount.
        checked(libc.unshare(CLONE_NEWNS))
        checked(libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None))
        checked(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))

    in_child(attempt)


def become_root_in_a_namespace() -> None:
    in_child(lambda: checked(libc.unshare(CLONE_NEWUSER)))


def trace_a_process() -> None:
    in_child(lambda: checked(libc.ptrace(PTRACE_TRACEME, 0, None, None)))


def reach_the_keyring() -> None:
    number = KEYCTL_CALL.get(os.uname().machine)
    if number is None:
        raise Denied("no number known for this machine")
    in_child(lambda: checked(libc.syscall(number, KEYCTL_GET_KEYRING_ID, SESSION_KEYRING, 0)))


def leave_a_setuid_file() -> None:
    with tempfile.NamedTemporaryFile() as own:
        os.chmod(own.name, 0o4755)
        if not os.stat(own.name).st_mode & stat.S_ISUID:
            raise Denied("the bit did not stay")


def open_a_raw_socket() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()


def make_a_device() -> None:
    with tempfile.TemporaryDirectory() as own:
        os.mknod(os.path.join(own, "null"), stat.S_IFCHR | 0o600, os.makedev(1, 3))


def choose_the_core_handler() -> None:
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))


def pull_the_emergency_lever() -> None:
    os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY))


def read_the_callers_environment() -> None:
    foreign = sorted(name for name in os.environ if name not in OWN_VARIABLES)
    if not foreign:
        raise Denied("%d variables, all of them ours" % len(os.environ))


def look_into_other_homes() -> None:
    own = os.path.realpath(os.path.expanduser("~"))
    found = []
    for place in ("/root", "/home"):
        try:
            entries = [os.path.join(place, name) for name in os.listdir(place)]
        except OSError:
            continue
        if place != own:
            found += [path for path in entries if os.path.realpath(path) != own]
        elif os.getuid() == 0:
            found += entries
    if not found:
        raise Denied("nothing there")


ATTEMPTS: List[Tuple[str, Callable[[], None]]] = [
    ("read /etc/shadow", read_password_hashes),
    ("write into /usr", write_into_usr),
    ("look into other homes", look_into_other_homes),
    ("read the caller's environment", read_the_callers_environment),
    ("reach the network", connect_out),
    ("open a raw socket", open_a_raw_socket),
    ("signal a process outside", signal_a_stranger),
    ("trace a process", trace_a_process),
    ("mount a file system", mount_something),
    ("make a user namespace", become_root_in_a_namespace),
    ("reach the session keyring", reach_the_keyring),
    ("leave a setuid file", leave_a_setuid_file),
    ("make a device node", make_a_device),
    ("write core_pattern", choose_the_core_handler),
    ("write sysrq-trigger", pull_the_emergency_lever),
]


def try_it(attempt: Callable[[], None]) -> Tuple[bool, str]:
    """Whether the attempt was denied, and how."""
    try:
        attempt()
    except Denied as reason:
        return True, str(reason)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "error")
        return True, "%s %s" % (name, error.strerror or "")
    return False, ""


def honest_job() -> str:
    """Count the words of this very text in a database, as a program with a purpose would."""
    words = " ".join(__doc__.split()).lower().split() if __doc__ else []
    with tempfile.TemporaryDirectory() as room:
        database = sqlite3.connect(os.path.join(room, "words.db"))
        database.execute("create table word (text)")
        database.executemany("insert into word values (?)", [(word,) for word in words])
        query = "select text, count(*) as n from word group by text order by n desc, text limit 1"
        text, count = database.execute(query).fetchone()
        database.close()
    digest = hashlib.sha256(" ".join(words).encode()).hexdigest()[:12]
    return "%d words, most often %r (%d times), sha256 %s" % (len(words), text, count, digest)


def main() -> int:
    width = max(len(name) for name, _ in ATTEMPTS)
    denied_count = 0
    for name, attempt in ATTEMPTS:
        denied, how = try_it(attempt)
        denied_count += denied
        print("%-*s  %s" % (width, name, "denied: " + how if denied else "ALLOWED"))
    try:
        result = honest_job()
        worked = True
    except Exception as error:
        result, worked = "failed: %r" % error, False
    print("%-*s  %s" % (width, "one honest job", result))
    print("%d of %d attempts denied" % (denied_count, len(ATTEMPTS)))
    return 0 if worked and denied_count == len(ATTEMPTS) else 1


if __name__ == "__main__":
    sys.exit(main())
