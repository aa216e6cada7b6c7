/*
 * What the filter answers to every number, every mode, flag, socket and execution domain, against rules that
 * are stated here a second time and otherwise than in the tables.
 */
#include "bpf.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define X32              0x40000000U
#define VERDICT(nr, ...) verdict_on(nr, (uint64_t[6]){__VA_ARGS__})

/* What becomes of each number: a allowed, e EPERM, n ENOSYS, ? depends on the arguments. */
static const char *const numbers_by_64[] = {
    "aa?aaaaaaaaaaaaa?aaaaaaaaaaaaaaaaaaaaaaaa?aaaaaaaaaaa?aa?aaaaaaa", /* 0 */
    "aaaaaaaa?aaaaaaaaaa?a?aaaa??aaaaaaaaaeaeaaaaaaaaaaaaaaaaaaaaaaaa", /* 64 */
    "aaaaa?e?eaaea??a?aaaaaaaaeeenaaeaaaeeeeeeeeeeeneenneennnnnaaaaaa", /* 128 */
    "aaaaaaaaaaa?annnnnnneannaaaaaaaaaaaeaaaaaaaanaaaaaaaaaeaeee?aaaa", /* 192 */
    "e???aaaaaaaa?aaa?aaaaaaeaaaaaaaaaaaaaaaaaaeaee?eeeaaeaeeee?aaaaa", /* 256 */
    "eeaeaaaaaaaaanannnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn", /* 320 */
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnaeeeeeeeeeananeaeaeeaaan", /* 384 */
    "eaaanaaaannnnnannnnennnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn", /* 448 */
};

static void test_every_number(void)
{
    const size_t numbers = sizeof numbers_by_64 / sizeof numbers_by_64[0] * 64;
    unsigned steps = 0;
    for (uint32_t nr = 0; nr < numbers; nr++) {
        struct run run = run_of((uint32_t)kis_filter_architecture, nr, (uint64_t[6]){0});
        int verdict = verdict_of(run.action);
        char got = run.looks_at_arguments ? '?' : verdict == ALLOWED ? 'a' : verdict == EPERM ? 'e' : 'n';
        if (got != numbers_by_64[nr / 64][nr % 64])
            fprintf(stderr, "number %u is %c\n", nr, got);
        CHECK(got == numbers_by_64[nr / 64][nr % 64]);
        CHECK(got != 'n' || verdict == ENOSYS);
        steps += run.steps;
    }
    /* When a filter is installed, the kernel goes these ways; every start waits for it. */
    CHECK(steps <= 12 * numbers && kis_filter_payload_len <= 320);
}

static void test_foreign_numbers_and_architectures(void)
{
    const uint32_t ours = (uint32_t)kis_filter_architecture;
    const uint64_t none[6] = {0};
    for (uint32_t nr = 0; nr < 1024; nr++) {
        CHECK(verdict_of(run_of(AUDIT_ARCH_I386, nr, none).action) == KILLED);
        CHECK(verdict_of(run_of(AUDIT_ARCH_AARCH64, nr, none).action) == KILLED);
        CHECK(verdict_of(run_of(ours, X32 | nr, none).action) == KILLED);
        if (nr > 470)
            CHECK(verdict_of(run_of(ours, nr, none).action) == ENOSYS);
    }
}

