# Family: calls into the kernel that no payload needs. Each call carries arguments that change
# nothing even where it is allowed: bad pointers, bad magic numbers, nothing to act on. What counts
# is whether the kernel got to look at them. EPERM and ENOSYS are denials, as is being killed.

import mmap
import socket
import struct

BAD = 8  # an address that is never mapped
DENIED = (errno.EPERM, errno.ENOSYS)
NAMESPACES = {
    "user": 0x10000000,
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "time": 0x00000080,
}


def answered(function, *arguments):
    """Raise when denied; any other answer came from the call itself."""
    try:
        result = function(*arguments)
    except OSError as error:
        if error.errno in DENIED:
            raise
        return "answered " + errno.errorcode.get(error.errno, str(error.errno))
    return "answered %d" % result


def call_row(name, *arguments, **options):
    def run():
        return answered(call, name, *arguments)

    run.__name__ = "call_" + (options.get("label") or name)
    attack(run)


call_row("ptrace", 0, 0, 0, 0)
call_row("ptrace", 0x4206, -1 & 0x7FFFFFFF, 0, 0, label="ptrace_seize")
call_row("process_vm_readv", 0x7FFFFFFF, BAD, 1, BAD, 1, 0)
call_row("process_vm_writev", 0x7FFFFFFF, BAD, 1, BAD, 1, 0)
call_row("pidfd_getfd", -1, 0, 0)
call_row("kcmp", 0x7FFFFFFF, 0x7FFFFFFF, 0, 0, 0)
call_row("process_madvise", -1, BAD, 1, 20, 0)
call_row("keyctl", 0, -3, 0)
call_row("add_key", BAD, BAD, BAD, 0, -3)
call_row("request_key", BAD, BAD, BAD, -3)
call_row("bpf", 5, BAD, 120)
call_row("perf_event_open", BAD, 0, -1, -1, 0)
call_row("userfaultfd", 0x7FFFFFFF)
call_row("io_uring_setup", 1, BAD)
call_row("io_uring_enter", -1, 0, 0, 0, 0, 0)
call_row("io_uring_register", -1, 0, 0, 0)
call_row("mount", BAD, BAD, BAD, 0, BAD)
call_row("umount2", BAD, 0)
call_row("pivot_root", BAD, BAD)
call_row("open_tree", -1, BAD, 0)
call_row("open_tree", -100, b"/", 1, label="open_tree_clone")
call_row("move_mount", -1, BAD, -1, BAD, 0)
call_row("fsopen", BAD, 0)
call_row("fsconfig", -1, 0, 0, 0, 0)
call_row("fsmount", -1, 0, 0)
call_row("fspick", -1, BAD, 0)
call_row("mount_setattr", -1, BAD, 0, BAD, 32)
call_row("setns", -1, 0)
call_row("init_module", BAD, 8, BAD)
call_row("finit_module", -1, BAD, 0)
call_row("delete_module", BAD, 0)
call_row("kexec_load", 0, 1, BAD, 0xFFFF)
call_row("kexec_file_load", -1, -1, 1, BAD, 0xFFFF)
call_row("reboot", 1, 2, 3, 0)
call_row("swapon", BAD, 0)
call_row("swapoff", BAD)
call_row("acct", BAD)
call_row("settimeofday", BAD, 0)
call_row("clock_settime", 12345, BAD)
call_row("sethostname", BAD, 4)
call_row("setdomainname", BAD, 4)
call_row("quotactl", 0x80000200, BAD, 0, BAD)
call_row("syslog", 3, BAD, 16)
call_row("open_by_handle_at", -1, BAD, 0)
call_row("fanotify_init", 0x7FFFFFFF, 0)
call_row("openat2", -100, BAD, BAD, 24)
call_row("fchmodat2", -100, BAD, 0o644, 0)
call_row("clone3", BAD, 64)
if platform.machine() == "x86_64":
    call_row("iopl", 4)
    call_row("ioperm", 0, 0xFFFFFF, 1)


def old_row(name, number, *arguments):
    def run():
        if platform.machine() != "x86_64":
            raise Contained("nothing: no such call on this machine")
        return answered(raw, number, *arguments)

    run.__name__ = "call_" + name
    attack(run)


old_row("uselib", 134, BAD)
old_row("sysfs", 139, 3)
old_row("modify_ldt", 154, 0, BAD, 16)


@attack
def call_a_number_nobody_knows():
    return answered(raw, 9999)


@attack
def call_a_number_of_tomorrow():
    # A pretend-new call must look like an old kernel, not like a wall: programs then fall back.
    try:
        raw(1023)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise
    return "another answer than ENOSYS"


# --- new namespaces, by every door


def unshare_row(label, flag, name):
    def run():
        call("unshare", flag)
        return "made one"

    run.__name__ = name
    attack(run)


def clone_row(label, flag, name):
    def run():
        result = call("clone", flag | 17, 0, 0, 0, 0)
        if result == 0:
            os._exit(0)
        os.waitpid(result, 0)
        return "made one"

    run.__name__ = name
    attack(run)


GARBAGE = 0x1234 << 32
for _label, _flag in NAMESPACES.items():
    unshare_row(_label, _flag, "unshare_%s_namespace" % _label)
    if _label != "time":
        clone_row(_label, _flag, "clone_%s_namespace" % _label)
        clone_row(_label, _flag | GARBAGE, "clone_%s_namespace_with_high_bits" % _label)
unshare_row("all", 0x10020000, "unshare_user_and_mount_namespace")


