/*
 * What the filter answers, in two ways: by evaluating the program as the kernel does, for calls that must
 * never really be made, and by installing it in a child and calling the kernel.
 * The expectations are written out here, call by call; test_filters_rules.c has the same as rules, and
 * test_filters_reference.c derives them from the tables.
 */
#include "bpf.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define X32          0x40000000U
#define JUNK         0xdeadbeef00000000ULL /* what a caller may leave in the upper half of a 32-bit argument */
#define UNKNOWN_CALL 999

struct expectation {
    const char *says;
    int answer;
    uint32_t nr;
    uint64_t args[6];
};

#define EXPECT(answer, call, ...)                                                                            \
    {                                                                                                        \
#call "(" #__VA_ARGS__ ") -> " #answer, answer, SYS_##call,                                          \
        {                                                                                                    \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }

static const struct expectation expectations[] = {
    /* Set-id bits, wherever a mode is named; and the same modes without them. */
    EXPECT(EPERM, chmod, 0, 04755),
    EXPECT(EPERM, chmod, 0, 02755),
    EXPECT(EPERM, chmod, 0, 06000),
    EXPECT(EPERM, chmod, 0, JUNK | 04755),
    EXPECT(ALLOWED, chmod, 0, 0755),
    EXPECT(ALLOWED, chmod, 04000, 01777),
    EXPECT(ALLOWED, chmod, 0, JUNK | 0755),
    EXPECT(EPERM, fchmod, 3, 04755),
    EXPECT(EPERM, fchmod, 3, 02000),
    EXPECT(ALLOWED, fchmod, 04000, 0644),
    EXPECT(EPERM, fchmodat, 3, 0, 04755, 0),
    EXPECT(EPERM, fchmodat, 3, 0, 02755, 0),
    EXPECT(ALLOWED, fchmodat, 3, 0, 0755, 06000),
    EXPECT(ENOSYS, openat2),
    EXPECT(ENOSYS, openat2, 3, 0, 0, 24),
    EXPECT(EPERM, creat, 0, 04755),
    EXPECT(EPERM, creat, 0, 02755),
    EXPECT(ALLOWED, creat, 0, 0666),
    EXPECT(EPERM, mkdir, 0, 02755),
    EXPECT(EPERM, mkdir, 0, 04755),
    EXPECT(ALLOWED, mkdir, 0, 01777),
    EXPECT(EPERM, mkdirat, 3, 0, 02755),
    EXPECT(EPERM, mkdirat, 3, 0, 04755),
    EXPECT(ALLOWED, mkdirat, 3, 0, 0777),
    EXPECT(EPERM, mknod, 0, S_IFREG | 04755),
    EXPECT(EPERM, mknod, 0, S_IFIFO | 02755),
    EXPECT(ALLOWED, mknod, 0, S_IFIFO | 0600),
    EXPECT(EPERM, mknodat, 3, 0, S_IFREG | 04755),
    EXPECT(EPERM, mknodat, 3, 0, S_IFREG | 02755),
    EXPECT(ALLOWED, mknodat, 3, 0, S_IFIFO | 0600),
    EXPECT(EPERM, open, 0, O_CREAT | O_WRONLY, 04755),
    EXPECT(EPERM, open, 0, O_CREAT | O_WRONLY, 02755),
    EXPECT(EPERM, open, 0, O_TMPFILE | O_WRONLY, 04755),
    EXPECT(EPERM, open, 0, 020000000 | O_WRONLY, 02755),
    EXPECT(EPERM, open, 0, JUNK | O_CREAT, JUNK | 04755),
    EXPECT(ALLOWED, open, 0, O_CREAT | O_WRONLY, 0644),
    EXPECT(ALLOWED, open, 0, O_TMPFILE | O_WRONLY, 0600),
    EXPECT(ALLOWED, open, 0, O_RDONLY, 0xffffffff), /* no mode passed: whatever the register held */
    EXPECT(ALLOWED, open, 0, O_RDONLY | O_DIRECTORY, 06000),
    EXPECT(EPERM, openat, 3, 0, O_CREAT | O_WRONLY, 04755),
    EXPECT(EPERM, openat, 3, 0, O_CREAT | O_EXCL | O_RDWR, 02755),
    EXPECT(EPERM, openat, 3, 0, O_TMPFILE | O_RDWR, 04755),
    EXPECT(EPERM, openat, 3, 0, O_TMPFILE | O_RDWR, 02755),
    EXPECT(ALLOWED, openat, 3, 0, O_CREAT | O_WRONLY, 0644),
    EXPECT(ALLOWED, openat, 04000, O_CREAT, O_RDONLY, 06000),

    /* Namespaces: each flag alone, among others, and with junk above. */
    EXPECT(EPERM, clone, CLONE_NEWUSER | SIGCHLD),
    EXPECT(EPERM, clone, JUNK | CLONE_NEWUSER | SIGCHLD),
    EXPECT(EPERM, clone, CLONE_NEWNS | SIGCHLD),
    EXPECT(EPERM, clone, CLONE_NEWCGROUP | SIGCHLD),
    EXPECT(EPERM, clone, CLONE_NEWUTS | SIGCHLD),
    EXPECT(EPERM, clone, CLONE_NEWIPC | SIGCHLD),
    EXPECT(EPERM, clone, CLONE_NEWPID | SIGCHLD),
    EXPECT(EPERM, clone, CLONE_NEWNET | SIGCHLD),
    EXPECT(EPERM, clone, CLONE_NEWUSER | CLONE_NEWNET | CLONE_VM | SIGCHLD),
    EXPECT(ALLOWED, clone, SIGCHLD),
    EXPECT(ALLOWED, clone, CLONE_VM | CLONE_VFORK | SIGCHLD),
    EXPECT(ALLOWED, clone,
           CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS),
    EXPECT(ENOSYS, clone3),
    EXPECT(EPERM, unshare, CLONE_NEWUSER),
    EXPECT(EPERM, unshare, CLONE_NEWNS),
    EXPECT(EPERM, unshare, CLONE_NEWCGROUP),
    EXPECT(EPERM, unshare, CLONE_NEWUTS),
    EXPECT(EPERM, unshare, CLONE_NEWIPC),
    EXPECT(EPERM, unshare, CLONE_NEWPID),
    EXPECT(EPERM, unshare, CLONE_NEWNET),
    EXPECT(EPERM, unshare, CLONE_NEWTIME),
    EXPECT(EPERM, unshare, CLONE_NEWUSER | CLONE_FS),
    EXPECT(ALLOWED, unshare, CLONE_FS),
    EXPECT(ALLOWED, unshare, CLONE_FILES),
    EXPECT(EPERM, setns, 3, 0),

    /* Other processes, the agent first of all. */
    EXPECT(EPERM, ptrace, 16, 1),
    EXPECT(EPERM, process_vm_readv, 1),
    EXPECT(EPERM, process_vm_writev, 1),
    EXPECT(EPERM, pidfd_getfd, 3, 0),
    EXPECT(EPERM, kcmp, 1, 2),
    EXPECT(EPERM, process_madvise, 3),
    EXPECT(EPERM, process_mrelease, 3),
    EXPECT(EPERM, move_pages, 1),
    EXPECT(EPERM, migrate_pages, 1),
    EXPECT(EPERM, prlimit64, 1, RLIMIT_NOFILE),
    EXPECT(EPERM, prlimit64, JUNK | 1, RLIMIT_NOFILE),
    EXPECT(EPERM, prlimit64, 4711, RLIMIT_NOFILE),
    EXPECT(ALLOWED, prlimit64, 0, RLIMIT_NOFILE),
    EXPECT(EPERM, sched_setaffinity, 1),
    EXPECT(EPERM, sched_setaffinity, JUNK | 1),
    EXPECT(ALLOWED, sched_setaffinity, 0),
    EXPECT(ALLOWED, sched_setaffinity, 2),
    EXPECT(EPERM, sched_setscheduler, 1),
    EXPECT(ALLOWED, sched_setscheduler, 0),
    EXPECT(EPERM, sched_setparam, 1),
    EXPECT(ALLOWED, sched_setparam, 0),
    EXPECT(EPERM, sched_setattr, 1),
    EXPECT(ALLOWED, sched_setattr, 0),
    EXPECT(EPERM, setpriority, PRIO_PROCESS, 1, 19),
    EXPECT(EPERM, setpriority, PRIO_PGRP, JUNK | 1, 19),
    EXPECT(EPERM, setpriority, PRIO_USER, 0, 19),
    EXPECT(ALLOWED, setpriority, PRIO_PROCESS, 0, 19),
    EXPECT(ALLOWED, setpriority, PRIO_PGRP, 0, 19),
    EXPECT(EPERM, ioprio_set, 1, 1),
    EXPECT(EPERM, ioprio_set, 2, 1),
    EXPECT(EPERM, ioprio_set, 3, 1000),
    EXPECT(ALLOWED, ioprio_set, 1, 0),

    /* Sockets. */
    EXPECT(ALLOWED, socket, AF_UNIX, SOCK_STREAM, 0),
    EXPECT(ALLOWED, socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0),
    EXPECT(ALLOWED, socket, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0),
    EXPECT(ALLOWED, socket, AF_INET, SOCK_STREAM, IPPROTO_TCP),
    EXPECT(ALLOWED, socket, AF_INET, SOCK_DGRAM, IPPROTO_UDP),
    EXPECT(ALLOWED, socket, AF_INET, SOCK_DGRAM, IPPROTO_ICMP),
    EXPECT(ALLOWED, socket, AF_INET6, SOCK_DGRAM, IPPROTO_ICMPV6),
    EXPECT(ALLOWED, socket, JUNK | AF_INET6, JUNK | SOCK_STREAM, JUNK),
    EXPECT(ALLOWED, socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0),
    EXPECT(EPROTONOSUPPORT, socket, AF_NETLINK, SOCK_RAW, 12),
    EXPECT(EPROTONOSUPPORT, socket, AF_NETLINK, SOCK_RAW, 9),
    EXPECT(EPROTONOSUPPORT, socket, AF_INET, SOCK_STREAM, 132),  /* SCTP */
    EXPECT(EPROTONOSUPPORT, socket, AF_INET6, SOCK_STREAM, 262), /* MPTCP */
    EXPECT(EPROTONOSUPPORT, socket, AF_INET, 6, 33),             /* DCCP */
    EXPECT(ALLOWED, socket, AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE),
    EXPECT(EPROTONOSUPPORT, socket, AF_INET, SOCK_DGRAM, 115),    /* L2TP */
    EXPECT(ENOSYS, socket, AF_INET, SOCK_DGRAM, 255),
    EXPECT(EPERM, socket, AF_INET, SOCK_RAW, IPPROTO_ICMP),
    EXPECT(EPERM, socket, AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_TCP),
    EXPECT(EPERM, socket, AF_INET, JUNK | SOCK_RAW, IPPROTO_TCP),
    EXPECT(EPERM, socket, AF_INET6, SOCK_RAW, IPPROTO_ICMPV6),
    EXPECT(EPERM, socket, AF_INET, SOCK_PACKET, 0), /* AF_PACKET by its oldest name */
    EXPECT(EAFNOSUPPORT, socket, AF_PACKET, SOCK_RAW, 0),
    EXPECT(EAFNOSUPPORT, socket, AF_VSOCK, SOCK_STREAM, 0),
    EXPECT(EAFNOSUPPORT, socket, JUNK | AF_VSOCK, SOCK_STREAM, 0),
    EXPECT(EAFNOSUPPORT, socket, AF_ALG, SOCK_SEQPACKET, 0),
    EXPECT(ALLOWED, socketpair, AF_UNIX, SOCK_STREAM, 0),
    EXPECT(EAFNOSUPPORT, socketpair, AF_TIPC, SOCK_STREAM, 0),

    /* Terminals, leases, execution domains. */
    EXPECT(EPERM, ioctl, 0, TIOCSTI),
    EXPECT(EPERM, ioctl, 0, JUNK | TIOCSTI),
    EXPECT(EPERM, ioctl, 0, TIOCLINUX),
    EXPECT(EPERM, ioctl, 0, JUNK | TIOCLINUX),
    EXPECT(EPERM, ioctl, 0, TIOCCONS),
    EXPECT(EPERM, ioctl, 0, TIOCSETD),
    EXPECT(ALLOWED, ioctl, TIOCSTI, TCGETS),
    EXPECT(ALLOWED, ioctl, 0, TIOCGWINSZ),
    EXPECT(ALLOWED, ioctl, 0, FIONREAD),
    EXPECT(EPERM, fcntl, 3, F_SETLEASE),
    EXPECT(EPERM, fcntl, 3, JUNK | F_SETLEASE),
    EXPECT(ALLOWED, fcntl, 3, F_SETLK),
    EXPECT(ALLOWED, personality, 0xffffffff),
    EXPECT(ALLOWED, personality, 0),
    EXPECT(ALLOWED, personality, 8),
    EXPECT(ALLOWED, personality, 0x40000),
    EXPECT(EPERM, personality, 0x400000),
    EXPECT(EPERM, personality, 0x440008),
    EXPECT(EPERM, personality, JUNK | 0x400000),
    EXPECT(EPERM, personality, 0x100000),
    EXPECT(EPERM, personality, 0x200000),
    EXPECT(ENOSYS, personality, 0x20000),

    /* Refused whatever the arguments are. */
    EXPECT(EPERM, keyctl),
    EXPECT(EPERM, add_key),
    EXPECT(EPERM, request_key),
    EXPECT(EPERM, bpf),
    EXPECT(EPERM, perf_event_open),
    EXPECT(EPERM, userfaultfd),
    EXPECT(EPERM, io_uring_setup),
    EXPECT(EPERM, io_uring_enter),
    EXPECT(EPERM, io_uring_register),
    EXPECT(EPERM, mount),
    EXPECT(EPERM, umount2),
    EXPECT(EPERM, pivot_root),
    EXPECT(EPERM, fsopen),
    EXPECT(EPERM, fsconfig),
    EXPECT(EPERM, fsmount),
    EXPECT(EPERM, fspick),
    EXPECT(EPERM, move_mount),
    EXPECT(EPERM, open_tree),
    EXPECT(EPERM, mount_setattr),
    EXPECT(EPERM, init_module),
    EXPECT(EPERM, finit_module),
    EXPECT(EPERM, delete_module),
    EXPECT(EPERM, kexec_load),
    EXPECT(EPERM, kexec_file_load),
    EXPECT(EPERM, reboot),
    EXPECT(EPERM, swapon),
    EXPECT(EPERM, swapoff),
    EXPECT(EPERM, acct),
    EXPECT(EPERM, quotactl),
    EXPECT(EPERM, quotactl_fd),
    EXPECT(EPERM, settimeofday),
    EXPECT(EPERM, clock_settime),
    EXPECT(EPERM, clock_adjtime),
    EXPECT(EPERM, adjtimex),
    EXPECT(EPERM, syslog),
    EXPECT(EPERM, vhangup),
    EXPECT(EPERM, iopl),
    EXPECT(EPERM, ioperm),
    EXPECT(EPERM, modify_ldt),
    EXPECT(EPERM, uselib),
    EXPECT(EPERM, ustat),
    EXPECT(EPERM, sysfs),
    EXPECT(EPERM, lookup_dcookie),
    EXPECT(EPERM, nfsservctl),
    EXPECT(EPERM, name_to_handle_at),
    EXPECT(EPERM, open_by_handle_at),
    EXPECT(EPERM, fanotify_init),
    EXPECT(EPERM, fanotify_mark),
    EXPECT(EPERM, sethostname),
    EXPECT(EPERM, setdomainname),
    EXPECT(ENOSYS, io_setup),
    EXPECT(ENOSYS, memfd_secret),

    /* What an agent that forks, changes ids, drops and executes cannot do without. */
    EXPECT(ALLOWED, setgroups),
    EXPECT(ALLOWED, setresgid),
    EXPECT(ALLOWED, setresuid),
    EXPECT(ALLOWED, capset),
    EXPECT(ALLOWED, prctl),
    EXPECT(ALLOWED, seccomp),
    EXPECT(ALLOWED, execveat),
    EXPECT(ALLOWED, execve),
    EXPECT(ALLOWED, signalfd4),
    EXPECT(ALLOWED, ppoll),
    EXPECT(ALLOWED, sendmsg),
    EXPECT(ALLOWED, recvmsg),
    EXPECT(ALLOWED, wait4),
    EXPECT(ALLOWED, waitid),
    EXPECT(ALLOWED, kill),
    EXPECT(ALLOWED, pidfd_send_signal),
    EXPECT(ALLOWED, pidfd_open),
    EXPECT(ALLOWED, setsid),
    EXPECT(ALLOWED, setrlimit),
    EXPECT(ALLOWED, close_range),
    EXPECT(ALLOWED, dup3),
    EXPECT(ALLOWED, fchdir),
    EXPECT(ALLOWED, rt_sigreturn),
    EXPECT(ALLOWED, exit_group),
    EXPECT(ALLOWED, landlock_restrict_self),
    EXPECT(ALLOWED, rseq),
    EXPECT(ALLOWED, membarrier),
    EXPECT(ALLOWED, memfd_create),
    EXPECT(ALLOWED, chroot),
    EXPECT(ALLOWED, futex_waitv),
    EXPECT(ALLOWED, shmget),
    EXPECT(ALLOWED, mq_open),
};

/* Calls that this machine's headers may be too old to name. */
static const struct expectation by_number[] = {
    {"cachestat", ALLOWED, 451, {0}},
    {"fchmodat2", ENOSYS, 452, {0}},
    {"fchmodat2, set-id", ENOSYS, 452, {3, 0, 04755, 0}},
    {"map_shadow_stack", ALLOWED, 453, {0}},
    {"futex_wake", ALLOWED, 454, {0}},
    {"futex_wait", ALLOWED, 455, {0}},
    {"futex_requeue", ALLOWED, 456, {0}},
    {"statmount", ENOSYS, 457, {0}},
    {"listmount", ENOSYS, 458, {0}},
    {"lsm_set_self_attr", ENOSYS, 460, {0}},
    {"mseal", ALLOWED, 462, {0}},
    {"setxattrat", ENOSYS, 463, {0}},
    {"open_tree_attr", EPERM, 467, {0}},
    {"file_setattr", ENOSYS, 469, {0}},
    {"unknown", ENOSYS, UNKNOWN_CALL, {0}},
    {"minus one", ENOSYS, 0xffffffffU, {0}},
};

static bool meets(const struct expectation *e)
{
    int answer = verdict_on(e->nr, e->args);
    if (answer != e->answer)
        fprintf(stderr, "%s: got %d\n", e->says, answer);
    return answer == e->answer;
}

static void test_expectations(void)
{
    bool good = true;
    for (size_t i = 0; i < sizeof expectations / sizeof expectations[0]; i++)
        good &= meets(&expectations[i]);
    for (size_t i = 0; i < sizeof by_number / sizeof by_number[0]; i++)
        good &= meets(&by_number[i]);
    CHECK(good);
}

static void install(void)
{
    struct sock_fprog payload = {kis_filter_payload_len,
                                 (struct sock_filter *)(uintptr_t)kis_filter_payload};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &payload) == 0);
}