static void test_every_mode(void)
{
    for (uint64_t mode = 0; mode < 0200000; mode++) {
        int answer = mode & (S_ISUID | S_ISGID) ? EPERM : ALLOWED;
        CHECK(VERDICT(SYS_chmod, 0, mode) == answer);
        CHECK(VERDICT(SYS_fchmod, 0, mode) == answer);
        CHECK(VERDICT(SYS_fchmodat, 0, 0, mode) == answer);
        CHECK(VERDICT(SYS_creat, 0, mode) == answer);
        CHECK(VERDICT(SYS_mkdir, 0, mode) == answer);
        CHECK(VERDICT(SYS_mkdirat, 0, 0, mode) == answer);
        CHECK(VERDICT(SYS_mknod, 0, mode) == answer);
        CHECK(VERDICT(SYS_mknodat, 0, 0, mode) == answer);
        CHECK(VERDICT(SYS_open, 0, O_CREAT, mode) == answer);
        CHECK(VERDICT(SYS_openat, 0, 0, O_CREAT, mode) == answer);
    }
    for (uint64_t flags = 1; flags != 0; flags <<= 1) {
        int answer = flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)) ? EPERM : ALLOWED;
        CHECK(VERDICT(SYS_open, 0, flags, S_ISUID) == answer);
        CHECK(VERDICT(SYS_openat, 0, 0, flags, S_ISGID) == answer);
    }
}

static void test_every_two_flags(void)
{
    const uint64_t namespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
                                CLONE_NEWPID | CLONE_NEWNET;
    const uint64_t domains = 0x700000; /* READ_IMPLIES_EXEC, ADDR_COMPAT_LAYOUT, MMAP_PAGE_ZERO */
    for (uint64_t one = 1; one != 0; one <<= 1)
        for (uint64_t other = 1; other != 0; other <<= 1) {
            uint64_t flags = one | other;
            uint32_t seen = (uint32_t)flags;
            bool listed = seen == 0 || seen == 8 || seen == 0x40000 || seen == 0x40008;
            CHECK(VERDICT(SYS_clone, flags) == (flags & namespaces ? EPERM : ALLOWED));
            CHECK(VERDICT(SYS_unshare, flags) == (flags & (namespaces | CLONE_NEWTIME) ? EPERM : ALLOWED));
            CHECK(VERDICT(SYS_personality, flags) == (listed                             ? ALLOWED
                                                      : seen >> 31 == 0 && seen & domains ? EPERM
                                                                                          : ENOSYS));
        }
}

static int socket_verdict(uint64_t family, uint64_t type, uint64_t protocol)
{
    if (family == AF_UNIX)
        return ALLOWED;
    if (family == AF_NETLINK)
        return protocol == 0 ? ALLOWED : EPROTONOSUPPORT;
    if (family != AF_INET && family != AF_INET6)
        return EAFNOSUPPORT;
    if (protocol == 33 || protocol == 115 || protocol == 132 || protocol == 262)
        return EPROTONOSUPPORT;
    if ((type & 0xf) == SOCK_RAW || (type & 0xf) == SOCK_PACKET)
        return EPERM;
    return protocol == 0 || protocol == IPPROTO_ICMP || protocol == IPPROTO_TCP || protocol == IPPROTO_UDP ||
                   protocol == IPPROTO_ICMPV6 || protocol == IPPROTO_UDPLITE
               ? ALLOWED
               : ENOSYS;
}

static void test_every_socket(void)
{
    for (uint64_t family = 0; family < 64; family++) {
        CHECK(VERDICT(SYS_socketpair, family) == (family == AF_UNIX ? ALLOWED : EAFNOSUPPORT));
        for (uint64_t type = 0; type < 64; type++)
            for (uint64_t protocol = 0; protocol < 512; protocol++)
                CHECK(VERDICT(SYS_socket, family, type, protocol) == socket_verdict(family, type, protocol));
    }
    for (uint64_t bit = 64; bit <= 0x80000000U; bit <<= 1) {
        CHECK(VERDICT(SYS_socket, AF_INET | bit, SOCK_STREAM) == EAFNOSUPPORT);
        CHECK(VERDICT(SYS_socket, AF_INET, SOCK_RAW | bit) == EPERM);
        CHECK(VERDICT(SYS_socket, AF_INET, SOCK_DGRAM, IPPROTO_UDP | bit) == ENOSYS);
    }
}

int main(void)
{
    test_every_number();
    test_foreign_numbers_and_architectures();
    test_every_mode();
    test_every_two_flags();
    test_every_socket();
    return 0;
}
