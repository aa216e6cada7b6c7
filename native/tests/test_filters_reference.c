/*
 * The filter against what libseccomp makes of the same tables: for every number and many arguments, the same
 * answer. One program of libseccomp's cannot say both "this call" and "but not with these bits", so there
 * are two, and the kernel's rule joins them: the strictest answer wins, the guard's errno where both refuse.
 * libseccomp compares whole registers; it is shown the arguments as the kernel cuts them, and the filter
 * must not care what the upper halves hold.
 */
#include "bpf.h"
#include "filters/numbers.h"
#include "filters/table.h"

#include <errno.h>
#include <linux/audit.h>
#include <seccomp.h>

#define LENGTH(array) (sizeof(array) / sizeof *(array))
#define NUMBERS       600U

struct program {
    struct sock_filter code[BPF_MAXINSNS];
    size_t length;
};
static struct program allow, guard;

static const struct table *const tables[] = {&guard_table, &allow_table, &deny_table};

/* xorshift: the same numbers at each run. */
static uint64_t random_bits(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15ULL;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Conditions from `depth` on; one bit at a time for those that ask for any bit of a mask. */
static void add_rule(scmp_filter_ctx filter, const struct rule *rule, int number, unsigned depth,
                     struct scmp_arg_cmp *so_far)
{
    static const enum scmp_compare operators[] = {
        [MASKED] = SCMP_CMP_MASKED_EQ, [DIFFERENT] = SCMP_CMP_NE, [GREATER] = SCMP_CMP_GT};
    const struct condition *c = &rule->when[depth];
    uint32_t action = rule->error ? SCMP_ACT_ERRNO((uint16_t)rule->error) : SCMP_ACT_ALLOW;

    if (c->comparison == NOTHING_MORE) {
        CHECK(seccomp_rule_add_array(filter, action, number, depth, so_far) == 0);
    } else if (c->comparison == ANY_OF) {
        for (uint32_t bit = 1; bit != 0; bit <<= 1)
            if (c->mask & bit) {
                so_far[depth] = SCMP_CMP64(c->argument, SCMP_CMP_MASKED_EQ, bit, bit);
                add_rule(filter, rule, number, depth + 1, so_far);
            }
    } else {
        uint64_t first = c->comparison == MASKED ? c->mask : c->value;
        so_far[depth] = SCMP_CMP64(c->argument, operators[c->comparison], first, c->value);
        add_rule(filter, rule, number, depth + 1, so_far);
    }
}

static void add_table(scmp_filter_ctx filter, const struct table *table)
{
    for (size_t i = 0; i < table->count; i++) {
        struct scmp_arg_cmp conditions[CONDITIONS_MAX];
        int number = call_number(table->rules[i].name);
        if (number != CALL_ABSENT)
            add_rule(filter, &table->rules[i], number, 0, conditions);
    }
}

static scmp_filter_ctx new_filter(uint32_t default_action)
{
    scmp_filter_ctx filter = seccomp_init(default_action);
    CHECK(filter != NULL);
    CHECK(seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS) == 0);
    return filter;
}

static void export(scmp_filter_ctx filter, struct program *program)
{
    FILE *file = tmpfile();
    CHECK(file != NULL && seccomp_export_bpf(filter, fileno(file)) == 0);
    rewind(file);
    program->length = fread(program->code, sizeof program->code[0], LENGTH(program->code), file);
    CHECK(program->length > 0 && feof(file));
    fclose(file);
    seccomp_release(filter);
}

static void make_reference(void)
{
    scmp_filter_ctx filter = new_filter(SCMP_ACT_ERRNO(ENOSYS));
    add_table(filter, &allow_table);
    add_table(filter, &deny_table);
    export(filter, &allow);
    filter = new_filter(SCMP_ACT_ALLOW);
    add_table(filter, &guard_table);
    export(filter, &guard);
}

/* Of two answers the one of higher precedence, the newer at a draw (seccomp(2)). */
static int reference_verdict(struct seccomp_data data)
{
    for (size_t i = 0; i < LENGTH(data.args); i++)
        data.args[i] = (uint32_t)data.args[i];
    uint32_t older = evaluate(allow.code, allow.length, &data).action;
    uint32_t newer = evaluate(guard.code, guard.length, &data).action;
    bool older_wins =
        (int32_t)(older & SECCOMP_RET_ACTION_FULL) < (int32_t)(newer & SECCOMP_RET_ACTION_FULL);
    return verdict_of(older_wins ? older : newer);
}

static unsigned long compared;