@attack
def clone3_user_namespace():
    arguments = (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17, 0, 0, 0)
    result = call("clone3", ctypes.byref(arguments), 64)
    if result == 0:
        os._exit(0)
    os.waitpid(result, 0)
    return "made one"


# --- terminals: bytes pushed into somebody's shell


def ioctl_row(name, request):
    def run():
        number = {"x86_64": 16, "aarch64": 29}[platform.machine()]
        # On descriptor -1 nothing can happen: EBADF says that the filter let it through.
        return answered(raw, number, -1, request, BAD)

    run.__name__ = name
    attack(run)


ioctl_row("push_terminal_input", 0x5412)
ioctl_row("push_terminal_input_with_high_bits", 0x5412 | (1 << 32))  # CVE-2019-10063
ioctl_row("drive_linux_console", 0x541C)
ioctl_row("drive_linux_console_with_high_bits", 0x541C | (0x7FFF << 32))  # CVE-2023-28100


# --- socket families that no network namespace holds, or that only widen the surface


def family_row(name, family, kind, protocol=0):
    def run():
        number = {"x86_64": 41, "aarch64": 198}[platform.machine()]
        return "made one: %d" % raw(number, family, kind, protocol)

    run.__name__ = "open_%s_socket" % name
    attack(run)


family_row("vsock", 40, socket.SOCK_STREAM)
family_row("vsock_with_high_bits", 40 | (1 << 32), socket.SOCK_STREAM)
family_row("kernel_crypto", 38, socket.SOCK_SEQPACKET)
family_row("packet", 17, socket.SOCK_RAW, 768)
family_row("raw_internet", 2, socket.SOCK_RAW, 1)
family_row("raw_internet_6", 10, socket.SOCK_RAW, 58)
family_row("netfilter", 16, socket.SOCK_RAW, 12)
family_row("audit", 16, socket.SOCK_RAW, 9)
family_row("kernel_event", 16, socket.SOCK_RAW, 15)
family_row("bluetooth", 31, socket.SOCK_RAW, 1)
family_row("can", 29, socket.SOCK_RAW, 1)
family_row("tipc", 30, socket.SOCK_SEQPACKET)
family_row("rds", 21, socket.SOCK_SEQPACKET)
family_row("xdp", 44, socket.SOCK_RAW)
family_row("key_management", 15, socket.SOCK_RAW, 2)
family_row("appletalk", 5, socket.SOCK_DGRAM)
family_row("ax25", 3, socket.SOCK_DGRAM)
family_row("ipx", 4, socket.SOCK_DGRAM)
family_row("x25", 9, socket.SOCK_SEQPACKET)
family_row("llc", 26, socket.SOCK_DGRAM)
family_row("nfc", 39, socket.SOCK_RAW)
family_row("qipcrtr", 42, socket.SOCK_DGRAM)
family_row("smc", 43, socket.SOCK_STREAM)
family_row("kcm", 41, socket.SOCK_SEQPACKET)
family_row("mctp", 45, socket.SOCK_DGRAM)


# --- the other doors of an x86_64 machine


def run_code(code):
    """Run machine code that returns in rax."""
    if platform.machine() != "x86_64":
        raise Contained("nothing: another machine")
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if libc.mprotect(ctypes.c_void_p(address), 4096, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    return ctypes.CFUNCTYPE(ctypes.c_int)(address)()


def entry_32_row(name, number, ebx):
    def run():
        # mov eax, number; mov ebx, argument; int 0x80; ret (rbx kept, as the ABI wants)
        code = b"\x53\xb8" + struct.pack("<I", number) + b"\xbb" + struct.pack("<I", ebx)
        code += b"\xcd\x80\x5b\xc3"
        result = run_code(code)
        if -4096 < result < 0:
            raise OSError(-result, os.strerror(-result))
        return "answered %d" % result

    run.__name__ = name
    attack(run)


entry_32_row("ask_pid_by_32_bit_entry", 20, 0)
entry_32_row("unshare_user_namespace_by_32_bit_entry", 310, 0x10000000)
entry_32_row("ptrace_by_32_bit_entry", 26, 0)


def x32_row(name, number, *arguments):
    def run():
        if platform.machine() != "x86_64":
            raise Contained("nothing: another machine")
        return answered(raw, 0x40000000 | number, *arguments)

    run.__name__ = name
    attack(run)


x32_row("ask_pid_by_x32_entry", 39)
x32_row("unshare_user_namespace_by_x32_entry", 272, 0x10000000)
x32_row("ptrace_by_x32_entry", 521, 0, 0, 0, 0)


# --- privileges


@attack
def gain_capabilities():
    with open("/proc/self/status") as stream:
        fields = dict(line.split(":", 1) for line in stream if ":" in line)
    granted = int(GIVEN.get("capabilities", "0"), 16)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        surplus = int(fields[name], 16) & ~granted
        if surplus:
            return "%s holds %x more than granted" % (name, surplus)
    raise Contained("no set holds more than was granted")


@attack
def gain_privilege_by_exec():
    with open("/proc/self/status") as stream:
        fields = dict(line.split(":", 1) for line in stream if ":" in line)
    if fields["NoNewPrivs"].strip() == "1":
        raise Contained("no_new_privs is set")
    return "no_new_privs is not set"


@attack
def shed_the_filter():
    with open("/proc/self/status") as stream:
        fields = dict(line.split(":", 1) for line in stream if ":" in line)
    if fields["Seccomp"].strip() == "2":
        raise Contained("filtered")
    return "no filter"


main()
