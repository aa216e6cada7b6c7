/*
 * The calls that exist, are dangerous, and are answered EPERM at any argument.
 * EPERM rather than ENOSYS, because programs know it as "not in this container".
 * The kernel refuses many of them anyway without a capability; the filter takes the code
 * behind them out of reach, also for a payload that was granted capabilities.
 */
#include "table.h"

#include <errno.h>

#define DENY(call) {#call, EPERM, {{0}}}

static const struct rule rules[] = {
    /* Another process's memory, descriptors, state. The agent shares the payload's uid when kis is started
     * without privilege. ptrace: gdb, strace and LeakSanitizer do not work inside. */
    DENY(kcmp), DENY(pidfd_getfd), DENY(process_madvise), DENY(process_mrelease), DENY(process_vm_readv),
    DENY(process_vm_writev), DENY(ptrace), DENY(migrate_pages), DENY(move_pages),

    /* Namespaces and mounts, the old interface and the new. clone, unshare: guard.c. */
    DENY(setns), DENY(mount), DENY(umount2), DENY(pivot_root), DENY(fsopen), DENY(fsconfig), DENY(fsmount),
    DENY(fspick), DENY(move_mount), DENY(open_tree), DENY(open_tree_attr), DENY(mount_setattr),
    DENY(sethostname), DENY(setdomainname),

    /* File handles pass by every mount and root (CVE-2014-3519 and the "shocker" escape). fanotify
     * watches, and can hold up, whole file systems. */
    DENY(name_to_handle_at), DENY(open_by_handle_at), DENY(fanotify_init), DENY(fanotify_mark),

    /* Keyrings are per user, not per namespace. */
    DENY(add_key), DENY(keyctl), DENY(request_key),

    /* Kernel programming interfaces with the longest lists of escalations. */
    DENY(bpf), DENY(perf_event_open), DENY(userfaultfd), DENY(io_uring_enter), DENY(io_uring_register),
    DENY(io_uring_setup), /* also runs opens past this very filter */

    /* The machine. */
    DENY(init_module), DENY(finit_module), DENY(delete_module), DENY(kexec_load), DENY(kexec_file_load),
    DENY(reboot), DENY(swapon), DENY(swapoff), DENY(acct), DENY(quotactl), DENY(quotactl_fd),
    DENY(syslog), /* the host's kernel log */
    DENY(vhangup), /* the terminal of whoever started kis */
    DENY(iopl), DENY(ioperm),
    DENY(modify_ldt), /* CVE-2017-17053; only 16-bit code wants it */

    /* The clock is the host's. Reading by adjtimex goes too: what it does is said in memory. */
    DENY(settimeofday), DENY(clock_settime), DENY(clock_adjtime), DENY(adjtimex),

    /* Long dead; nothing needs them. */
    DENY(uselib), DENY(ustat), DENY(sysfs), DENY(lookup_dcookie), DENY(nfsservctl),
};

const struct table deny_table = {rules, sizeof rules / sizeof rules[0]};
