"""The file system of a sandbox as plan records: the base, what every sandbox has, the grants.

Knows: the profile's mounts and the plan's records. Must not know: a backend, how records run.
Called by: backends. Pure: equal requests give equal records.
"""

from __future__ import annotations

from kis.engine import blob
from kis.engine.blob import NODEV, NOEXEC, NONE, NOSUID, RDONLY
from kis.errors import Code, SandboxError, quoted
from kis.linux import accounts
from kis.vocabulary import FOREIGN_IDS, NetworkMode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kis.engine.backend import Request
    from kis.engine.blob import Step
    from kis.identity import MountSource
    from kis.profile import Mount, Profile

SPACE_BYTES = 256 << 20
SPACE_INODES = 64 << 10
HOSTNAME = b"sandbox"
# An id that no file belongs to. A map that knows only it makes every write, and every connection
# to a socket or pipe lying there, fail: the kernel refuses MAY_WRITE on an unmapped inode.
_NOBODY_ON_DISK = 0xFFFFFFFD
_OVERFLOW_ID = 65534
# Capabilities over files of other owners, as far as the owners are mapped.
_OWNERSHIP = frozenset({"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"})

_SHARED_DIRECTORIES = (b"/tmp", b"/dev/shm")  # 1777, in the sandbox's own space
_DEVICE_LINKS = (
    (b"/dev/fd", b"/proc/self/fd"),
    (b"/dev/ptmx", b"pts/ptmx"),
    (b"/dev/stderr", b"/proc/self/fd/2"),
    (b"/dev/stdin", b"/proc/self/fd/0"),
    (b"/dev/stdout", b"/proc/self/fd/1"),
)
_READ_ONLY_TREE = RDONLY | NOSUID | NODEV
_DEVICE = RDONLY | NOSUID | NOEXEC  # read-only: its mode and times; a device itself is written to


class Tree:
    """Collects records by the path they are about, with the sources and id maps they need."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.privileged = request.ids_start is not None
        self.root_id = 0 if self.privileged else request.uid
        self.root_gid = 0 if self.privileged else request.gid
        self.sources: list[MountSource] = []
        self.maps: list[Step] = []
        self._items: list[tuple[bytes, Step, str]] = []

    def source(self, handle: MountSource) -> int:
        """Return the index of a source, which the launcher is handed a descriptor of."""
        if handle not in self.sources:
            self.sources.append(handle)
        return self.sources.index(handle)

    def id_map(self, entries: Sequence[tuple[int, int, int, int]]) -> int:
        """Return the index of an id map. Index 0 is the sandbox's own and takes no record."""
        for step in self.maps:
            if step == blob.idmap(step[1], entries):
                return int(step[1])
        self.maps.append(blob.idmap(len(self.maps) + 1, entries))
        return len(self.maps)

    def own_map(self, origin: str) -> int:
        """Return the sandbox's own map where there is one that this file system may take."""
        return 0 if self.privileged and origin not in self.request.plain else NONE

    def foreign_map(self) -> int:
        """Return the map that shows the host's system accounts as ids that nobody can be."""
        start, count = (self.request.ids_start or 0) + FOREIGN_IDS.start, len(FOREIGN_IDS)
        return self.id_map([(blob.MAP_UID, 0, start, count), (blob.MAP_GID, 0, start, count)])

    def add(self, path: bytes, step: Step, origin: str = "base") -> None:
        self._items.append((path, step, origin))

    def directory(self, path: bytes, mode: int = 0o755) -> None:
        self.add(path, (blob.DIR, mode, self.root_id, self.root_gid, path))

    def file(self, path: bytes, content: bytes) -> None:
        self.add(path, (blob.FILE, 0o644, self.root_id, self.root_gid, path, content))

    def space(self, path: bytes, mode: int, uid: int, gid: int, origin: str = "base") -> None:
        self.add(path, (blob.SPACE_BIND, mode, uid, gid, 0, path), origin)

    def in_order(self) -> list[tuple[Step, str]]:
        """Return records and origins, parents before children, grants over the base.

        Where a grant covers a path, what the base would have put there or below is left out; so
        is a tree of the base where every sandbox has something of its own, and a link above it.
        """
        grants = {path for path, step, origin in self._items if origin.startswith(_COVERING)}
        own = {path for path, step, _ in self._items if step[0] in _OWN}
        made = own | {path for path, step, _ in self._items if step[0] == blob.DIR}
        kept = [
            (path, step, origin)
            for path, step, origin in self._items
            if origin != "base"
            or not (
                any(_lies_in(path, grant) for grant in grants)
                or (step[0] in _TREES and path in own)
                or (step[0] == blob.LINK and any(_lies_in(place, path) for place in made))
            )
        ]
        kept.sort(key=lambda item: item[0].split(b"/"))
        return [(step, origin) for _, step, origin in kept]


_COVERING = ("mounts[", "tmpfs[")
_TREES = frozenset({blob.BIND, blob.OVERLAY})
_OWN = frozenset({blob.SPACE_BIND, blob.PROC, blob.DEVPTS})  # no base makes any of these


