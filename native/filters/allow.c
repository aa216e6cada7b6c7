/*
 * The allow-list: every call that a payload, or the agent that starts it, may make.
 * What stands neither here nor in deny.c gets ENOSYS, as on a kernel that lacks it,
 * so that programs fall back (CVE-2021-41133: a deny-list forgot the new mount calls).
 * Old names that an architecture lacks (open, chmod, ... on aarch64) are skipped there.
 */
#include "table.h"

#include <netinet/in.h>
#include <sys/socket.h>

#define ALLOW(call)         {#call, 0, {{0}}}
#define ALLOW_IF(call, ...) {#call, 0, {__VA_ARGS__}}

/* The internet protocols of everyday programs: IP's default, ICMP (ping as SOCK_DGRAM), TCP, UDP, ICMPv6, and
 * UDP-Lite, which is part of the kernel proper and exercised by CPython's own tests. Asking for any other (SCTP,
 * DCCP, L2TP, ...) loads its kernel module (CVE-2017-6074, CVE-2021-23133). */
#define ALLOW_PROTOCOL(family, protocol) ALLOW_IF(socket, EQUAL(0, family), EQUAL(2, protocol))
#define ALLOW_INTERNET(family) \
    ALLOW_PROTOCOL(family, IPPROTO_IP), ALLOW_PROTOCOL(family, IPPROTO_ICMP), \
    ALLOW_PROTOCOL(family, IPPROTO_TCP), ALLOW_PROTOCOL(family, IPPROTO_UDP), \
    ALLOW_PROTOCOL(family, IPPROTO_ICMPV6), ALLOW_PROTOCOL(family, IPPROTO_UDPLITE)

