"""The curated host tree: which parts of this machine a payload may see by default.

Knows: the distributions' places for what programs need. Must not know: profiles, users.
Called by: api (hands it to the engine), once per base: contents are read here and cached.
"""

from __future__ import annotations

import os
import stat

from kis.engine import admission
from kis.errors import Code, SandboxError, os_reason, quoted
from kis.identity import MountSource
from kis.profile import checked_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kis.identity import Base

# Links into /usr on a merged system; bound where they are still directories.
_TOP_LEVEL = (b"bin", b"sbin", b"lib", b"lib32", b"lib64", b"libx32")
# Copied by content, where everybody may read them: what the loader, libc's look-ups and common
# run-times read. Nothing that says who the host is or what its administrator set up.
_COPIED = (
    b"ld.so.cache",
    b"locale.alias",
    b"localtime",
    b"protocols",
    b"services",
    b"timezone",
)
# Bound, where everybody may enter them. Their private parts stay shut by their modes: a payload
# is neither the host's root nor in any of its groups.
_BOUND = (b"alternatives", b"ca-certificates", b"crypto-policies", b"fonts", b"pki", b"ssl")
_BOUND_PREFIXES = (b"java-",)
_RESOLVER = b"resolv.conf"  # used only where the payload has the host's network
_LINKS = ((b"/etc/mtab", b"/proc/self/mounts"), (b"/etc/os-release", b"../usr/lib/os-release"))
_DEVICES = (b"null", b"zero", b"full", b"random", b"urandom", b"tty")
_MAX_COPY_BYTES = 256 << 10


def admit_host_tree(
    extra_trees: Sequence[tuple[int, bytes]], path_entries: Sequence[bytes]
) -> Base:
    """Return the base of ``/usr``, what belongs to it, and further directories.

    ``extra_trees`` are open directories and the absolute paths at which they appear, read-only.
    ``path_entries`` come first in PATH. Raises ``base_invalid``.
    """
    trees: list[tuple[MountSource, bytes]] = []
    try:
        links = list(_top_level(trees))
        files = _etc(trees)
        trees.extend(admit_devices())
        for descriptor, path in extra_trees:
            tree = admission.admit_base_tree(descriptor)
            trees.append((tree, checked_target(path)))
            if tree.path == b"/":
                raise SandboxError(Code.BASE_INVALID, "the whole host is no part of a base")
    except BaseException:
        for tree, _ in trees:
            tree.close()
        raise
    extended = bool(extra_trees or path_entries)
    return admission.make_base(
        "host", trees, (*links, *_LINKS), files, path_entries, extended=extended
    )


def admit_devices() -> list[tuple[MountSource, bytes]]:
    """Return the device nodes that every sandbox has, with their places."""
    devices: list[tuple[MountSource, bytes]] = []
    try:
        for name in _DEVICES:
            descriptor = _open(b"/dev/" + name, os.O_PATH)
            try:
                devices.append((admission.admit_node(descriptor), b"/dev/" + name))
            finally:
                os.close(descriptor)
    except BaseException:
        for device, _ in devices:
            device.close()
        raise
    return devices


def _open(path: bytes, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxError(
            Code.BASE_INVALID, f"this host has no {quoted(path)} to show: {os_reason(error)}"
        ) from error


def _top_level(trees: list[tuple[MountSource, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Fill in ``/usr`` and its like; yield the links among them."""
    root = _open(b"/", os.O_PATH | os.O_DIRECTORY)
    try:
        for name in (b"usr", *_TOP_LEVEL):
            try:
                info = os.stat(name, dir_fd=root, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(info.st_mode):
                yield b"/" + name, os.readlink(name, dir_fd=root)
            else:
                trees.append((_admit_directory(root, name), b"/" + name))
    finally:
        os.close(root)


def _admit_directory(parent: int, name: bytes) -> MountSource:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=parent)
    try:
        return admission.admit_base_tree(descriptor)
    finally:
        os.close(descriptor)


def _etc(trees: list[tuple[MountSource, bytes]]) -> list[tuple[bytes, bytes]]:
    """Fill in the directories of ``/etc`` that are bound; return the files that are copied."""
    etc = _open(b"/etc", os.O_RDONLY | os.O_DIRECTORY)
    try:
        names = sorted(os.fsencode(name) for name in os.listdir(etc))
        for name in names:
            if name in _BOUND or name.startswith(_BOUND_PREFIXES):
                info = os.stat(name, dir_fd=etc, follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode) and info.st_mode & 0o005 == 0o005:
                    trees.append((_admit_directory(etc, name), b"/etc/" + name))
        files = []
        for name in (*_COPIED, _RESOLVER):
            content = admission.small_file(etc, name, _MAX_COPY_BYTES, follow=True)
            if content is not None:
                files.append((b"/etc/" + name, content))
        return files
    finally:
        os.close(etc)