def _lies_in(path: bytes, directory: bytes) -> bool:
    return path == directory or path.startswith(directory.rstrip(b"/") + b"/")


def plan_tree(request: Request) -> tuple[list[tuple[Step, str]], list[MountSource]]:
    """Return the records from SPACE to the last mount, each with its origin, and the sources.

    Raises ``mount_invalid`` for a rw mount whose owner the sandbox cannot stand for.
    """
    tree = Tree(request)
    root = _base(tree)
    _every_sandbox(tree)
    _grants(tree)
    head: list[tuple[Step, str]] = [
        ((blob.HOSTNAME, HOSTNAME), "base"),
        ((blob.SPACE, SPACE_BYTES, SPACE_INODES), "base"),
    ]
    rest = tree.in_order()
    head.extend((step, "mounts") for step in tree.maps)
    return [*head, (root, "base"), *rest], tree.sources


def bound_plainly(request: Request) -> bool:
    """Whether a directory base is bound entry by entry, its owners showing as nobody.

    So where it takes no id map, and where an ordinary user's base belongs to somebody else:
    an overlay's upper could hold no copy of what such owners have.
    """
    base = request.base
    if base.kind != "directory":
        return False
    owner = base.trees[0][0].owner_uid
    return "base" in request.plain or (request.ids_start is None and owner != request.host.euid)


def home_of(uid: int) -> bytes:
    """Return the HOME of a user's id inside."""
    return {0: b"/root", 1000: b"/home/user", _OVERFLOW_ID: b"/home/nobody"}.get(
        uid, b"/home/u%d" % uid
    )


def _base(tree: Tree) -> Step:
    """Add the base's trees, links and files; return the ROOT record."""
    request = tree.request
    base = request.base
    overlaid = base.kind == "directory" and not bound_plainly(request)
    contents = dict(base.files)
    for handle, path in base.trees:
        if handle.kind == "device":
            step = (blob.BIND, tree.source(handle), _DEVICE, NONE, path, handle.path)
            tree.add(path, step)
        elif path != b"/" and not overlaid:
            _base_tree(tree, handle, path)
    if not overlaid:
        for path, target in base.links:
            tree.add(path, (blob.LINK, path, target))
    etc_is_bound = base.kind == "directory" and not overlaid
    if not etc_is_bound:
        for path, content in sorted(_etc_files(request, contents)):
            tree.file(path, content)
    if not overlaid:
        return (blob.ROOT, 0, NONE, NONE, b"")
    handle = base.trees[0][0]
    return (blob.ROOT, 1, tree.source(handle), tree.own_map("base"), handle.path)


def _base_tree(tree: Tree, handle: MountSource, path: bytes) -> None:
    """A read-only bind; an overlay where the place of a mount may have to be made below it.

    Without an id map, or shown as ids that nobody inside can be: others' bits are what any payload
    may read of the host, inside-root's too. Hence ``writable_root`` does not reach in here.
    """
    profile = tree.request.profile
    targets = [mount.target for mount in profile.mounts]
    targets += [tmpfs.target for tmpfs in profile.tmpfs]
    holds_targets = any(t != path and _lies_in(t, path) for t in targets)
    source = tree.source(handle)
    if holds_targets and tree.own_map("base") != NONE and not _reaches_foreign(profile):
        tree.add(path, (blob.OVERLAY, source, tree.foreign_map(), path, handle.path))
    else:
        tree.add(path, (blob.BIND, source, _READ_ONLY_TREE, NONE, path, handle.path))


def _reaches_foreign(profile: Profile) -> bool:
    """Whether a granted capability would make an owner inside of what the host's root owns."""
    return not _OWNERSHIP.isdisjoint(profile.capabilities)