static const struct rule rules[] = {
    /* Files and directories. openat2 is missing because its mode lies in memory, where a filter cannot see
     * set-id bits (guard.c); fchmodat2 because older kernels lack it too, so that every program falls
     * back. */
    ALLOW(access), ALLOW(chdir), ALLOW(chmod), ALLOW(chown), ALLOW(chroot), /* the kernel wants SYS_CHROOT */
    ALLOW(close), ALLOW(close_range), ALLOW(copy_file_range), ALLOW(creat), ALLOW(dup), ALLOW(dup2),
    ALLOW(dup3), ALLOW(faccessat), ALLOW(faccessat2), ALLOW(fadvise64), ALLOW(fallocate), ALLOW(fchdir),
    ALLOW(fchmod), ALLOW(fchmodat), ALLOW(fchown), ALLOW(fchownat), ALLOW(fcntl), ALLOW(fdatasync),
    ALLOW(flock), ALLOW(fstat), ALLOW(fstatfs), ALLOW(fsync), ALLOW(ftruncate), ALLOW(futimesat),
    ALLOW(getcwd), ALLOW(getdents), ALLOW(getdents64), ALLOW(ioctl), ALLOW(lchown), ALLOW(link),
    ALLOW(linkat), ALLOW(lseek), ALLOW(lstat), ALLOW(mkdir), ALLOW(mkdirat), ALLOW(mknod),
    ALLOW(mknodat), /* fifos; devices want MKNOD, which is never granted */
    ALLOW(newfstatat), ALLOW(open), ALLOW(openat), ALLOW(pread64), ALLOW(preadv), ALLOW(preadv2),
    ALLOW(pwrite64), ALLOW(pwritev), ALLOW(pwritev2), ALLOW(read), ALLOW(readahead), ALLOW(readlink),
    ALLOW(readlinkat), ALLOW(readv), ALLOW(rename), ALLOW(renameat), ALLOW(renameat2), ALLOW(rmdir),
    ALLOW(sendfile), ALLOW(splice), ALLOW(stat), ALLOW(statfs), ALLOW(statx), ALLOW(symlink),
    ALLOW(symlinkat), ALLOW(sync), ALLOW(sync_file_range), ALLOW(syncfs), ALLOW(tee), ALLOW(truncate),
    ALLOW(umask), ALLOW(unlink), ALLOW(unlinkat), ALLOW(utime), ALLOW(utimensat), ALLOW(utimes),
    ALLOW(vmsplice), ALLOW(write), ALLOW(writev),

    /* Extended attributes: user.* and ACLs. File capabilities want SETFCAP, which is never granted. */
    ALLOW(fgetxattr), ALLOW(flistxattr), ALLOW(fremovexattr), ALLOW(fsetxattr), ALLOW(getxattr),
    ALLOW(lgetxattr), ALLOW(listxattr), ALLOW(llistxattr), ALLOW(lremovexattr), ALLOW(lsetxattr),
    ALLOW(removexattr), ALLOW(setxattr),

    /* Waiting for things. inotify: `tail -f`, file watchers of node tools. */
    ALLOW(epoll_create), ALLOW(epoll_create1), ALLOW(epoll_ctl), ALLOW(epoll_pwait), ALLOW(epoll_pwait2),
    ALLOW(epoll_wait), ALLOW(eventfd), ALLOW(eventfd2), ALLOW(inotify_add_watch), ALLOW(inotify_init),
    ALLOW(inotify_init1), ALLOW(inotify_rm_watch), ALLOW(pipe), ALLOW(pipe2), ALLOW(poll), ALLOW(ppoll),
    ALLOW(pselect6), ALLOW(select), ALLOW(signalfd), ALLOW(signalfd4), ALLOW(timerfd_create),
    ALLOW(timerfd_gettime), ALLOW(timerfd_settime),

    /* Memory. The mempolicy calls act on the caller alone (JVM, numactl); move_pages and migrate_pages are
     * in deny.c. memfd_secret is missing: memory that the host can neither move nor inspect. */
    ALLOW(brk), ALLOW(cachestat), ALLOW(get_mempolicy), ALLOW(madvise), ALLOW(map_shadow_stack), ALLOW(mbind),
    ALLOW(membarrier), ALLOW(memfd_create), ALLOW(mincore), ALLOW(mlock), ALLOW(mlock2), ALLOW(mlockall),
    ALLOW(mmap), ALLOW(mprotect), ALLOW(mremap), ALLOW(mseal), ALLOW(msync), ALLOW(munlock),
    ALLOW(munlockall), ALLOW(munmap), ALLOW(pkey_alloc), ALLOW(pkey_free), ALLOW(pkey_mprotect),
    ALLOW(remap_file_pages), ALLOW(set_mempolicy), ALLOW(set_mempolicy_home_node),

    /* Processes and threads. clone3 is missing: its flags lie in memory, where a filter cannot see
     * CLONE_NEWUSER; glibc and musl fall back to clone. */
    ALLOW(arch_prctl), /* x86: thread pointer, set by every libc at start */
    ALLOW(clone), ALLOW(execve), ALLOW(execveat), ALLOW(exit), ALLOW(exit_group), ALLOW(fork), ALLOW(getcpu),
    ALLOW(getpgid), ALLOW(getpgrp), ALLOW(getpid), ALLOW(getppid), ALLOW(getpriority), ALLOW(getrlimit),
    ALLOW(getrusage), ALLOW(getsid), ALLOW(gettid), ALLOW(ioprio_get), ALLOW(ioprio_set), ALLOW(pidfd_open),
    ALLOW(prctl), ALLOW(prlimit64), ALLOW(rseq), ALLOW(sched_get_priority_max), ALLOW(sched_get_priority_min),
    ALLOW(sched_getaffinity), ALLOW(sched_getattr), ALLOW(sched_getparam), ALLOW(sched_getscheduler),
    ALLOW(sched_rr_get_interval), ALLOW(sched_setaffinity), ALLOW(sched_setattr), ALLOW(sched_setparam),
    ALLOW(sched_setscheduler), ALLOW(sched_yield), ALLOW(setpgid), ALLOW(setpriority), ALLOW(setrlimit),
    ALLOW(setsid), ALLOW(set_tid_address), ALLOW(sysinfo), ALLOW(times), ALLOW(uname),
    ALLOW(unshare), /* CLONE_FS and CLONE_FILES; namespaces are refused in guard.c */
    ALLOW(vfork), ALLOW(wait4), ALLOW(waitid),

    /* Who one is. The agent needs these to become the command's user; a payload without SETUID gets EPERM
     * from the kernel. */
    ALLOW(capget), ALLOW(capset), ALLOW(getegid), ALLOW(geteuid), ALLOW(getgid), ALLOW(getgroups),
    ALLOW(getresgid), ALLOW(getresuid), ALLOW(getuid), ALLOW(setfsgid), ALLOW(setfsuid), ALLOW(setgid),
    ALLOW(setgroups), ALLOW(setregid), ALLOW(setresgid), ALLOW(setresuid), ALLOW(setreuid), ALLOW(setuid),

    /* Confining oneself further. Browsers and package builders nest their own sandbox; a filter put on top
     * can only take away, because the strictest answer of all filters wins (seccomp(2)). */
    ALLOW(landlock_add_rule), ALLOW(landlock_create_ruleset), ALLOW(landlock_restrict_self), ALLOW(seccomp),

    /* Signals. */
    ALLOW(kill), ALLOW(pause), ALLOW(pidfd_send_signal), ALLOW(restart_syscall), ALLOW(rt_sigaction),
    ALLOW(rt_sigpending), ALLOW(rt_sigprocmask), ALLOW(rt_sigqueueinfo), ALLOW(rt_sigreturn),
    ALLOW(rt_sigsuspend), ALLOW(rt_sigtimedwait), ALLOW(rt_tgsigqueueinfo), ALLOW(sigaltstack), ALLOW(tgkill),
    ALLOW(tkill),

    /* Locks of the C library. The three futex calls of Linux 6.7 are what futex(2) did before. */
    ALLOW(futex), ALLOW(futex_requeue), ALLOW(futex_wait), ALLOW(futex_waitv), ALLOW(futex_wake),
    ALLOW(get_robust_list), ALLOW(set_robust_list),

    /* Time, read only. */
    ALLOW(alarm), ALLOW(clock_getres), ALLOW(clock_gettime), ALLOW(clock_nanosleep), ALLOW(getitimer),
    ALLOW(gettimeofday), ALLOW(nanosleep), ALLOW(setitimer), ALLOW(time), ALLOW(timer_create),
    ALLOW(timer_delete), ALLOW(timer_getoverrun), ALLOW(timer_gettime), ALLOW(timer_settime),

    /* System V and POSIX IPC: postgres, multiprocessing. The sandbox has an IPC namespace of its own. */
    ALLOW(mq_getsetattr), ALLOW(mq_notify), ALLOW(mq_open), ALLOW(mq_timedreceive), ALLOW(mq_timedsend),
    ALLOW(mq_unlink), ALLOW(msgctl), ALLOW(msgget), ALLOW(msgrcv), ALLOW(msgsnd), ALLOW(semctl),
    ALLOW(semget), ALLOW(semop), ALLOW(semtimedop), ALLOW(shmat), ALLOW(shmctl), ALLOW(shmdt), ALLOW(shmget),

    /* Sockets. Only these families: no network namespace holds AF_VSOCK, and the exotic ones load kernel
     * modules. */
    ALLOW_IF(socket, EQUAL(0, AF_UNIX)), ALLOW_INTERNET(AF_INET), ALLOW_INTERNET(AF_INET6),
    /* Addresses and interfaces: getifaddrs, getaddrinfo's AI_ADDRCONFIG. No other netlink protocol
     * (netfilter, audit, crypto, ...) is of use here. */
    ALLOW_IF(socket, EQUAL(0, AF_NETLINK), EQUAL(2, 0)), ALLOW_IF(socketpair, EQUAL(0, AF_UNIX)),
    ALLOW(accept), ALLOW(accept4), ALLOW(bind), ALLOW(connect), ALLOW(getpeername), ALLOW(getsockname),
    ALLOW(getsockopt), ALLOW(listen), ALLOW(recvfrom), ALLOW(recvmmsg), ALLOW(recvmsg), ALLOW(sendmmsg),
    ALLOW(sendmsg), ALLOW(sendto), ALLOW(setsockopt), ALLOW(shutdown),

    /* Execution domain: read it, set the default, ask for `uname` as on a 32-bit machine (builds under
     * linux32), and switch address randomisation off (debuggers, SBCL). Never READ_IMPLIES_EXEC or
     * MMAP_PAGE_ZERO. */
    ALLOW_IF(personality, EQUAL(0, 0xffffffffU)), ALLOW_IF(personality, EQUAL(0, 0)),
    ALLOW_IF(personality, EQUAL(0, 0x8U)), ALLOW_IF(personality, EQUAL(0, 0x40000U)),
    ALLOW_IF(personality, EQUAL(0, 0x40008U)),

    /* Randomness. */
    ALLOW(getrandom),

    /* Not here, so ENOSYS: io_setup and its kin draw on fs.aio-max-nr, one pool for the whole host, and
     * databases fall back; statmount and listmount, lsm_*, *xattrat, file_*attr: nothing needs them yet. */
};

const struct table allow_table = {rules, sizeof rules / sizeof rules[0]};
