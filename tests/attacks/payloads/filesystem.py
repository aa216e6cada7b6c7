# Family: files. GIVEN names directories: `ro` and `rw` (as the payload sees them), `mounted` (a
# mount point), `secret` (a file of the host's that was not granted, by its path on the host),
# `token` (makes names unique), `setuid_program` (one that can be read).

import fcntl
import stat

O_TMPFILE_WRITE = os.O_TMPFILE | os.O_WRONLY
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_SYMLINK_FOLLOW = 0x400
MS_REMOUNT_BIND = 32 | 4096
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
RO, RW, SECRET = GIVEN["ro"], GIVEN["rw"], GIVEN["secret"]
TOKEN = GIVEN["token"]
SUBMOUNT = os.path.join(RO, "sub")


def took(path):
    with open(path, "rb") as stream:
        content = stream.read(4096)
    if b"host secret" not in content:
        raise Contained("another file")
    return "read the secret through " + path


def checked(result):
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


# --- reaching files that were not granted


@attack
def read_host_file_by_its_path():
    return took(SECRET)


@attack
def read_host_file_through_own_root_link():
    return took("/proc/self/root" + SECRET)


@attack
def read_host_file_through_root_of_pid_1():
    return took("/proc/1/root" + SECRET)


@attack
def read_host_file_through_cwd_of_pid_1():
    return took("/proc/1/cwd/../../../../.." + SECRET)


@attack
def read_host_file_by_climbing():
    return took("/.." * 40 + SECRET)


@attack
def read_host_file_by_climbing_from_a_descriptor():
    handle = os.open(RW, os.O_PATH | os.O_DIRECTORY)
    descriptor = os.open("../" * 40 + SECRET.lstrip("/"), os.O_RDONLY, dir_fd=handle)
    return took("/proc/self/fd/%d" % descriptor)


@attack
def read_host_file_through_a_link_in_a_mount():
    link = os.path.join(RW, "link-" + TOKEN)
    os.symlink(SECRET, link)
    try:
        return took(link)
    finally:
        os.unlink(link)


@attack
def read_host_file_through_a_link_to_a_magic_link():
    link = os.path.join(RW, "magic-" + TOKEN)
    os.symlink("/proc/1/root" + SECRET, link)
    try:
        return took(link)
    finally:
        os.unlink(link)


@attack
def read_host_file_after_chroot_and_climbing():
    # The classic: keep a directory above the new root open, then climb from it.
    handle = os.open("/", os.O_RDONLY)
    os.chroot(RW)
    os.fchdir(handle)
    for _ in range(40):
        os.chdir("..")
    os.chroot(".")
    return took(SECRET)


@attack
def read_host_file_by_handle():
    # CVE-2014-6407 and its kin: inode 2 of the file system below a mount.
    anchor = os.open(RW, os.O_RDONLY)
    size, kind, inode, generation = 8, 1, 2, 0
    handle = (ctypes.c_uint32 * 4)(size, kind, inode, generation)
    call("open_by_handle_at", anchor, ctypes.byref(handle), os.O_RDONLY)
    return "opened an inode by its handle"


@attack
def list_homes_of_the_host():
    if os.listdir("/root"):
        return "listed /root"
    raise Contained("nothing: empty")


@attack
def read_password_hashes():
    with open("/etc/shadow", "rb") as stream:
        return "read %d byte" % len(stream.read(1))


@attack
def see_block_devices():
    for name in os.listdir("/dev"):
        if stat.S_ISBLK(os.stat(os.path.join("/dev", name)).st_mode):
            return "saw /dev/" + name
    raise Contained("nothing: no block device")


@attack
def see_kernel_message_device():
    os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    return "opened /dev/kmsg"


@attack
def see_host_control_groups():
    for place in ("/sys/fs/cgroup", "/sys/kernel", "/sys/devices"):
        if os.path.isdir(place) and os.listdir(place):
            return "listed " + place
    raise Contained("not there")


# --- read-only stays read-only


def read_only_row(name, action):
    for label, place in (("mount", RO), ("submount", SUBMOUNT)):

        def run(place=place):
            return action(place) or "changed " + place

        run.__name__ = "%s_in_read_only_%s" % (name, label)
        attack(run)


def create(place):
    path = os.path.join(place, "new-" + TOKEN)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    os.unlink(path)


def write_open(place):
    os.close(os.open(os.path.join(place, "f"), os.O_WRONLY))


