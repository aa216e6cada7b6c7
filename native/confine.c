#define _GNU_SOURCE
#include "confine.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "filters.h"
#include "report.h"
#include "sys.h"

void confine_limits(const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct plan_record *r = &plan->records[i];
        if (r->type != REC_RLIMIT)
            continue;
        struct rlimit limit = {r->rlimit.soft, r->rlimit.hard};
        if (setrlimit((int)r->rlimit.resource, &limit) < 0)
            fault(STEP_LIMITS, errno, i, "setrlimit");
    }
}

bool set_capabilities(uint64_t effective, uint64_t permitted, uint64_t inheritable)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    for (int half = 0; half < 2; half++) {
        data[half].effective = (uint32_t)(effective >> (32 * half));
        data[half].permitted = (uint32_t)(permitted >> (32 * half));
        data[half].inheritable = (uint32_t)(inheritable >> (32 * half));
    }
    return syscall(SYS_capset, &header, data) == 0;
}

/* Changes the inheritable set alone. */
static bool inherit(uint64_t mask)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &header, data) < 0)
        return false;
    data[0].inheritable = (uint32_t)mask;
    data[1].inheritable = (uint32_t)(mask >> 32);
    return syscall(SYS_capset, &header, data) == 0;
}

bool raise_ambient(uint64_t mask)
{
    for (unsigned long cap = 0; cap < 64; cap++)
        if (mask >> cap & 1 && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0) < 0)
            return false;
    return true;
}

/* The bounding set needs CAP_SETPCAP, which goes away right after: so it is dropped for all. */
static void drop_bounding(uint64_t keep)
{
    for (unsigned long cap = 0; cap < 64; cap++) {
        if (keep >> cap & 1)
            continue;
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0)
            continue;
        if (errno == EINVAL) /* past the last one this kernel has */
            return;
        fault(STEP_CAPABILITIES, errno, NONE, "bounding");
    }
}

static void become(uint32_t uid, uint32_t gid)
{
    if (uid == geteuid() && gid == getegid())
        return;
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 || setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0)
        fault(STEP_IDENTITY, errno, NONE, "ids");
}

void confine_identity(const struct plan *plan)
{
    uint64_t grantable = 0;
    uint32_t uid = geteuid(), gid = getegid();
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct plan_record *r = &plan->records[i];
        if (r->type == REC_CAPS)
            grantable = r->caps.mask;
        if (r->type == REC_AGENT) {
            uid = r->agent.uid;
            gid = r->agent.gid;
        }
    }
    uint64_t kept = grantable | (plan->mode & MODE_PRIVILEGED ? AGENT_CAPABILITIES : 0);
    const unsigned long securebits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED;
    /* Inheritable is bounded by the bounding set, so it is set first. NOROOT: uid 0 is a number. */
    if (!inherit(kept) || prctl(PR_SET_SECUREBITS, securebits, 0, 0, 0) < 0)
        fault(STEP_CAPABILITIES, errno, NONE, "securebits");
    drop_bounding(grantable);
    become(uid, gid);
    if (!set_capabilities(kept, kept, kept) || !raise_ambient(kept))
        fault(STEP_CAPABILITIES, errno, NONE, "capset");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        fault(STEP_CAPABILITIES, errno, NONE, "no_new_privs");
}

void confine_filters(const struct plan *plan)
{
    const struct sock_fprog payload = {kis_filter_payload_len,
                                       (struct sock_filter *)(uintptr_t)kis_filter_payload};
    for (uint32_t i = 0; i < plan->count; i++) {
        if (plan->records[i].type != REC_FILTER)
            continue;
        if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &payload) < 0)
            fault(STEP_SECCOMP, errno, i, "filter");
    }
}
