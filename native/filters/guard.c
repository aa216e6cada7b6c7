/*
 * The guard: argument values that are refused of calls that allow.c allows.
 * They stand before the rules of allow.c, in this order: the first one that holds gives the errno.
 * Rules that begin with the same condition stand together, so that it is compared once.
 */
#include "table.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/in.h>
#include <linux/sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define REFUSE(call, error, ...) {#call, error, {__VA_ARGS__}}

/*
 * Set-id bits. In a rw mount whose files belong to root on the host, even a payload without any
 * capability could leave a setuid-root file for the host's users, nosuid or not. The modes of
 * fchmodat2 and openat2 are not seen here: allow.c leaves both out.
 */
#define NO_SET_ID(call, arg) REFUSE(call, EPERM, ANY_BIT(arg, S_ISUID | S_ISGID))

/* The kernel takes open's mode only when the call can make a file: with O_CREAT or the upper bit of
 * O_TMPFILE. */
#define TMPFILE_BIT 020000000U
#define NO_SET_ID_WHEN_MADE(call, flags, mode) \
    REFUSE(call, EPERM, ANY_BIT(flags, O_CREAT | TMPFILE_BIT), ANY_BIT(mode, S_ISUID | S_ISGID))

/* A new user namespace hands out every capability inside it, and with them the kernel code that expects
 * root. */
#define NAMESPACES \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | \
     CLONE_NEWNET)

/* Pid 1 is the agent, under the payload's own uid when kis is started without privilege. */
#define NOT_ON_AGENT(call, arg) REFUSE(call, EPERM, EQUAL(arg, 1))

/* Raw and packet sockets read other programs' traffic; netlink's own SOCK_RAW is something else and stays. Of the
 * protocols that allow.c leaves out, those that programs ask for get the answer they can deal with. */
#define ORDINARY_INTERNET(family) \
    REFUSE(socket, EPROTONOSUPPORT, EQUAL(0, family), EQUAL(2, IPPROTO_DCCP)), \
    REFUSE(socket, EPROTONOSUPPORT, EQUAL(0, family), EQUAL(2, IPPROTO_L2TP)), \
    REFUSE(socket, EPROTONOSUPPORT, EQUAL(0, family), EQUAL(2, IPPROTO_SCTP)), \
    REFUSE(socket, EPROTONOSUPPORT, EQUAL(0, family), EQUAL(2, IPPROTO_MPTCP)), /* Go's listeners try it first */ \
    REFUSE(socket, EPERM, EQUAL(0, family), BITS(1, 0xfU, SOCK_RAW)), \
    REFUSE(socket, EPERM, EQUAL(0, family), BITS(1, 0xfU, SOCK_PACKET))

static const struct rule rules[] = {
    NO_SET_ID(chmod, 1), NO_SET_ID(fchmod, 1), NO_SET_ID(fchmodat, 2), NO_SET_ID(creat, 1),
    NO_SET_ID(mkdir, 1), NO_SET_ID(mkdirat, 2), NO_SET_ID(mknod, 1), NO_SET_ID(mknodat, 2),
    NO_SET_ID_WHEN_MADE(open, 1, 2), NO_SET_ID_WHEN_MADE(openat, 2, 3),

    REFUSE(clone, EPERM, ANY_BIT(0, NAMESPACES)),
    /* In clone this bit belongs to the exit signal. */
    REFUSE(unshare, EPERM, ANY_BIT(0, NAMESPACES | CLONE_NEWTIME)),

    /* Limits of another process: a payload could starve pid 1 of descriptors. Only 0, oneself, is let
     * through. */
    REFUSE(prlimit64, EPERM, NOT_EQUAL(0, 0)),

    NOT_ON_AGENT(sched_setaffinity, 0), NOT_ON_AGENT(sched_setattr, 0), NOT_ON_AGENT(sched_setparam, 0),
    NOT_ON_AGENT(sched_setscheduler, 0),
    NOT_ON_AGENT(setpriority, 1), REFUSE(setpriority, EPERM, EQUAL(0, PRIO_USER)),
    NOT_ON_AGENT(ioprio_set, 1), REFUSE(ioprio_set, EPERM, EQUAL(0, 3)), /* 3: IOPRIO_WHO_USER */

    /* Families: the complement of those in allow.c (1, 2, 10, 16), in blocks. allow.c refuses them
     * already, with an ENOSYS that programs do not expect of socket(2). */
    REFUSE(socket, EAFNOSUPPORT, EQUAL(0, AF_UNSPEC)), REFUSE(socket, EAFNOSUPPORT, EQUAL(0, 3)),
    REFUSE(socket, EAFNOSUPPORT, BITS(0, 0xfffffffcU, 4)), /* 4 to 7 */
    REFUSE(socket, EAFNOSUPPORT, BITS(0, 0xfffffffeU, 8)), /* 8 and 9 */
    REFUSE(socket, EAFNOSUPPORT, EQUAL(0, 11)),
    REFUSE(socket, EAFNOSUPPORT, BITS(0, 0xfffffffcU, 12)), /* 12 to 15 */
    REFUSE(socket, EAFNOSUPPORT, ABOVE(0, AF_NETLINK)),
    REFUSE(socketpair, EAFNOSUPPORT, NOT_EQUAL(0, AF_UNIX)),
    REFUSE(socket, EPROTONOSUPPORT, EQUAL(0, AF_NETLINK), NOT_EQUAL(2, 0)),
    ORDINARY_INTERNET(AF_INET), ORDINARY_INTERNET(AF_INET6),

    /* Typing into the terminal of whoever started us (CVE-2017-5226, CVE-2023-28100), taking the console's
     * output, and line disciplines, which load old and often broken drivers (CVE-2017-2636,
     * CVE-2023-6546). */
    REFUSE(ioctl, EPERM, EQUAL(1, TIOCSTI)), REFUSE(ioctl, EPERM, EQUAL(1, TIOCLINUX)),
    REFUSE(ioctl, EPERM, EQUAL(1, TIOCCONS)), REFUSE(ioctl, EPERM, EQUAL(1, TIOCSETD)),

    /* A lease on a file that the payload's uid owns holds up whoever opens it on the host, for
     * /proc/sys/fs/lease-break-time (45 s), through a read-only mount too. */
    REFUSE(fcntl, EPERM, EQUAL(1, F_SETLEASE)),

    /* Executable data, a mapped page zero, the old layout. Bit 31 is looked at so that the query,
     * 0xffffffff, passes. Other unlisted values are refused by allow.c. */
    REFUSE(personality, EPERM, BITS(0, 0x80400000U, 0x400000U)), /* READ_IMPLIES_EXEC */
    REFUSE(personality, EPERM, BITS(0, 0x80100000U, 0x100000U)), /* MMAP_PAGE_ZERO */
    REFUSE(personality, EPERM, BITS(0, 0x80200000U, 0x200000U)), /* ADDR_COMPAT_LAYOUT */
};

const struct table guard_table = {rules, sizeof rules / sizeof rules[0]};
