#define _GNU_SOURCE
#include "launch.h"

#include <errno.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "agent.h"
#include "confine.h"
#include "report.h"
#include "sys.h"
#include "tree.h"

/* Above any descriptor that a fixed place below needs. */
#define DESCRIPTOR_FLOOR 16

/* Arguments before the sources: plan, control, program, engine, lease. */
#define LAUNCH_FIXED 5

/* What pid 1 keeps of what the engine passed. The lease is whatever must not be given to another
 * sandbox while this one lives: the locked file of its id range. */
struct passed {
    int control, program, engine, lease;
};

static struct plan plan;
static uint8_t *plan_blob;
static size_t plan_length;
static struct sources sources;

static int descriptor(const char *text)
{
    char *end;
    errno = 0;
    long n = text ? strtol(text, &end, 10) : -1;
    if (!text || *text < '0' || *text > '9' || *end || errno || n > 1 << 20 || fcntl((int)n, F_GETFD) < 0)
        fault(STEP_DESCRIPTORS, EBADF, NONE, "argument");
    return (int)n;
}

static int ascending(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Whatever the caller's process left open ends here (CVE-2024-21626 was one directory). */
static void close_others(const int *kept, int count)
{
    int sorted[SOURCES_MAX + LAUNCH_FIXED];
    memcpy(sorted, kept, (size_t)count * sizeof *kept);
    qsort(sorted, (size_t)count, sizeof *sorted, ascending);
    int next = 3;
    for (int i = 0; i < count; i++) {
        if (sorted[i] > next && sys_close_range((unsigned)next, (unsigned)sorted[i] - 1) < 0)
            fault(STEP_DESCRIPTORS, errno, NONE, "close_range");
        if (sorted[i] >= next)
            next = sorted[i] + 1;
    }
    if (sys_close_range((unsigned)next, ~0u) < 0)
        fault(STEP_DESCRIPTORS, errno, NONE, "close_range");
}

/* Python ignores SIGPIPE, a shell may ignore others, `setarch -R` switches address randomisation
 * off: nothing of it comes through an exec of ours. */
static void reset_inherited(void)
{
    if (personality(0) < 0)
        fault(STEP_IDENTITY, errno, NONE, "personality");
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    /* By the kernel's own call: the C library will not touch 32 and 33, which glibc's posix_spawn
     * leaves ignored. All zero is SIG_DFL with no flags, no mask. */
    const unsigned long standard[4] = {0};
    for (long n = 1; n < 65; n++)
        syscall(SYS_rt_sigaction, n, standard, NULL, 8L);
}

static void read_plan(int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || st.st_size <= 0 || st.st_size > (off_t)PLAN_BYTES_MAX)
        fault(STEP_PLAN, EINVAL, NONE, "size");
    const int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
    if ((fcntl(fd, F_GET_SEALS) & seals) != seals)
        fault(STEP_PLAN, EINVAL, NONE, "not sealed");
    plan_length = (size_t)st.st_size;
    plan_blob = mmap(NULL, plan_length, PROT_READ, MAP_PRIVATE, fd, 0);
    if (plan_blob == MAP_FAILED)
        fault(STEP_PLAN, errno, NONE, "mmap");
    uint32_t at;
    if (!plan_parse(plan_blob, plan_length, &plan, &at))
        fault(STEP_PLAN, EINVAL, at, "malformed");
    for (uint32_t i = 0; i < plan.count; i++) {
        uint32_t source = plan_source(&plan.records[i]);
        if (source != NONE && source >= (uint32_t)sources.count)
            fault(STEP_PLAN, EINVAL, i, "no such source");
        sources.trees[i] = -1;
    }
}

static void write_map(int process, const char *name, const char *text)
{
    int fd = openat(process, name, O_WRONLY | O_CLOEXEC);
    ssize_t length = (ssize_t)strlen(text);
    if (fd < 0 || write(fd, text, (size_t)length) != length)
        fault(STEP_NAMESPACES, errno, NONE, name);
    close(fd);
}