/* Runs `body` in a child under the filter; gives its wait status. */
static int confined(void (*body)(void))
{
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        install();
        body();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

/* The kernel itself, on calls that would do no harm if they went through. */
static void call_the_kernel(void)
{
#define REFUSED(error, ...) CHECK(syscall(__VA_ARGS__) == -1 && errno == (error))
    REFUSED(EPERM, SYS_keyctl, 0L, -3L, 0L);
    REFUSED(EPERM, SYS_ptrace, -1L, 0L, 0L, 0L);
    REFUSED(EPERM, SYS_bpf, -1L, 0L, 0L);
    REFUSED(EPERM, SYS_unshare, (long)CLONE_NEWUSER);
    REFUSED(EPERM, SYS_io_uring_setup, 0L, 0L);
    REFUSED(EPERM, SYS_prlimit64, 1L, (long)RLIMIT_NOFILE, 0L, 0L);
    REFUSED(EPERM, SYS_ioctl, -1L, (long)(JUNK | TIOCSTI), 0L);
    REFUSED(EPERM, SYS_chmod, "/nonexistent", 04755L);
    REFUSED(EPERM, SYS_fchmod, -1L, (long)(JUNK | 02755));
    REFUSED(EAFNOSUPPORT, SYS_socket, (long)AF_VSOCK, (long)SOCK_STREAM, 0L);
    REFUSED(EPERM, SYS_clone, (long)(JUNK | CLONE_NEWUSER | SIGCHLD), 0L, 0L, 0L, 0L);
    REFUSED(ENOSYS, SYS_clone3, 0L, 0L);
    REFUSED(ENOSYS, SYS_openat2, -1L, 0L, 0L, 0L);
    REFUSED(ENOSYS, (long)UNKNOWN_CALL, 0L);
    /* Allowed, so the kernel's own complaint comes through. */
    REFUSED(ENOENT, SYS_chmod, "/nonexistent", 0755L);
    REFUSED(EBADF, SYS_ioctl, -1L, (long)TIOCGWINSZ, 0L);
#undef REFUSED
}

static void *thread_body(void *argument)
{
    return argument;
}

/* Threads (clone3 falls back), processes, sockets, pipes, and a program of the host. */
static void do_ordinary_work(void)
{
    pthread_t thread;
    void *result = NULL;
    CHECK(pthread_create(&thread, NULL, thread_body, &result) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == &result);

    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(server >= 0 && listen(server, 1) == 0);
    CHECK(WEXITSTATUS(system("test \"$(printf 'b\\na\\n' | sort | head -n 1)\" = a")) == 0);
}

static void call_x32(void)
{
    syscall((long)(X32 | SYS_getpid));
}

static void call_32_bit_entry(void)
{
    long answer;
    __asm__ volatile("int $0x80" : "=a"(answer) : "a"(20L) : "memory", "r8", "r9", "r10", "r11");
}

static void test_in_the_kernel(void)
{
    CHECK(confined(call_the_kernel) == 0);
    CHECK(confined(do_ordinary_work) == 0);
    int status = confined(call_x32);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
    status = confined(call_32_bit_entry);
    /* SIGSEGV: a kernel without the 32-bit entry has no gate there. */
    CHECK(WIFSIGNALED(status) && (WTERMSIG(status) == SIGSYS || WTERMSIG(status) == SIGSEGV));
}

int main(void)
{
    test_expectations();
    test_in_the_kernel();
    return 0;
}
