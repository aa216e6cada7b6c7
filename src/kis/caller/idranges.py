"""A host id range of its own for every live sandbox that root starts.

Knows: which ids are free, and that a flock holds a range. Must not know: what is mapped to it.
Called by: api, which hands it to the engine.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from kis.errors import Code, SandboxError, os_reason, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

RANGE_IDS = 65536
FIRST_ID = 0x70000000
_DIRECTORY_HINT = (
    "Root must be able to make and lock files there, and have open files left (ulimit -n); or hand "
    "the engine other ranges (id_ranges=)."
)
RANGES = 4094  # up to 0x7ffe0000: ids above 2^31 are negative to software that uses int
DIRECTORY = b"/run/kis/ids"

# Who else hands out ids. Format of a line: the fields that are first id and number of ids, or
# single ids. passwd(5), group(5), subuid(5).
_TAKEN_IN = (
    (b"/etc/passwd", (2, 3), False),
    (b"/etc/group", (2,), False),
    (b"/etc/subuid", (1, 2), True),
    (b"/etc/subgid", (1, 2), True),
)


class IdRange:
    """Host ids ``start`` to ``start + count - 1``, for uids and gids, until ``release``.

    The lock is ``descriptor``'s. A sandbox keeps a copy of it, so that the range is free only when
    the sandbox is dead too, however this process ends.
    """

    __slots__ = ("count", "descriptor", "start")

    def __init__(self, start: int, descriptor: int) -> None:
        self.start = start
        self.count = RANGE_IDS
        self.descriptor = descriptor

    def release(self) -> None:
        """Give the range back. More than once does no harm."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class FlockedIdRanges:
    """Hands out ranges; a range is held by ``flock(2)`` on a file of its own.

    ``directory`` is made if it is missing, must belong to this user and be closed to others: who
    could open a lock file could hold every range.
    """

    def __init__(self, directory: bytes = DIRECTORY, taken_in: bytes = b"/") -> None:
        self._directory = directory
        self._etc_root = taken_in
        self._taken: frozenset[int] = frozenset()
        self._taken_as_of: tuple[object, ...] | None = None
        self._next = 0

    def acquire(self) -> IdRange:
        """Return a range that nobody holds and no account overlaps.

        Raises ``setup_failed``, step ``id_range``, where the directory cannot be trusted or made
        and where all ranges are in use.
        """
        taken = self._taken_ranges()
        directory = _open_directory(self._directory)
        try:
            # The lowest free one at first, so that equal inputs give equal plans; then onwards, so
            # that the thousandth sandbox does not try the locks of all others again.
            for step in range(RANGES):
                number = (self._next + step) % RANGES
                if number in taken:
                    continue
                descriptor = _try_lock(directory, number)
                if descriptor is not None:
                    self._next = number + 1
                    return IdRange(FIRST_ID + number * RANGE_IDS, descriptor)
        finally:
            os.close(directory)
        raise _failed(f"all {RANGES} id ranges are in use", "Close sandboxes, or take turns.")

    def _taken_ranges(self) -> frozenset[int]:
        """Return the numbers of ranges that accounts of this machine overlap."""
        paths = [os.path.join(self._etc_root, path.lstrip(b"/")) for path, _, _ in _TAKEN_IN]
        as_of = tuple(_version(path) for path in paths)
        if as_of != self._taken_as_of:
            taken: set[int] = set()
            for path, (_, fields, ranged) in zip(paths, _TAKEN_IN, strict=True):
                for first, last in _spans(path, fields, ranged):
                    low = max(first - FIRST_ID, 0) // RANGE_IDS
                    high = min((last - FIRST_ID) // RANGE_IDS, RANGES - 1)
                    taken.update(range(low, high + 1))
            self._taken, self._taken_as_of = frozenset(taken), as_of
        return self._taken


def _version(path: bytes) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _spans(path: bytes, fields: tuple[int, ...], ranged: bool) -> Iterator[tuple[int, int]]:
    """Yield first and last id of every entry; lines of another shape name no id."""
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines:
        parts = line.split(b":")
        numbers = [int(parts[at]) for at in fields if at < len(parts) and parts[at].isdigit()]
        if ranged and len(numbers) == 2:
            yield numbers[0], numbers[0] + numbers[1] - 1
        elif not ranged:
            yield from ((number, number) for number in numbers)


def _open_directory(path: bytes) -> int:
    for made, mode in ((os.path.dirname(path), 0o755), (path, 0o700)):
        try:
            os.mkdir(made, mode)
        except FileExistsError:
            pass
        except OSError as error:
            raise _failed(f"{quoted(made)} cannot be made: {os_reason(error)}") from error
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise _failed(f"{quoted(path)} cannot be opened: {os_reason(error)}") from error
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(descriptor)
        raise _failed(f"{quoted(path)} must belong to this user and be closed to others")
    return descriptor


def _try_lock(directory: int, number: int) -> int | None:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(f"{number:04d}", flags, 0o600, dir_fd=directory)
    except OSError as error:
        raise _failed(f"id range {number} cannot be opened: {os_reason(error)}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EINTR):
            return None
        raise _failed(f"id range {number} cannot be locked: {os_reason(error)}") from error
    return descriptor


def _failed(what: str, hint: str = _DIRECTORY_HINT) -> SandboxError:
    return SandboxError(Code.SETUP_FAILED, what, hint, {"step": "id_range"})