/* user_namespaces(7): one write, all lines; without privilege one line, and setgroups denied first. */
static void write_maps(int process)
{
    char uid_map[512] = "", gid_map[512] = "";
    for (uint32_t i = 0; i < plan.count; i++) {
        const struct plan_record *r = &plan.records[i];
        if (r->type != REC_UID_MAP && r->type != REC_GID_MAP)
            continue;
        char *text = r->type == REC_UID_MAP ? uid_map : gid_map;
        size_t used = strlen(text);
        int n = snprintf(text + used, 512 - used, "%u %u %u\n", r->map.inside, r->map.outside, r->map.count);
        if (n < 0 || (size_t)n >= 512 - used)
            fault(STEP_PLAN, E2BIG, i, "map");
    }
    if (!(plan.mode & MODE_PRIVILEGED))
        write_map(process, "setgroups", "deny");
    write_map(process, "gid_map", gid_map);
    write_map(process, "uid_map", uid_map);
}

/* clone(2) as fork does it, with a stack of its own by copying. Not clone3: filters that cannot see
 * its flags answer it with ENOSYS, an outer container's among them. */
static pid_t clone_process(unsigned flags)
{
    return (pid_t)syscall(SYS_clone, (unsigned long)flags | SIGCHLD, 0UL, 0UL, 0UL, 0UL);
}

static int open_process(pid_t pid)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d", pid);
    int process = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (process < 0)
        fault(STEP_NAMESPACES, errno, NONE, "/proc");
    return process;
}

static int open_user_namespace(int process)
{
    int ns = openat(process, "ns/user", O_RDONLY | O_CLOEXEC);
    if (ns < 0)
        fault(STEP_IDMAP, errno, NONE, "namespace");
    return ns;
}

/* A user namespace that exists only to carry the map of one IDMAP record. */
static int idmap_namespace(const struct plan_record *r, uint32_t record)
{
    int gate[2];
    if (pipe2(gate, O_CLOEXEC) < 0)
        fault(STEP_IDMAP, errno, record, "pipe");
    pid_t pid = clone_process(CLONE_NEWUSER);
    if (pid < 0)
        fault(STEP_IDMAP, errno, record, "clone");
    if (pid == 0) {
        char byte;
        close(gate[1]);
        _exit(read(gate[0], &byte, 1) != 0);
    }
    close(gate[0]);
    char maps[2][1024] = {"", ""};
    for (uint32_t i = 0; i < r->idmap.count; i++) {
        struct idmap_entry e = plan_idmap_entry(r, i);
        size_t used = strlen(maps[e.kind]);
        snprintf(maps[e.kind] + used, sizeof maps[0] - used, "%u %u %u\n", e.on_disk, e.outside, e.count);
    }
    int process = open_process(pid);
    write_map(process, "gid_map", maps[1]);
    write_map(process, "uid_map", maps[0]);
    int ns = open_user_namespace(process);
    close(process);
    close(gate[1]);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return ns;
}

/* Flags and id maps of the cloned trees, as the host's root: inside it would be EPERM. */
static void map_sources(int own_namespace)
{
    int namespaces[64];
    for (int i = 0; i < 64; i++)
        namespaces[i] = -1;
    namespaces[0] = own_namespace;
    for (uint32_t i = 0; i < plan.count; i++) {
        const struct plan_record *r = &plan.records[i];
        if (r->type == REC_IDMAP) {
            if (r->idmap.index >= 64 || namespaces[r->idmap.index] >= 0)
                fault(STEP_PLAN, EINVAL, i, "idmap index");
            namespaces[r->idmap.index] = idmap_namespace(r, i);
        }
        if (sources.trees[i] < 0)
            continue;
        uint32_t map = plan_idmap(r);
        if (map != NONE && (map >= 64 || namespaces[map] < 0))
            fault(STEP_PLAN, EINVAL, i, "no such idmap");
        uint32_t attributes = r->type == REC_BIND ? r->bind.attributes : BIND_RDONLY | BIND_NOSUID | BIND_NODEV;
        if (tree_set_attributes(sources.trees[i], attributes, map == NONE ? -1 : namespaces[map]) < 0)
            fault(map == NONE ? STEP_MOUNT : STEP_IDMAP, errno, i, "mount_setattr");
    }
    for (int i = 1; i < 64; i++)
        if (namespaces[i] >= 0)
            close(namespaces[i]);
}

static void loopback_up(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) < 0)
        fault(STEP_NETWORK, errno, NONE, "lo");
    close(fd);
}

