/*
 * Turns the rules of one call into a piece of BPF: a tree of conditions in the order of the tables, where
 * rules that begin alike share the beginning.
 * Knows the tables and the layout of struct seccomp_data. Called by generate.c, at build time only.
 */
#include "answer.h"

#include "numbers.h"
#include "table.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the lower half of an argument is taken to be its first"
#endif

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* The rules of each call, the first that holds first. */
static struct call {
    const struct rule *rules[64];
    size_t count;
} calls[1024];

void fail(const char *subject, const char *complaint)
{
    fprintf(stderr, "generate: %s: %s\n", subject, complaint);
    exit(1);
}

static bool always_holds(const struct rule *rule)
{
    return rule->when[0].comparison == NOTHING_MORE;
}

static int read_table(const struct table *table, int highest)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct rule *rule = &table->rules[i];
        int number = call_number(rule->name);

        if (number == CALL_ABSENT)
            continue;
        if (number < 0 || (size_t)number >= LENGTH(calls))
            fail(rule->name, "has no number that can be used");
        if (rule->when[CONDITIONS_MAX].comparison != NOTHING_MORE)
            fail(rule->name, "too many conditions");
        struct call *call = &calls[number];
        if (call->count > 0 && always_holds(call->rules[call->count - 1]))
            fail(rule->name, "a rule stands behind one that always holds");
        if (call->count == LENGTH(call->rules))
            fail(rule->name, "too many rules");
        call->rules[call->count++] = rule;
        highest = number > highest ? number : highest;
    }
    return highest;
}

int read_tables(void)
{
    int highest = read_table(&guard_table, 0);
    highest = read_table(&allow_table, highest);
    return read_table(&deny_table, highest);
}

/* What A holds: the lower half of an argument under a mask. */
struct accumulator {
    unsigned argument;
    uint32_t mask;
};
static const struct accumulator not_known = {~0U, 0};

struct label {
    size_t place;
    bool reached;         /* by a jump */
    struct accumulator a; /* on every way that leads here */
};

/* A piece in the making. Jumps name labels, by their index, and lead forward. */
struct draft {
    struct answer *answer;
    size_t yes[ANSWER_MAX], no[ANSWER_MAX]; /* of each instruction that is a jump */
    struct label labels[ANSWER_MAX];
    size_t label_count;
    struct accumulator a;
    struct {
        uint32_t action;
        size_t label;
    } endings[8];
    size_t ending_count;
};

static void emit(struct draft *d, int code, uint32_t k)
{
    if (d->answer->length == ANSWER_MAX)
        fail("answer", "too long");
    d->answer->code[d->answer->length++] = (struct sock_filter){(uint16_t)code, 0, 0, k};
}

static size_t new_label(struct draft *d)
{
    if (d->label_count == LENGTH(d->labels))
        fail("answer", "too many labels");
    return d->label_count++;
}

/* The label of the RET that gives `action`; each piece has one of a kind. */
static size_t ending(struct draft *d, uint32_t action)
{
    size_t i = 0;
    while (i < d->ending_count && d->endings[i].action != action)
        i++;
    if (i == LENGTH(d->endings))
        fail("answer", "too many endings");
    if (i == d->ending_count) {
        d->endings[i].action = action;
        d->endings[i].label = new_label(d);
        d->ending_count++;
    }
    return d->endings[i].label;
}

static void reach(struct draft *d, struct label *label)
{
    if (!label->reached)
        label->a = d->a;
    else if (label->a.argument != d->a.argument || label->a.mask != d->a.mask)
        label->a = not_known;
    label->reached = true;
}

static void jump(struct draft *d, int test, uint32_t k, size_t yes, size_t no)
{
    reach(d, &d->labels[yes]);
    reach(d, &d->labels[no]);
    d->yes[d->answer->length] = yes;
    d->no[d->answer->length] = no;
    emit(d, BPF_JMP | test | BPF_K, k);
}

