/*
 * Numbers of system calls: libseccomp's, and those younger than the oldest libseccomp we build with (2.5.4).
 * Knows no policy. Asked by answer.c, for the architecture that the build runs on.
 */
#include "numbers.h"

#include <seccomp.h>
#include <string.h>

/* Since Linux 5.1 a new call has the same number on every architecture (except alpha), so one list serves
 * all; scripts/syscall.tbl in the kernel source is the origin. */

static const struct {
    const char *name;
    int number;
} young[] = {
    {"cachestat", 451}, {"map_shadow_stack", 453},
    {"futex_wake", 454}, {"futex_wait", 455}, {"futex_requeue", 456},
    {"mseal", 462}, {"open_tree_attr", 467},
};

int call_number(const char *name)
{
    int number = seccomp_syscall_resolve_name(name);

    if (number >= 0)
        return number;
    /* A number below that is one of its own making, for calls of other architectures. */
    if (number != __NR_SCMP_ERROR)
        return CALL_ABSENT;
    for (size_t i = 0; i < sizeof young / sizeof young[0]; i++)
        if (strcmp(young[i].name, name) == 0)
            return young[i].number;
    return CALL_UNHEARD_OF;
}
