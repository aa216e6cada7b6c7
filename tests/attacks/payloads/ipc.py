# Family: shared memory and its kin. GIVEN names what the host made: `key` (System V segment, queue
# and semaphore of mode 0666), `posix` (a name in /dev/shm), `queue` (a POSIX message queue).

IPC_STAT = 2


def checked(result):
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


@attack
def find_segment_of_host():
    checked(libc.shmget(GIVEN["key"], 0, 0))
    return "found by its key"


@attack
def find_queue_of_host():
    checked(libc.msgget(GIVEN["key"], 0))
    return "found by its key"


@attack
def find_semaphore_of_host():
    checked(libc.semget(GIVEN["key"], 0, 0))
    return "found by its key"


@attack
def list_segments_of_host():
    with open("/proc/sysvipc/shm") as stream:
        for line in stream:
            if line.split()[0] == str(GIVEN["key"]):
                return "listed"
    raise Contained("not listed")


@attack
def open_shared_memory_of_host():
    with open("/dev/shm/" + GIVEN["posix"], "rb") as stream:
        return "read %r" % stream.read(16)


@attack
def open_message_queue_of_host():
    library = ctypes.CDLL("librt.so.1", use_errno=True)
    checked(library.mq_open(b"/" + GIVEN["queue"].encode(), os.O_RDONLY))
    return "opened"


main()