static void place(struct draft *d, size_t label)
{
    d->labels[label].place = d->answer->length;
    d->a = d->labels[label].a;
}

/* Brings into A what a comparison looks at, unless every way here has done that already. */
static void load(struct draft *d, unsigned argument, uint32_t mask)
{
    const uint32_t all = 0xffffffffU;
    if (d->a.argument == argument && d->a.mask == mask)
        return;
    if (d->a.argument != argument || d->a.mask != all)
        emit(d, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, args[argument]));
    if (mask != all)
        emit(d, BPF_ALU | BPF_AND | BPF_K, mask);
    d->a = (struct accumulator){argument, mask};
}

static void compare(struct draft *d, const struct condition *c, size_t yes, size_t no)
{
    load(d, c->argument, c->comparison == MASKED ? c->mask : 0xffffffffU);
    switch (c->comparison) {
    case MASKED:
        jump(d, BPF_JEQ, c->value, yes, no);
        break;
    case DIFFERENT:
        jump(d, BPF_JEQ, c->value, no, yes);
        break;
    case GREATER:
        jump(d, BPF_JGT, c->value, yes, no);
        break;
    case ANY_OF:
        jump(d, BPF_JSET, c->mask, yes, no);
        break;
    case NOTHING_MORE:
        fail("answer", "a rule holds wherever one before it does");
    }
}

static bool same(const struct condition *one, const struct condition *other)
{
    return one->comparison == other->comparison && one->argument == other->argument &&
           one->mask == other->mask && one->value == other->value;
}

static uint32_t action_of(const struct rule *rule)
{
    return rule->error == 0 ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | (uint32_t)rule->error;
}

/* `count` rules, whose first `depth` conditions are the same and hold. If none holds, on to `otherwise`. */
static void emit_rules(struct draft *d, const struct rule *const *rules, size_t count, size_t depth,
                       size_t otherwise)
{
    while (count > 0) {
        const struct condition *condition = &rules[0]->when[depth];
        bool last = condition[1].comparison == NOTHING_MORE;
        size_t alike = 1;

        while (alike < count && same(&rules[alike]->when[depth], condition))
            alike++;
        size_t yes = last ? ending(d, action_of(rules[0])) : new_label(d);
        size_t no = alike < count ? new_label(d) : otherwise;
        compare(d, condition, yes, no);
        if (!last) {
            place(d, yes);
            emit_rules(d, rules, alike, depth + 1, no);
        } else if (alike > 1) {
            fail(rules[1]->name, "a rule holds only where one before it does");
        }
        if (no != otherwise)
            place(d, no);
        rules += alike;
        count -= alike;
    }
}

static void resolve_jumps(struct draft *d)
{
    for (size_t i = 0; i < d->answer->length; i++) {
        struct sock_filter *instruction = &d->answer->code[i];
        if (BPF_CLASS(instruction->code) != BPF_JMP)
            continue;
        size_t yes = d->labels[d->yes[i]].place - i - 1, no = d->labels[d->no[i]].place - i - 1;
        if (yes > UINT8_MAX || no > UINT8_MAX) /* so is a label that was never placed */
            fail("answer", "a jump that is too long");
        instruction->jt = (uint8_t)yes;
        instruction->jf = (uint8_t)no;
    }
}

void answer_to(int number, struct answer *answer)
{
    struct draft d = {.answer = answer, .a = not_known};
    const struct call *call = &calls[number];
    size_t conditional = call->count;
    uint32_t otherwise = SECCOMP_RET_ERRNO | ENOSYS;

    answer->length = 0;
    if (conditional > 0 && always_holds(call->rules[conditional - 1]))
        otherwise = action_of(call->rules[--conditional]);
    emit_rules(&d, call->rules, conditional, 0, ending(&d, otherwise));
    for (size_t i = 0; i < d.ending_count; i++) {
        place(&d, d.endings[i].label);
        emit(&d, BPF_RET | BPF_K, d.endings[i].action);
    }
    resolve_jumps(&d);
}