def reopen(place):
    handle = os.open(os.path.join(place, "f"), os.O_RDONLY)
    os.close(os.open("/proc/self/fd/%d" % handle, os.O_RDWR))


def reopen_path_descriptor(place):
    handle = os.open(os.path.join(place, "f"), os.O_PATH)
    os.close(os.open("/proc/self/fd/%d" % handle, os.O_RDWR))


def unlink_and_restore(place):
    path = os.path.join(place, "victim")
    os.unlink(path)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def rename(place):
    source = os.path.join(place, "f")
    os.rename(source, source + "2")
    os.rename(source + "2", source)


def change_mode(place):
    os.chmod(os.path.join(place, "f"), 0o666)


def change_times(place):
    os.utime(os.path.join(place, "f"), (0, 0))


def truncate(place):
    os.truncate(os.path.join(place, "victim"), 0)


def set_attribute(place):
    os.setxattr(os.path.join(place, "f"), "user.kis", b"x")


def set_inode_flags(place):
    handle = os.open(os.path.join(place, "f"), os.O_RDONLY)
    get_flags, set_flags = 0x80086601, 0x40086602
    flags = fcntl.ioctl(handle, get_flags, b"\0" * 8)
    fcntl.ioctl(handle, set_flags, flags)


def make_directory(place):
    path = os.path.join(place, "dir-" + TOKEN)
    os.mkdir(path)
    os.rmdir(path)


def make_nameless(place):
    os.close(os.open(place, O_TMPFILE_WRITE, 0o600))


def remount(place):
    checked(libc.mount(b"none", place.encode(), None, MS_REMOUNT_BIND, None))
    create(place)


def remount_in_own_namespaces(place):
    checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    checked(libc.mount(b"none", place.encode(), None, MS_REMOUNT_BIND, None))
    create(place)


def clear_attributes(place):
    attributes = (ctypes.c_uint64 * 4)(0, 1, 0, 0)
    recursive = 0x8000
    call("mount_setattr", AT_FDCWD, place.encode(), recursive, ctypes.byref(attributes), 32)
    create(place)


def clone_and_write(place):
    tree = call("open_tree", AT_FDCWD, place.encode(), 1)
    attributes = (ctypes.c_uint64 * 4)(0, 1, 0, 0)
    call("mount_setattr", tree, b"", AT_EMPTY_PATH, ctypes.byref(attributes), 32)
    os.close(os.open("new-" + TOKEN, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=tree))
    os.unlink("new-" + TOKEN, dir_fd=tree)


for _name, _action in (
    ("create", create),
    ("open_for_writing", write_open),
    ("reopen_for_writing", reopen),
    ("reopen_path_descriptor", reopen_path_descriptor),
    ("unlink", unlink_and_restore),
    ("rename", rename),
    ("change_mode", change_mode),
    ("change_times", change_times),
    ("truncate", truncate),
    ("set_attribute", set_attribute),
    ("set_inode_flags", set_inode_flags),
    ("make_directory", make_directory),
    ("make_nameless_file", make_nameless),
    ("remount", remount),
    ("remount_in_own_namespaces", remount_in_own_namespaces),
    ("clear_mount_attributes", clear_attributes),
    ("clone_mount", clone_and_write),
):
    read_only_row(_name, _action)


# --- the base is never written


def base_row(place):
    def run():
        os.close(os.open(place, O_TMPFILE_WRITE, 0o600))
        return "a file could be made in " + place

    run.__name__ = "write_into_base_" + (place.strip("/").replace("/", "_") or "root")
    attack(run)


for _place in ("/", "/usr", "/usr/bin", "/usr/lib", "/etc"):
    base_row(_place)


@attack
def write_into_base_through_own_root_link():
    os.close(os.open("/proc/self/root/usr", O_TMPFILE_WRITE, 0o600))
    return "a file could be made"


@attack
def open_base_program_for_writing():
    os.close(os.open("/usr/bin/env", os.O_WRONLY))
    return "opened /usr/bin/env for writing"


# --- links, nodes


@attack
def hard_link_out_of_read_only_mount():
    path = os.path.join(RW, "hard-" + TOKEN)
    os.link(os.path.join(RO, "f"), path)
    os.unlink(path)
    return "linked a read-only file into a writable directory"


@attack
def hard_link_through_descriptor():
    path = os.path.join(RW, "hard2-" + TOKEN)
    handle = os.open(os.path.join(RO, "f"), os.O_RDONLY)
    source = b"/proc/self/fd/%d" % handle
    checked(libc.linkat(AT_FDCWD, source, AT_FDCWD, path.encode(), AT_SYMLINK_FOLLOW))
    os.unlink(path)
    return "linked a read-only file into a writable directory"


