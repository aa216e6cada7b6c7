# Family: the agent's own skin. Pid 1 is ours; nothing inside may read it, write it, slow it or take
# a descriptor from it. In the control pid 1 is a plain program of the same user.

# Never let loose on the host's own pid 1: whoever runs this says whose it is.

import resource
import stat

assert GIVEN["pid_1"] in ("agent", "plain") or "only" in GIVEN
PID = 1
PROCESS_VM = ctypes.c_uint64 * 2


def read_row(name, path):
    def run():
        with open(path, "rb") as stream:
            taken = stream.read(16)
        return "read %d bytes of %s" % (len(taken), path)

    run.__name__ = name
    attack(run)


for _entry in ("environ", "maps", "smaps", "auxv", "syscall", "io", "pagemap", "personality"):
    read_row("read_%s_of_pid_1" % _entry, "/proc/1/" + _entry)


@attack
def open_memory_of_pid_1():
    os.close(os.open("/proc/1/mem", os.O_RDONLY))
    return "opened"


@attack
def open_memory_of_pid_1_for_writing():
    os.close(os.open("/proc/1/mem", os.O_RDWR))
    return "opened"


@attack
def list_descriptors_of_pid_1():
    return "saw descriptors " + " ".join(os.listdir("/proc/1/fd"))


@attack
def list_mapped_files_of_pid_1():
    return "saw %d" % len(os.listdir("/proc/1/map_files"))


def link_row(entry):
    def run():
        return "read %r" % os.readlink("/proc/1/" + entry)

    run.__name__ = "read_link_%s_of_pid_1" % entry.replace("/", "_")
    attack(run)


for _entry in ("exe", "cwd", "root", "ns/user", "ns/mnt", "ns/net"):
    link_row(_entry)


@attack
def open_program_of_pid_1():
    # CVE-2019-5736: the container's helper overwritten through this link.
    os.close(os.open("/proc/1/exe", os.O_RDONLY))
    return "opened"


def write_row(entry):
    def run():
        os.close(os.open("/proc/1/" + entry, os.O_WRONLY))
        return "opened for writing"

    run.__name__ = "open_%s_of_pid_1_for_writing" % entry
    attack(run)


for _entry in ("oom_score_adj", "comm", "clear_refs", "coredump_filter", "timerslack_ns"):
    write_row(_entry)


@attack
def take_a_descriptor_from_any_other_process():
    own = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (own, os.getppid()):
            continue
        place = "/proc/%s/fd" % name
        try:
            numbers = os.listdir(place)
        except OSError:
            continue
        for number in numbers:
            os.close(os.open("%s/%s" % (place, number), os.O_PATH))
            return "reached descriptor %s of process %s" % (number, name)
    raise Contained("no process gave any")


@attack
def take_a_descriptor_by_pidfd():
    handle = call("pidfd_open", PID, 0)
    taken = 0
    for number in range(8):
        try:
            os.close(call("pidfd_getfd", handle, number, 0))
            taken += 1
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
    if not taken:
        raise Contained("none open")
    return "took %d" % taken


@attack
def hold_a_socket_of_the_engine():
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                return "descriptor %s is a socket" % name
        except OSError:
            continue
    raise Contained("no socket among the descriptors")


def vector(address, size):
    return PROCESS_VM(address, size)


@attack
def read_memory_by_call():
    buffer = ctypes.create_string_buffer(8)
    local, remote = vector(ctypes.addressof(buffer), 8), vector(0x400000, 8)
    try:
        call("process_vm_readv", PID, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
    return "the kernel was ready to read"


@attack
def write_memory_by_call():
    buffer = ctypes.create_string_buffer(8)
    local, remote = vector(ctypes.addressof(buffer), 8), vector(0x10, 8)
    try:
        call("process_vm_writev", PID, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
    return "the kernel was ready to write"


@attack
def compare_descriptors():
    return "compared: %d" % call("kcmp", os.getpid(), PID, 0, 0, 0)


@attack
def seize():
    call("ptrace", 0x4206, PID, 0, 0)
    return "seized"


@attack
def starve_of_descriptors():
    # The old limits are handed back, so that the control stays harmless.
    limits = (ctypes.c_uint64 * 2)()
    call("prlimit64", PID, resource.RLIMIT_NOFILE, 0, ctypes.byref(limits))
    call("prlimit64", PID, resource.RLIMIT_NOFILE, ctypes.byref(limits), 0)
    return "could set its limits"


@attack
def starve_of_descriptors_with_high_bits():
    limits = (ctypes.c_uint64 * 2)()
    pid = PID | (0x7FFF << 32)
    call("prlimit64", pid, resource.RLIMIT_NOFILE, 0, ctypes.byref(limits))
    return "could read its limits"


@attack
def pin_to_a_processor():
    mask = ctypes.c_ulong(1)
    call("sched_setaffinity", PID, ctypes.sizeof(mask), ctypes.byref(mask))
    return "pinned"


@attack
def make_idle_class():
    parameter = ctypes.c_int(0)
    call("sched_setscheduler", PID, 5, ctypes.byref(parameter))
    return "made it idle"


@attack
def lower_by_attributes():
    attributes = (ctypes.c_uint32 * 12)(48, 5)
    call("sched_setattr", PID, ctypes.byref(attributes), 0)
    return "made it idle"


@attack
def lower_priority():
    call("setpriority", 0, PID, 10)
    return "made it nicer"


@attack
def lower_priority_of_everybody():
    # By user: would reach the agent where it shares its uid with the payload.
    before = os.getpriority(os.PRIO_PROCESS, PID)
    os.setpriority(os.PRIO_USER, os.getuid(), 19)
    if os.getpriority(os.PRIO_PROCESS, PID) == before:
        raise Contained("pid 1 kept its priority")
    return "pid 1 is nicer now"


@attack
def lower_io_priority():
    call("ioprio_set", 1, PID, 3 << 13)
    return "made its input and output idle"


@attack
def move_its_memory():
    nodes = ctypes.c_ulong(1)
    call("migrate_pages", PID, 8, ctypes.byref(nodes), ctypes.byref(nodes))
    return "moved"


@attack
def advise_its_memory():
    handle = call("pidfd_open", PID, 0)
    remote = vector(0x10000, 4096)
    try:
        call("process_madvise", handle, ctypes.byref(remote), 1, 20, 0)
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.EFAULT, errno.EINVAL):
            raise
    return "the kernel was ready to take advice"


@attack
def join_its_namespaces():
    handle = call("pidfd_open", PID, 0)
    call("setns", handle, 0x10000000)
    return "joined"


@attack
def read_what_its_descriptors_are():
    os.close(os.open("/proc/1/fdinfo/0", os.O_RDONLY))
    return "read fdinfo"


main()
