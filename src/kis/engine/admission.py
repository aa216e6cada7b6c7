"""Opened descriptors in, handles out: what the engine lets a profile speak of.

Knows: which kinds of files may become a mount, a device, a base. Must not know: where they go.
Called by: engine, linux. A source is resolved here once, and is this very inode from then on.
"""

from __future__ import annotations

import os
import stat

from kis.command import Command
from kis.engine import host
from kis.errors import Code, SandboxError, escaped, os_reason, quoted
from kis.identity import _KEY, Base, MountSource, _make_handle
from kis.profile import Profile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_KINDS = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a device",
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
}
_ACCEPTED = {"file": "a file", "directory": "a directory", "device": "a device node"}
_HINTS = {
    stat.S_IFBLK: "Grant it as a device: --device.",
    stat.S_IFCHR: "Grant it as a device: --device.",
    stat.S_IFREG: "Mount it: -v or --mount.",
    stat.S_IFDIR: "Mount it: -v or --mount.",
}
_MAX_TOP_ENTRIES = 256
_PARAMETERS: dict[str, tuple[type, Code, str]] = {
    "command": (Command, Code.COMMAND_INVALID, 'Say Command(["echo", "hello"]).'),
    "profile": (
        Profile,
        Code.PROFILE_INVALID,
        "Say Profile(), with what differs from the default.",
    ),
    "base": (Base, Code.BASE_INVALID, "Get one from admit_host_base() or admit_directory(…)."),
}

# Of a base that is bound plainly, these are made afresh, as they are everywhere else.
OWN_TOP_NAMES = frozenset({b"dev", b"home", b"proc", b"run", b"sys", b"tmp"})


def refuse_wrong_types(**parameters: object) -> None:
    """Raise where ``command``, ``profile`` or ``base`` is no such record.

    ``command_invalid``, ``profile_invalid`` or ``base_invalid``, with the parameter as the field.
    """
    for field, value in parameters.items():
        kind, code, hint = _PARAMETERS[field]
        if not isinstance(value, kind):
            given = "None" if value is None else f"a {escaped(type(value).__name__)}"
            raise SandboxError(
                code, f"{field} must be a {kind.__name__}, not {given}", hint, {"field": field}
            )


def admit_mount(descriptor: int) -> MountSource:
    """Return a handle for an open file or directory; the descriptor stays the caller's.

    Raises ``mount_invalid`` for a socket, a pipe, a device, a file that is gone, and anything
    that is not an open descriptor.
    """
    return _admit(descriptor, Code.MOUNT_INVALID, {stat.S_IFREG: "file", stat.S_IFDIR: "directory"})


def admit_device(descriptor: int) -> MountSource:
    """Return a handle for an open device node (``O_PATH`` is best: opening a device can act).

    Raises ``mount_invalid`` for anything else, and for a node that the caller may not open.
    """
    try:
        device = admit_node(descriptor)
    except SandboxError as error:
        error.details["field"] = "devices"
        raise
    if not any(os.access(device.path, way, effective_ids=True) for way in (os.R_OK, os.W_OK)):
        device.close()
        raise SandboxError(
            Code.MOUNT_INVALID,
            f"{quoted(device.path)} cannot be opened by the user that kis runs as, "
            "and so by nobody inside",
            "Join the group that the node belongs to, or have its mode changed.",
            {"field": "devices", "source": quoted(device.path)},
        )
    return device


def admit_node(descriptor: int) -> MountSource:
    """Return a handle for an open device node, whoever may open it. Raises ``mount_invalid``."""
    return _admit(descriptor, Code.MOUNT_INVALID, {stat.S_IFCHR: "device", stat.S_IFBLK: "device"})


def admit_base_tree(descriptor: int) -> MountSource:
    """Return a handle for a directory of a base. Raises ``base_invalid`` for anything else."""
    return _admit(descriptor, Code.BASE_INVALID, {stat.S_IFDIR: "directory"})


def make_base(
    kind: str,
    trees: Sequence[tuple[MountSource, bytes]],
    links: Sequence[tuple[bytes, bytes]] = (),
    files: Sequence[tuple[bytes, bytes]] = (),
    path_entries: Sequence[bytes] = (),
    *,
    extended: bool = False,
) -> Base:
    """Return a base handle: trees and where they appear, links, and files by their content."""
    return _make_handle(
        Base,
        _KEY,
        kind=kind,
        trees=tuple(trees),
        links=tuple(links),
        files=tuple(files),
        path_entries=tuple(path_entries),
        extended=extended,
    )