static void compare(uint32_t architecture, uint32_t number, const uint64_t args[6])
{
    struct seccomp_data data = {.nr = (int)number, .arch = architecture};
    memcpy(data.args, args, sizeof data.args);
    int expected = reference_verdict(data);
    int got = verdict_of(evaluate(kis_filter_payload, kis_filter_payload_len, &data).action);

    compared++;
    if (got == expected)
        return;
    fprintf(stderr, "%#x: call %#x(", architecture, number);
    for (size_t i = 0; i < 6; i++)
        fprintf(stderr, " %#llx", (unsigned long long)args[i]);
    fprintf(stderr, " ) gets %d, libseccomp's gets %d\n", got, expected);
    exit(1);
}

static void test_numbers_and_architectures(void)
{
    static const uint32_t starts[] = {0, 0x3fffff00U, 0x40000000U, 0x7fffff00U, 0x80000000U, 0xfffffe00U};
    static const uint32_t architectures[] = {
        (uint32_t)kis_filter_architecture, AUDIT_ARCH_I386, AUDIT_ARCH_X86_64, AUDIT_ARCH_AARCH64,
        AUDIT_ARCH_ARM, 0, ~(uint32_t)kis_filter_architecture};

    for (size_t a = 0; a < LENGTH(architectures); a++)
        for (size_t s = 0; s < LENGTH(starts); s++)
            for (uint32_t i = 0; i < NUMBERS; i++) /* the last start goes round to 0 */
                for (unsigned bit = 0; bit < 64; bit += 7) {
                    uint64_t one = 1ULL << bit;
                    compare(architectures[a], starts[s] + i, (uint64_t[6]){0});
                    compare(architectures[a], starts[s] + i, (uint64_t[6]){one, one, one, one, one, one});
                }
}

struct pool {
    uint64_t values[1024];
    size_t count;
};

static bool add_value(struct pool *pool, uint64_t value)
{
    for (size_t i = 0; i < pool->count; i++)
        if (pool->values[i] == value)
            return false;
    CHECK(pool->count < LENGTH(pool->values));
    pool->values[pool->count++] = value;
    return true;
}

/* What a condition compares with, what lies next to it, and the same under garbage. */
static void add_condition(struct pool *pool, const struct condition *c)
{
    const uint32_t near[] = {c->value, c->value + 1, c->value - 1,        ~c->value,
                             c->mask,  ~c->mask,     c->value | ~c->mask, c->value & (c->value - 1)};
    for (size_t i = 0; i < LENGTH(near); i++)
        if (add_value(pool, near[i]))
            add_value(pool, near[i] | random_bits() << 32);
}

/* Values for the arguments of a call; says whether its rules look at any. */
static bool fill(struct pool *pool, uint32_t number)
{
    bool conditional = false;
    pool->count = 0;
    add_value(pool, 0);
    add_value(pool, ~0ULL);
    for (unsigned bit = 0; bit < 64; bit++)
        add_value(pool, 1ULL << bit);
    for (size_t t = 0; t < LENGTH(tables); t++)
        for (size_t i = 0; i < tables[t]->count; i++) {
            const struct rule *rule = &tables[t]->rules[i];
            if (call_number(rule->name) != (int)number)
                continue;
            for (const struct condition *c = rule->when; c->comparison != NOTHING_MORE; c++) {
                add_condition(pool, c);
                conditional = true;
            }
        }
    return conditional;
}

/* The two values in two arguments of every choice, the others at random from the pool. */
static void compare_pair(uint32_t number, const struct pool *pool, uint64_t one, uint64_t other)
{
    for (unsigned first = 0; first < 6; first++)
        for (unsigned second = first; second < 6; second++) {
            uint64_t args[6];
            for (unsigned i = 0; i < 6; i++)
                args[i] = pool->values[random_bits() % pool->count];
            args[second] = other;
            args[first] = one;
            compare((uint32_t)kis_filter_architecture, number, args);
        }
}

static void test_arguments(void)
{
    unsigned conditional = 0;
    for (uint32_t number = 0; number < NUMBERS; number++) {
        struct pool pool;
        bool looks = fill(&pool, number);
        conditional += looks;
        for (size_t i = 0; i < pool.count; i++)
            for (size_t j = 0; looks ? j < pool.count : j < 1; j++)
                compare_pair(number, &pool, pool.values[i], pool.values[j]);
        for (unsigned i = 0; i < 1000; i++)
            compare((uint32_t)kis_filter_architecture, number,
                    (uint64_t[6]){random_bits(), random_bits(), random_bits(), random_bits(), random_bits(),
                                  random_bits()});
    }
    CHECK(conditional > 0);
}

int main(void)
{
    make_reference();
    test_numbers_and_architectures();
    test_arguments();
    printf("%lu answers like libseccomp's\n", compared);
    return 0;
}