static void set_hostname(void)
{
    for (uint32_t i = 0; i < plan.count; i++) {
        const struct plan_record *r = &plan.records[i];
        if (r->type == REC_HOSTNAME && sethostname((const char *)r->hostname.name.data, r->hostname.name.length) < 0)
            fault(STEP_NAMESPACES, errno, i, "sethostname");
    }
}

/* An empty session keyring, so that the caller's keys are not reachable. Where an outer filter
 * denies keyctl the payload cannot call it either. Serial 0: could not be asked. */
static uint32_t session_keyring(void)
{
    long serial = sys_keyctl(KEYCTL_GET_KEYRING_ID, (unsigned long)KEY_SPEC_SESSION_KEYRING, 0);
    return serial < 0 ? 0 : (uint32_t)serial;
}

static void join_new_keyring(void)
{
    if (sys_keyctl(KEYCTL_JOIN_SESSION_KEYRING, 0, 0) < 0 && errno != EPERM && errno != ENOSYS)
        fault(STEP_KEYRING, errno, NONE, "join");
}

static uint64_t grantable_capabilities(void)
{
    for (uint32_t i = 0; i < plan.count; i++)
        if (plan.records[i].type == REC_CAPS)
            return plan.records[i].caps.mask;
    return 0;
}

/* Whether this very program runs from the sealed memory that the agent is to run from. */
static bool runs_sealed(int agent)
{
    struct stat sealed, own;
    return stat("/proc/self/exe", &own) == 0 && fstat(agent, &sealed) == 0 && own.st_dev == sealed.st_dev &&
           own.st_ino == sealed.st_ino;
}

/* Out of the way of the fixed numbers first, then into place; dup2 clears close-on-exec. */
static void place_descriptors(const struct passed *passed)
{
    const int from[] = {passed->control, passed->engine, passed->lease, passed->program};
    int high[4];
    for (int i = 0; i < 4; i++)
        if ((high[i] = fcntl(from[i], F_DUPFD_CLOEXEC, DESCRIPTOR_FLOOR)) < 0)
            fault(STEP_AGENT, errno, NONE, "descriptors");
    if (dup2(high[0], AGENT_CONTROL) < 0 || dup2(high[1], AGENT_ENGINE) < 0 || dup2(high[2], AGENT_LEASE) < 0 ||
        dup3(high[3], AGENT_PROGRAM, O_CLOEXEC) < 0 || sys_close_range(AGENT_PROGRAM + 1, ~0u) < 0)
        fault(STEP_AGENT, errno, NONE, "descriptors");
    report_to(AGENT_CONTROL);
}

/* Executing gives the agent memory that belongs to its own user namespace, which is what lets an
 * engine without privilege read it from outside. The host's root may read anyone, so a launcher
 * that already runs from the sealed memory goes on as it is. */
static _Noreturn void become_agent(bool sealed)
{
    if (sealed && plan.mode & MODE_PRIVILEGED) {
        close(AGENT_PROGRAM);
        munmap(plan_blob, plan_length);
        agent(plan.mode, grantable_capabilities());
    }
    char mode[16], caps[24];
    snprintf(mode, sizeof mode, "%u", plan.mode);
    snprintf(caps, sizeof caps, "%llu", (unsigned long long)grantable_capabilities());
    char *argv[] = {"kis-init", "agent", mode, caps, NULL};
    char *envp[] = {NULL};
    syscall(SYS_execveat, AGENT_PROGRAM, "", argv, envp, AT_EMPTY_PATH);
    fault(STEP_AGENT, errno, NONE, "execveat");
}

/* Pid 1 from its first instruction in the new namespaces to where it is the agent. */
static _Noreturn void inside(int gate, const struct passed *passed)
{
    char byte;
    send_frame(passed->control, FRAME_BORN, 0, NULL, 0); /* its credentials name us: now we can be killed */
    if (read(gate, &byte, 1) != 1)
        fault(STEP_AGENT, EPIPE, NONE, "the launcher ended");
    bool sealed = runs_sealed(passed->program);
    uint32_t host_keyring = session_keyring();
    if (plan.mode & MODE_PRIVILEGED && (setresgid(0, 0, 0) < 0 || setgroups(0, NULL) < 0 || setresuid(0, 0, 0) < 0))
        fault(STEP_IDENTITY, errno, NONE, "root of the namespace");
    join_new_keyring();
    uint32_t own_keyring = session_keyring();
    if (setsid() < 0)
        fault(STEP_IDENTITY, errno, NONE, "setsid");
    set_hostname();
    if (plan.mode & MODE_LOOPBACK)
        loopback_up();
    umask(0);
    tree_build(&plan, &sources);
    tree_enter();
    /* Early, so that the engine looks at the place while we give up the rest. */
    agent_greet(passed->control, host_keyring, own_keyring);
    umask(022);
    confine_limits(&plan);
    confine_identity(&plan);
    confine_filters(&plan);
    place_descriptors(passed);
    become_agent(sealed);
}