def admit_directory(descriptor: int, devices: Sequence[tuple[MountSource, bytes]]) -> Base:
    """Return the base of a root file system's directory, which is never written to.

    Its top-level entries are opened as well: where the directory cannot be the lower layer of
    an overlay with mapped ids, they are bound one by one.
    """
    root = admit_base_tree(descriptor)
    trees = [(root, b"/")]
    links = []
    files = []
    try:
        for name in sorted(_names(root)):
            info = os.stat(name, dir_fd=root.descriptor, follow_symlinks=False)
            if stat.S_ISLNK(info.st_mode):
                links.append((b"/" + name, os.readlink(name, dir_fd=root.descriptor)))
            elif stat.S_ISDIR(info.st_mode) and name not in OWN_TOP_NAMES:
                trees.append((admit_beneath(root, name, Code.BASE_INVALID), b"/" + name))
        files.extend(_accounts(root))
    except BaseException:
        for tree, _ in trees:
            tree.close()
        raise
    return make_base("directory", (*trees, *devices), links, files)


def admit_beneath(directory: MountSource, name: bytes, code: Code) -> MountSource:
    """Return a handle for a directory right below another, never through a link."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=directory.descriptor)
    except OSError as error:
        raise SandboxError(
            code, f"{quoted(directory.path + b'/' + name)}: {os_reason(error)}"
        ) from error
    try:
        return _admit(descriptor, code, {stat.S_IFDIR: "directory"})
    finally:
        os.close(descriptor)


def _names(root: MountSource) -> list[bytes]:
    listing = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root.descriptor)
    try:
        names = [os.fsencode(name) for name in os.listdir(listing)]
    except OSError as error:
        raise SandboxError(
            Code.BASE_INVALID, f"{quoted(root.path)} cannot be listed: {os_reason(error)}"
        ) from error
    finally:
        os.close(listing)
    if len(names) > _MAX_TOP_ENTRIES:
        raise SandboxError(
            Code.BASE_INVALID,
            f"{quoted(root.path)} has {len(names)} entries, {_MAX_TOP_ENTRIES} are the most",
            "Is it the root directory of a system?",
        )
    return names


def _accounts(root: MountSource) -> list[tuple[bytes, bytes]]:
    """The base's own passwd and group, to which the sandbox's user is added."""
    try:
        etc = admit_beneath(root, b"etc", Code.BASE_INVALID)
    except SandboxError:
        return []
    with etc:
        found = []
        for name in (b"passwd", b"group"):
            content = small_file(etc.descriptor, name)
            if content is not None:
                found.append((b"/etc/" + name, content))
    return found


def small_file(
    directory: int, name: bytes, most_bytes: int = 1 << 20, *, follow: bool = False
) -> bytes | None:
    """Return a file's content if it is regular, small, and readable by everybody, else None."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(name, flags, dir_fd=directory)
    except OSError:
        return None
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or not info.st_mode & 0o004:
            return None
        content = os.read(descriptor, most_bytes + 1)
        return content if len(content) <= most_bytes else None
    finally:
        os.close(descriptor)


def _admit(descriptor: int, code: Code, wanted: dict[int, str]) -> MountSource:
    try:
        # Never one of 0 to 2: those the launcher's start overwrites.
        kept = _dup_above_standard(descriptor)
    except (OSError, TypeError, ValueError):
        raise SandboxError(code, "the source is not an open descriptor") from None
    try:
        info = os.fstat(kept)
        path = host.resolved_path(kept)
        kind = stat.S_IFMT(info.st_mode)
        if kind not in wanted:
            what = _KINDS.get(kind, "of an unknown kind")
            names = " or ".join(_ACCEPTED[word] for word in dict.fromkeys(wanted.values()))
            hint = _HINTS.get(kind, "") if code is Code.MOUNT_INVALID else ""
            raise SandboxError(code, f"{quoted(path)} is {what}, not {names}", hint)
        _refuse_gone(path, info, code)
        return _make_handle(
            MountSource,
            _KEY,
            descriptor=kept,
            kind=wanted[kind],
            path=path,
            device=info.st_dev,
            inode=info.st_ino,
            mode=stat.S_IMODE(info.st_mode),
            owner_uid=info.st_uid,
            owner_gid=info.st_gid,
        )
    except BaseException:
        os.close(kept)
        raise


def _dup_above_standard(descriptor: int) -> int:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def _refuse_gone(path: bytes, info: os.stat_result, code: Code) -> None:
    """A file without a name cannot be shown, and a rootless launch has to find it by name."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        found = None
    if found is None or (found.st_dev, found.st_ino) != (info.st_dev, info.st_ino):
        raise SandboxError(code, f"{quoted(path)} is gone, or cannot be reached by its path")