def _etc_files(request: Request, contents: dict[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
    has_host_network = request.profile.network.mode is NetworkMode.HOST
    resolver = contents.pop(b"/etc/resolv.conf", b"")
    yield b"/etc/resolv.conf", resolver if has_host_network else accounts.RESOLVER
    yield b"/etc/hosts", accounts.HOSTS
    yield b"/etc/hostname", HOSTNAME + b"\n"
    passwd, group = contents.pop(b"/etc/passwd", b""), contents.pop(b"/etc/group", b"")
    users = [(request.uid, request.gid, home_of(request.uid))]
    yield b"/etc/passwd", accounts.passwd(passwd, users, home_of)
    yield b"/etc/group", accounts.group(group, users)
    if request.base.kind == "host":
        yield b"/etc/nsswitch.conf", accounts.NAME_SERVICES
    yield from contents.items()


def _every_sandbox(tree: Tree) -> None:
    request = tree.request
    for path in (b"/run", b"/sys", b"/var"):
        tree.directory(path)
    for path in _SHARED_DIRECTORIES:
        tree.space(path, 0o1777, tree.root_id, tree.root_gid)
    if request.base.kind == "host":
        tree.add(b"/var/tmp", (blob.LINK, b"/var/tmp", b"/tmp"))
    elif not bound_plainly(request):
        tree.space(b"/var/tmp", 0o1777, tree.root_id, tree.root_gid)
    home = home_of(request.uid)
    tree.space(home, 0o700, request.uid, request.gid)
    tree.add(b"/proc", (blob.PROC, b"/proc"))
    for name in request.host.machine.sensitive_proc:
        tree.add(b"/proc/" + name, (blob.MASK, b"/proc/" + name))
    tree.add(b"/dev/pts", (blob.DEVPTS, b"/dev/pts"))
    for path, target in _DEVICE_LINKS:
        tree.add(path, (blob.LINK, path, target))


def _grants(tree: Tree) -> None:
    profile = tree.request.profile
    for at, mount in enumerate(profile.mounts):
        _mount(tree, mount, f"mounts[{at}]")
    for at, device in enumerate(profile.devices):
        handle = device.source
        if tree.privileged:
            _refuse_shut_device(handle)
        attributes = NOSUID | NOEXEC
        step = (blob.BIND, tree.source(handle), attributes, NONE, device.target, handle.path)
        tree.add(device.target, step, f"devices[{at}]")
    for at, tmpfs in enumerate(profile.tmpfs):
        owner = (tree.request.uid, tree.request.gid)
        tree.space(tmpfs.target, 0o755, *owner, f"tmpfs[{at}]")
    for at, secret in enumerate(profile.secrets):
        uid, gid = tree.request.uid, tree.request.gid
        step = (blob.FILE, 0o400, uid, gid, secret.target, secret.content)
        tree.add(secret.target, step, f"secrets[{at}]")


def _mount(tree: Tree, mount: Mount, origin: str) -> None:
    handle = mount.source
    attributes = NOSUID | NODEV | (0 if mount.writable else RDONLY)
    if not tree.privileged:
        _refuse_other_owner(tree.request, mount)
    mapped = NONE
    if tree.privileged and origin not in tree.request.plain:
        mapped = tree.id_map(_mount_map(tree.request, mount))
    tree.add(
        mount.target,
        (blob.BIND, tree.source(handle), attributes, mapped, mount.target, handle.path),
        origin,
    )


def _mount_map(request: Request, mount: Mount) -> list[tuple[int, int, int, int]]:
    """Which owner on disk the sandbox's user stands for: of a ro mount only to read.

    Of a read-only mount the group stays unmapped, so that nothing there can be written to, be
    it a socket or a pipe, which a read-only mount alone does not stop.
    """
    start = request.ids_start or 0
    nobody = start + _OVERFLOW_ID
    unmapped = [(kind, _NOBODY_ON_DISK, nobody, 1) for kind in (blob.MAP_UID, blob.MAP_GID)]
    uid, gid = mount.file_owner
    if not mount.writable:
        # What only root may read on the host stays unread inside.
        reader = unmapped[0] if uid == 0 else (blob.MAP_UID, uid, start + request.uid, 1)
        return [reader, unmapped[1]]
    entries = [
        (blob.MAP_UID, uid, start + request.uid, 1),
        (blob.MAP_GID, gid, start + request.gid, 1),
    ]
    # Where another owner is named, the source keeps its own: an id that nobody has inside, but
    # one, for in a directory of no known owner not even a mode of 0777 would let files be made.
    own_uid, own_gid = mount.source.owner_uid, mount.source.owner_gid
    entries += [(blob.MAP_UID, own_uid, own_uid, 1)] if own_uid != uid else []
    entries += [(blob.MAP_GID, own_gid, own_gid, 1)] if own_gid != gid else []
    return entries


def _refuse_other_owner(request: Request, mount: Mount) -> None:
    """Without privilege the sandbox's one id is ours, and files can be made as nobody else."""
    uid, gid = mount.file_owner
    wrong = uid != request.host.euid or (mount.owner is not None and gid != request.host.egid)
    if mount.writable and wrong:
        raise SandboxError(
            Code.MOUNT_INVALID,
            f"{quoted(mount.source.path)}: new files would belong to {uid}:{gid}, but kis runs "
            f"as {request.host.euid}:{request.host.egid} without privilege",
            "Mount a directory of your own read-write, or start kis as root.",
            {"field": "mounts.owner", "source": quoted(mount.source.path)},
        )


def _refuse_shut_device(handle: MountSource) -> None:
    """A node keeps its owner on the host, who is nobody inside: only others' bits count there."""
    if handle.mode & 0o006:
        return
    raise SandboxError(
        Code.MOUNT_INVALID,
        f"{quoted(handle.path)} has mode {handle.mode:04o}, which lets only its owner and group "
        f"({handle.owner_uid}:{handle.owner_gid}) use it, and inside nobody is the host's root",
        "Give the node a mode that lets others use it (chmod o+rw), or start kis as somebody of "
        "its group, without privilege.",
        {"field": "devices", "source": quoted(handle.path)},
    )