static int take_descriptors(char **arguments, int kept[], int fixed)
{
    int count = 0;
    for (; arguments[count]; count++) {
        if (count >= fixed + SOURCES_MAX)
            fault(STEP_DESCRIPTORS, E2BIG, NONE, "sources");
        kept[count] = descriptor(arguments[count]);
    }
    if (count < fixed)
        fault(STEP_DESCRIPTORS, EINVAL, NONE, "arguments");
    close_others(kept, count);
    return count;
}

_Noreturn void launch(char **arguments)
{
    int kept[SOURCES_MAX + LAUNCH_FIXED];
    if (arguments[0] && arguments[1])
        report_to(descriptor(arguments[1]));
    int count = take_descriptors(arguments, kept, LAUNCH_FIXED);
    const struct passed passed = {.control = kept[1], .program = kept[2], .engine = kept[3], .lease = kept[4]};
    sources.count = count - LAUNCH_FIXED;
    memcpy(sources.descriptors, kept + LAUNCH_FIXED, (size_t)sources.count * sizeof *kept);
    reset_inherited();
    read_plan(kept[0]);
    if (plan.mode & MODE_SUPERVISE)
        fault(STEP_PLAN, EINVAL, 0, "mode");
    if (plan.mode & MODE_PRIVILEGED)
        tree_clone_sources(&plan, &sources);
    int gate[2];
    if (pipe2(gate, O_CLOEXEC) < 0)
        fault(STEP_NAMESPACES, errno, NONE, "pipe");
    pid_t pid = clone_process(CLONE_PARENT | CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC |
                              CLONE_NEWUTS | CLONE_NEWCGROUP |
                              (plan.mode & MODE_NET_HOST ? 0u : (unsigned)CLONE_NEWNET));
    if (pid < 0)
        fault(STEP_NAMESPACES, errno, NONE, "clone");
    if (pid == 0) {
        close(gate[1]);
        inside(gate[0], &passed);
    }
    close(gate[0]);
    int process = open_process(pid);
    write_maps(process);
    if (plan.mode & MODE_PRIVILEGED)
        map_sources(open_user_namespace(process));
    if (write(gate[1], "", 1) != 1)
        _exit(EXIT_FAULT); /* pid 1 ended and has told why */
    _exit(0);
}

_Noreturn void supervise(char **arguments)
{
    int kept[SOURCES_MAX + LAUNCH_FIXED];
    if (arguments[0] && arguments[1])
        report_to(descriptor(arguments[1]));
    if (take_descriptors(arguments, kept, 3) != 3)
        fault(STEP_DESCRIPTORS, EINVAL, NONE, "arguments");
    reset_inherited();
    read_plan(kept[0]);
    if (plan.mode != MODE_SUPERVISE)
        fault(STEP_PLAN, EINVAL, 0, "mode");
    confine_limits(&plan);
    uint32_t host_keyring = session_keyring();
    join_new_keyring();
    if (setsid() < 0)
        fault(STEP_IDENTITY, errno, NONE, "setsid");
    send_frame(kept[1], FRAME_BORN, 0, NULL, 0);
    int control = fcntl(kept[1], F_DUPFD_CLOEXEC, DESCRIPTOR_FLOOR);
    int engine = fcntl(kept[2], F_DUPFD_CLOEXEC, DESCRIPTOR_FLOOR);
    if (control < 0 || engine < 0 || dup3(control, AGENT_CONTROL, O_CLOEXEC) < 0 ||
        dup3(engine, AGENT_ENGINE, O_CLOEXEC) < 0 || sys_close_range(AGENT_ENGINE + 1, ~0u) < 0)
        fault(STEP_DESCRIPTORS, errno, NONE, "descriptors");
    report_to(AGENT_CONTROL);
    agent_greet(AGENT_CONTROL, host_keyring, session_keyring());
    agent_serve(MODE_SUPERVISE, 0);
}