@attack
def move_out_of_read_only_mount():
    path = os.path.join(RW, "moved-" + TOKEN)
    source = os.path.join(RO, "victim")
    os.rename(source, path)
    os.rename(path, source)
    return "moved a read-only file"


def node_row(label, place, kind, number):
    def run():
        path = os.path.join(place, "node-" + TOKEN)
        os.mknod(path, kind | 0o600, number)
        try:
            os.close(os.open(path, os.O_RDONLY))
        finally:
            os.unlink(path)
        return "made and opened a device in " + place

    run.__name__ = "make_%s_device_in_%s" % (label, place.strip("/").replace("/", "_"))
    attack(run)


for _place in ("/tmp", "/dev/shm"):
    node_row("character", _place, stat.S_IFCHR, os.makedev(1, 3))


@attack
def make_character_device_in_writable_mount():
    path = os.path.join(RW, "node-" + TOKEN)
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.unlink(path)
    return "made a device"


# --- set-id bits must not reach a writable mount


def left_set_id(path):
    mode = os.lstat(path).st_mode
    if not mode & (stat.S_ISUID | stat.S_ISGID):
        raise Contained("the bit did not stay: %o" % mode)
    return "left mode %o" % mode


def own_file(path):
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    return path


def own_directory():
    return os.open(RW, os.O_RDONLY)


SET_ID_ROUTES = {}
CREATING = os.O_CREAT | os.O_EXCL | os.O_WRONLY


def set_id(route):
    SET_ID_ROUTES[route.__name__] = route
    return route


def by_old_number(number):
    """The calls that newer machines no longer have, by their number on x86_64."""
    if platform.machine() != "x86_64":
        raise Contained("nothing: no such call on this machine")
    return number


@set_id
def chmod(path, mode):
    own_file(path)
    raw(by_old_number(90), path.encode(), mode)


@set_id
def fchmod(path, mode):
    os.fchmod(os.open(own_file(path), os.O_RDWR), mode)


@set_id
def fchmodat(path, mode):
    own_file(path)
    os.chmod(os.path.basename(path), mode, dir_fd=own_directory())


@set_id
def fchmodat2(path, mode):
    call("fchmodat2", AT_FDCWD, own_file(path).encode(), mode, 0)


@set_id
def chmod_through_magic_link(path, mode):
    os.chmod("/proc/self/fd/%d" % os.open(own_file(path), os.O_PATH), mode)


@set_id
def open_creating(path, mode):
    raw(by_old_number(2), path.encode(), CREATING, mode)


@set_id
def openat_creating(path, mode):
    os.open(os.path.basename(path), CREATING, mode, dir_fd=own_directory())


@set_id
def open_creating_with_stale_flags(path, mode):
    # Bits the kernel ignores must not hide O_CREAT from a filter.
    flags = CREATING | 0x40000000 | (0x12345 << 32)
    raw({"x86_64": 257, "aarch64": 56}[platform.machine()], AT_FDCWD, path.encode(), flags, mode)


@set_id
def open_nameless_then_link(path, mode):
    handle = os.open(RW, os.O_TMPFILE | os.O_RDWR, mode)
    source = b"/proc/self/fd/%d" % handle
    checked(libc.linkat(AT_FDCWD, source, AT_FDCWD, path.encode(), AT_SYMLINK_FOLLOW))


@set_id
def openat2_creating(path, mode):
    how = (ctypes.c_uint64 * 3)(CREATING, mode, 0)
    call("openat2", AT_FDCWD, path.encode(), ctypes.byref(how), 24)


@set_id
def creat(path, mode):
    raw(by_old_number(85), path.encode(), mode)


@set_id
def mknod_regular(path, mode):
    raw(by_old_number(133), path.encode(), stat.S_IFREG | mode, 0)


@set_id
def mknodat_regular(path, mode):
    os.mknod(os.path.basename(path), stat.S_IFREG | mode, dir_fd=own_directory())


@set_id
def mknod_pipe(path, mode):
    os.mknod(path, stat.S_IFIFO | mode)


@set_id
def mkdir(path, mode):
    raw(by_old_number(83), path.encode(), mode)


@set_id
def mkdirat(path, mode):
    os.mkdir(os.path.basename(path), mode, dir_fd=own_directory())


@set_id
def mkdir_then_chmod(path, mode):
    os.mkdir(path)
    os.chmod(path, mode)


