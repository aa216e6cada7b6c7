/*
 * The shape of a filter table: what one line of allow.c, deny.c and guard.c says.
 * Must not know any policy, nor how a filter is built.
 * Read by answer.c, which turns the rules of a call into BPF.
 */
#ifndef KIS_FILTERS_TABLE_H
#define KIS_FILTERS_TABLE_H

#include <stddef.h>
#include <stdint.h>

enum comparison {
    NOTHING_MORE, /* ends the list of conditions */
    MASKED,       /* the argument's bits under `mask` are `value` */
    DIFFERENT,    /* the argument is not `value` */
    GREATER,      /* the argument, taken as unsigned, is greater than `value` */
    ANY_OF,       /* at least one bit of `mask` is set */
};

/*
 * The kernel cuts each of the arguments that the tables name (int, unsigned int, mode_t; clone's flags too)
 * down to its lower 32 bits before it looks. So does every comparison here: a comparison of all 64 bits
 * can be passed by garbage in the upper half (CVE-2019-10063), and would refuse harmless calls for it.
 */
struct condition {
    enum comparison comparison;
    unsigned argument;
    uint32_t mask;
    uint32_t value;
};

#define CONDITIONS_MAX 3

/* One rule. All its conditions must hold; a rule without any holds for every call of that name. */
struct rule {
    const char *name;
    int error;                                   /* errno to answer with; 0 allows */
    struct condition when[CONDITIONS_MAX + 1]; /* the last is NOTHING_MORE */
};

struct table {
    const struct rule *rules;
    size_t count;
};

/* The first rule that holds decides: those of guard.c, then of allow.c, then of deny.c. */
extern const struct table guard_table; /* argument values that are refused */
extern const struct table allow_table; /* allowed calls */
extern const struct table deny_table;  /* calls answered EPERM, not ENOSYS */

#define EQUAL(argument, value)      {MASKED, (argument), 0xffffffffU, (value)}
#define BITS(argument, mask, value) {MASKED, (argument), (mask), (value)}
#define NOT_EQUAL(argument, value)  {DIFFERENT, (argument), 0xffffffffU, (value)}
#define ABOVE(argument, value)      {GREATER, (argument), 0xffffffffU, (value)}
#define ANY_BIT(argument, mask)     {ANY_OF, (argument), (mask), 0}

#endif
