"""The made-up files of ``/etc``: who is who inside, and which names exist.

Knows: the formats of passwd(5), group(5), hosts(5), resolv.conf(5), nsswitch.conf(5).
Must not know: the host's accounts. Called by: filesystem.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HOSTS = b"127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n"
# No server is named, so that libc asks its default, the sandbox's own loopback, where the answer
# (unreachable, or refused) comes at once instead of after a time-out.
RESOLVER = b"options attempts:1 timeout:1\n"
NAME_SERVICES = b"".join(
    b"%s: %s\n" % (database, services)
    for database, services in (
        (b"passwd", b"files"),
        (b"group", b"files"),
        (b"shadow", b"files"),
        (b"hosts", b"files dns"),
        (b"networks", b"files"),
        (b"protocols", b"files"),
        (b"services", b"files"),
        (b"ethers", b"files"),
        (b"rpc", b"files"),
    )
)

_USERS = ((0, b"root", 0), (1000, b"user", 1000), (65534, b"nobody", 65534))
_GROUPS = ((0, b"root"), (5, b"tty"), (1000, b"user"), (65534, b"nogroup"))


def user_name(uid: int) -> bytes:
    """Return the name that a user's id has inside, where the base has no other."""
    return next((name for number, name, _ in _USERS if number == uid), b"u%d" % uid)


def passwd(
    given: bytes, users: Sequence[tuple[int, int, bytes]], home_of: Callable[[int], bytes]
) -> bytes:
    """Return the base's passwd file with the usual users, and these (uid, gid, home), added."""
    known = [(uid, name, gid, home_of(uid)) for uid, name, gid in _USERS]
    known += [(uid, user_name(uid), gid, home) for uid, gid, home in users]
    return _completed(
        given,
        [
            (uid, name, b"%s:x:%d:%d:%s:%s:/bin/sh" % (name, uid, gid, name, home))
            for uid, name, gid, home in known
        ],
    )


def group(given: bytes, users: Sequence[tuple[int, int, bytes]]) -> bytes:
    """Return the base's group file with the usual groups, and those of these users, added."""
    known = dict(_GROUPS)
    for _, gid, _ in users:
        known.setdefault(gid, b"u%d" % gid)
    return _completed(
        given, [(gid, name, b"%s:x:%d:" % (name, gid)) for gid, name in known.items()]
    )


def _completed(given: bytes, lines: Sequence[tuple[int, bytes, bytes]]) -> bytes:
    """Add the lines whose number and name are both still free."""
    taken = [line.split(b":") for line in given.splitlines()]
    names = {fields[0] for fields in taken}
    numbers = {fields[2] for fields in taken if len(fields) > 2}
    text = given if not given or given.endswith(b"\n") else given + b"\n"
    for number, name, line in lines:
        if name not in names and b"%d" % number not in numbers:
            names.add(name)
            numbers.add(b"%d" % number)
            text += line + b"\n"
    return text
