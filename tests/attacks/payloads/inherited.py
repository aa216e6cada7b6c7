# Family: what the caller had in its hands when it started us. GIVEN names `secret` (a file in the
# caller's working directory), `word` (its content, also in the caller's environment and keyring).

import stat

# Two processes above us are ours: the one that runs the attacks, and whoever started it.


def own_descriptors():
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            os.fstat(number)
        except OSError:
            continue
        yield number


BEFORE = sorted(own_descriptors())


@attack
def find_descriptors_left_open():
    # 0 to 2 are ours; the prelude opens none before this line.
    surplus = [number for number in BEFORE if number > 2]
    if not surplus:
        raise Contained("0, 1, 2 and no other")
    return "inherited " + " ".join(
        "%d=%s" % (number, os.readlink("/proc/self/fd/%d" % number)) for number in surplus
    )


@attack
def climb_from_a_directory_left_open():
    # CVE-2024-21626
    for number in BEFORE:
        if not stat.S_ISDIR(os.fstat(number).st_mode):
            continue
        name = os.path.basename(GIVEN["secret"])
        with open(os.open(name, os.O_RDONLY, dir_fd=number), "rb") as stream:
            if GIVEN["word"].encode() in stream.read():
                return "read the secret from descriptor %d" % number
    raise Contained("no directory left open")


@attack
def start_in_the_callers_directory():
    with open(os.path.basename(GIVEN["secret"]), "rb") as stream:
        if GIVEN["word"].encode() in stream.read():
            return "the working directory is the caller's"
    raise Contained("another directory")


@attack
def read_the_callers_environment():
    for name, value in os.environ.items():
        if GIVEN["word"] in value:
            return "found it in " + name
    raise Contained("not in %d variables" % len(os.environ))


@attack
def read_an_ancestors_environment():
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as stream:
                if GIVEN["word"].encode() in stream.read():
                    return "found it in the environment of process " + name
        except OSError:
            continue
    raise Contained("in no environment that could be read")


@attack
def find_a_key_of_the_session():
    found = call("keyctl", 10, -3, b"user", b"kis-test-key", 0)
    return "found key %d" % found


@attack
def find_keys_in_proc():
    with open("/proc/keys") as stream:
        if "kis-test-key" in stream.read():
            return "listed"
    raise Contained("not listed")


@attack
def speak_to_the_callers_terminal():
    os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    return "opened /dev/tty"


@attack
def stay_in_the_callers_session():
    # Session 0 is one outside of the PID namespace.
    if os.getsid(0) == 0 or os.getsid(0) == GIVEN.get("session"):
        return "session %d" % os.getsid(0)
    raise Contained("session %d" % os.getsid(0))


@attack
def keep_ignored_signals():
    with open("/proc/self/status") as stream:
        fields = dict(line.split(":", 1) for line in stream if ":" in line)
    # Python itself ignores SIGPIPE and SIGXFSZ.
    own = (1 << (signal.SIGPIPE - 1)) | (1 << (signal.SIGXFSZ - 1))
    ignored = int(fields["SigIgn"], 16) & ~own
    if not ignored:
        raise Contained("none")
    return "ignored: %x" % ignored


@attack
def keep_blocked_signals():
    with open("/proc/self/status") as stream:
        fields = dict(line.split(":", 1) for line in stream if ":" in line)
    blocked = int(fields["SigBlk"], 16)
    if not blocked:
        raise Contained("none")
    return "blocked: %x" % blocked


@attack
def keep_the_callers_umask():
    before = os.umask(0o22)
    if before == 0:
        return "umask 0"
    raise Contained("umask %o" % before)


@attack
def keep_groups_of_the_caller():
    kept = [group for group in os.getgroups() if group in GIVEN["groups"]]
    if not kept:
        raise Contained("groups %r" % os.getgroups())
    return "still in %r" % kept


@attack
def keep_soft_core_limit():
    import resource

    # 1 byte, not 0: only that keeps a piped core_pattern from being run on the host.
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard in (0, 1):
        raise Contained("hard limit %d" % hard)
    return "hard limit %d" % hard


main()
