/*
 * A seccomp program evaluated as the kernel does it, for calls that must never really be made.
 * Classic BPF as far as a filter of ours or of libseccomp's uses it.
 */
#ifndef KIS_TESTS_BPF_H
#define KIS_TESTS_BPF_H

#include "check.h"
#include "filters.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ALLOWED 0
#define KILLED  (-1)

struct run {
    uint32_t action;
    bool looks_at_arguments;
    unsigned steps; /* up to the first look at an argument */
};

static inline bool jumps(const struct sock_filter *f, uint32_t a)
{
    switch (f->code) {
    case BPF_JMP | BPF_JEQ | BPF_K:
        return a == f->k;
    case BPF_JMP | BPF_JGT | BPF_K:
        return a > f->k;
    case BPF_JMP | BPF_JGE | BPF_K:
        return a >= f->k;
    case BPF_JMP | BPF_JSET | BPF_K:
        return (a & f->k) != 0;
    default:
        fprintf(stderr, "an instruction has a code this test does not know: 0x%x\n", f->code);
        exit(1);
    }
}

static inline struct run evaluate(const struct sock_filter *program, size_t length,
                                  const struct seccomp_data *data)
{
    struct run run = {0};
    uint32_t a = 0;

    for (size_t pc = 0; pc < length; pc++) {
        const struct sock_filter *f = &program[pc];
        if (f->code == (BPF_LD | BPF_W | BPF_ABS)) {
            CHECK(f->k % 4 == 0 && f->k < sizeof *data);
            run.looks_at_arguments |= f->k >= offsetof(struct seccomp_data, instruction_pointer);
            memcpy(&a, (const char *)data + f->k, sizeof a);
        } else if (f->code == (BPF_ALU | BPF_AND | BPF_K)) {
            a &= f->k;
        } else if (f->code == (BPF_JMP | BPF_JA)) {
            pc += f->k;
        } else if (f->code != (BPF_RET | BPF_K)) {
            pc += jumps(f, a) ? f->jt : f->jf;
        }
        run.steps += !run.looks_at_arguments;
        run.action = f->k;
        if (f->code == (BPF_RET | BPF_K))
            return run;
    }
    fprintf(stderr, "a program ran past its end\n");
    exit(1);
}

/* ALLOWED, KILLED or an errno. */
static inline int verdict_of(uint32_t action)
{
    switch (action & SECCOMP_RET_ACTION_FULL) {
    case SECCOMP_RET_ALLOW:
        return ALLOWED;
    case SECCOMP_RET_KILL_PROCESS:
        return KILLED;
    case SECCOMP_RET_ERRNO:
        CHECK((action & SECCOMP_RET_DATA) != 0);
        return (int)(action & SECCOMP_RET_DATA);
    default:
        fprintf(stderr, "an action no rule asks for: 0x%x\n", action);
        exit(1);
    }
}

static inline struct run run_of(uint32_t architecture, uint32_t number, const uint64_t args[6])
{
    struct seccomp_data data = {.nr = (int)number, .arch = architecture};
    memcpy(data.args, args, sizeof data.args);
    return evaluate(kis_filter_payload, kis_filter_payload_len, &data);
}

/* What our filter answers to a call of this architecture. */
static inline int verdict_on(uint32_t number, const uint64_t args[6])
{
    return verdict_of(run_of((uint32_t)kis_filter_architecture, number, args).action);
}

#endif