HIGH_BITS = -0x5433000000000000


@set_id
def chmod_with_high_bits(path, mode):
    # The kernel looks at the lower half of a register only; so must a filter.
    raw(by_old_number(90), own_file(path).encode(), HIGH_BITS + mode)


@set_id
def fchmodat_with_high_bits(path, mode):
    raw(by_old_number(268), AT_FDCWD, own_file(path).encode(), HIGH_BITS + mode)


def set_id_row(route_name, route, bit_name, bits):
    def run():
        path = os.path.join(RW, "setid-%s-%s-%s" % (route_name, bit_name, TOKEN))
        os.umask(0)
        try:
            route(path, bits | 0o755)
            return left_set_id(path)
        finally:
            if GIVEN.get("tidy") and os.path.lexists(path):
                os.rmdir(path) if os.path.isdir(path) else os.unlink(path)

    run.__name__ = "leave_%s_by_%s" % (bit_name, route_name)
    attack(run)


for _route_name, _route in SET_ID_ROUTES.items():
    set_id_row(_route_name, _route, "setuid", stat.S_ISUID)
    set_id_row(_route_name, _route, "setgid", stat.S_ISGID)


@attack
def leave_file_capabilities():
    path = own_file(os.path.join(RW, "capabilities-" + TOKEN))
    try:
        value = b"\x01\x00\x00\x02" + b"\x01\0\0\0" * 2 + b"\0" * 8
        os.setxattr(path, "security.capability", value)
        return "gave a file capabilities"
    finally:
        os.unlink(path)


@attack
def carry_a_setuid_program_over():
    path = os.path.join(RW, "carried-" + TOKEN)
    os.link(GIVEN["setuid_program"], path)
    os.unlink(path)
    return "linked " + GIVEN["setuid_program"]


def give_away_row(label, uid, gid):
    def run():
        path = own_file(os.path.join(RW, "given-%s-%s" % (label, TOKEN)))
        try:
            os.chown(path, uid, gid)
        finally:
            os.unlink(path)
        return "gave a file to " + label

    run.__name__ = "give_a_file_to_%s" % label
    attack(run)


give_away_row("another_user", 1234, -1)
give_away_row("another_group", -1, 1234)
give_away_row("nobody", 65534, 65534)
give_away_row("the_agents_user", 65533, -1)


@attack
def hold_up_whoever_opens_a_file():
    # A lease makes others wait in open() for up to 45 seconds, on the host too.
    handle = os.open(own_file(os.path.join(RW, "leased-" + TOKEN)), os.O_RDWR)
    try:
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    finally:
        os.unlink(os.path.join(RW, "leased-" + TOKEN))
    return "took a lease"


# --- the kernel's own files


def proc_write_row(path):
    def run():
        os.close(os.open(path, os.O_WRONLY))
        return "opened %s for writing" % path

    run.__name__ = "open_for_writing_" + path[1:].replace("/", "_").replace("-", "_")
    attack(run)


for _path in (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/kernel/shmmax",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/fs/file-max",
    "/proc/sys/fs/protected_hardlinks",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
    "/proc/1/oom_score_adj",
    "/sys/kernel/uevent_helper",
    "/sys/kernel/mm/ksm/run",
):
    proc_write_row(_path)


def proc_read_row(path):
    def run():
        with open(path, "rb") as stream:
            if not stream.read(64):
                raise Contained("empty")
        return "read " + path

    run.__name__ = "read_" + path[1:].replace("/", "_")
    attack(run)


for _path in ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/interrupts"):
    proc_read_row(_path)


# --- mounts (each undone at once: where it works, the control goes on after it)


@attack
def mount_memory_file_system():
    checked(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
    checked(libc.umount2(b"/tmp", 2))
    return "mounted"


@attack
def mount_fresh_proc():
    checked(libc.mount(b"proc", b"/tmp", b"proc", 0, None))
    checked(libc.umount2(b"/tmp", 2))
    return "mounted"


@attack
def bind_over_base():
    checked(libc.mount(RW.encode(), b"/usr", None, 4096, None))
    checked(libc.umount2(b"/usr", 2))
    return "mounted"


@attack
def make_file_system_context():
    os.close(call("fsopen", b"tmpfs", 0))
    return "opened"


@attack
def lift_a_mount():
    checked(libc.umount2(GIVEN["mounted"].encode(), 2))
    return "unmounted"


@attack
def pivot_away():
    call("pivot_root", b"/tmp", b"/tmp")
    return "pivoted"


main()
