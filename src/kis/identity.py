"""Names that the engine mints, and handles that callers cannot make.

Knows: how an id looks and what a handle holds. Must not know: who admits what, or mounts.
Called by: engine (makes handles), profile and caller (hold them).
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar, Literal, NoReturn, Self, TypeVar

    HandleType = TypeVar("HandleType", bound="Handle")

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_ID_CHARACTERS = 26

# Whoever holds the key makes handles. Only the engine imports it; a test reads the imports.
_KEY = object()


def mint(prefix: str) -> str:
    """Return a fresh id: the prefix and 26 characters of base 32 (130 random bits).

    Straight from the kernel's random source, so that two processes forked from one parent
    never mint the same (a seeded generator would).
    """
    number = int.from_bytes(os.urandom(17), "little")
    characters = [prefix]
    for _ in range(_ID_CHARACTERS):
        characters.append(_ALPHABET[number & 31])
        number >>= 5
    return "".join(characters)


class Handle:
    """Something the engine admitted. Opaque: callers keep it and hand it back.

    Constructing, copying or pickling one raises ``TypeError``: a handle stands for descriptors
    that were checked when it was made, and neither a copy nor another process holds those.
    """

    __slots__ = ("__weakref__", "id")
    _prefix: ClassVar[str] = "hdl_"
    id: str

    def __new__(cls, *_values: object, **_named: object) -> Self:
        raise TypeError(f"{cls.__name__} is made by the engine, not by its callers")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is opaque: {name!r} cannot be set")

    def __copy__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied")

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be pickled")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptors that the handle holds. More than once does no harm."""
        raise NotImplementedError


class MountSource(Handle):
    """A file, directory or device node that was opened and checked.

    ``descriptor`` is ``O_PATH``, or -1 once closed; ``path`` is what the descriptor resolved to
    (for showing, and for reopening where the kernel allows nothing else); ``device`` and
    ``inode`` say what must be found there then. Owners are host ids, ``mode`` the permission bits.
    """

    __slots__ = ("descriptor", "device", "inode", "kind", "mode", "owner_gid", "owner_uid", "path")
    _prefix = "src_"
    descriptor: int
    kind: Literal["directory", "file", "device"]
    path: bytes
    device: int
    inode: int
    mode: int
    owner_uid: int
    owner_gid: int

    def close(self) -> None:
        descriptor = getattr(self, "descriptor", -1)
        if descriptor >= 0:
            object.__setattr__(self, "descriptor", -1)
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class Base(Handle):
    """The file system that a payload sees, with its default environment.

    ``host``: the curated host tree. ``directory``: a root file system, first of ``trees``, at
    ``/``. Each tree (devices too) comes with the absolute path at which it appears; ``links``
    pair a path with its target, ``files`` a path with its content.
    ``path_entries`` are directories that come first in the default PATH. ``extended`` says that
    a host base has trees or path entries that its caller named.
    """

    __slots__ = ("extended", "files", "kind", "links", "path_entries", "trees")
    _prefix = "bas_"
    extended: bool
    kind: Literal["host", "directory"]
    trees: tuple[tuple[MountSource, bytes], ...]
    links: tuple[tuple[bytes, bytes], ...]
    files: tuple[tuple[bytes, bytes], ...]
    path_entries: tuple[bytes, ...]

    def close(self) -> None:
        for source, _target in self.trees:
            source.close()


def _make_handle(cls: type[HandleType], key: object, **fields: object) -> HandleType:
    """Make a handle. For the engine: ``_make_handle(MountSource, _KEY, descriptor=…, …)``."""
    if key is not _KEY:
        raise TypeError(f"{cls.__name__} is made by the engine, not by its callers")
    slots = {name for owner in cls.__mro__ for name in owner.__dict__.get("__slots__", ())}
    if slots - {"__weakref__", "id"} != set(fields):
        raise TypeError(f"{cls.__name__} takes {sorted(slots - {'__weakref__', 'id'})}")
    handle = object.__new__(cls)
    object.__setattr__(handle, "id", mint(cls._prefix))
    for name, value in fields.items():
        object.__setattr__(handle, name, value)
    return handle
