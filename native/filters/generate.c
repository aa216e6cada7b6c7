/*
 * generate: joins the answers to all system calls into the one BPF program that kis-init installs, as a C
 * header. Holds no policy. Runs at build time only, for the architecture it runs on: generate >filters.h
 *
 * Installing has to be quick, because every start waits for it. The kernel compiles the program (85 ns for
 * each instruction) and, to know the numbers that are allowed whatever their arguments are, runs it once for
 * each number up to the first load of an argument (5 ns for each step). So the program is a binary tree
 * over ranges of numbers that are answered alike, and arguments are looked at behind its leaves.
 */
#include "answer.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

#define RANGES_MAX 256

static struct answer answers[RANGES_MAX];
static size_t answer_count, kill_answer;

/* Numbers from `first` to just before the next range's. */
static struct range {
    uint32_t first;
    size_t answer;
} ranges[RANGES_MAX];
static size_t range_count;
static uint32_t known_numbers;

static struct sock_filter program[BPF_MAXINSNS];
static size_t length;

static size_t index_of(const struct answer *wanted)
{
    for (size_t i = 0; i < answer_count; i++)
        if (answers[i].length == wanted->length &&
            memcmp(answers[i].code, wanted->code, wanted->length * sizeof wanted->code[0]) == 0)
            return i;
    if (answer_count == RANGES_MAX)
        fail("program", "too many answers");
    answers[answer_count] = *wanted;
    return answer_count++;
}

/* The next range, or more of the last one. */
static void add_range(uint32_t first, const struct answer *answer)
{
    size_t index = index_of(answer);
    if (range_count > 0 && ranges[range_count - 1].answer == index)
        return;
    if (range_count == RANGES_MAX)
        fail("program", "too many ranges");
    ranges[range_count++] = (struct range){first, index};
}

static void find_ranges(int highest)
{
    struct answer answer, unheard_of;
    const struct answer kill = {{{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS}}, 1};

    known_numbers = (uint32_t)highest + 1;
    for (int number = 0; number <= highest; number++) {
        answer_to(number, &answer);
        add_range((uint32_t)number, &answer);
    }
    answer_to(highest + 1, &unheard_of);
    add_range(known_numbers, &unheard_of);
#ifdef __X32_SYSCALL_BIT
    add_range(__X32_SYSCALL_BIT, &kill);
    add_range(UINT32_MAX, &unheard_of); /* a tracer's "no call at all" */
#endif
    kill_answer = index_of(&kill); /* for foreign architectures too */
}

static void emit(int code, uint32_t k)
{
    if (length == BPF_MAXINSNS)
        fail("program", "too long");
    program[length++] = (struct sock_filter){(uint16_t)code, 0, 0, k};
}

/* Jumps are forward, and their distances have 8 bits. */
static void set_jump(size_t at, size_t yes, size_t no)
{
    if (yes - at - 1 > UINT8_MAX || no - at - 1 > UINT8_MAX)
        fail("program", "a jump that is too long");
    program[at].jt = (uint8_t)(yes - at - 1);
    program[at].jf = (uint8_t)(no - at - 1);
}

/* How many of the numbers that the kernel goes through lie in ranges first to last. */
static uint32_t weight(size_t first, size_t last)
{
    uint32_t end = last + 1 < range_count ? ranges[last + 1].first : known_numbers;
    uint32_t start = ranges[first].first;
    return start >= known_numbers ? 0 : (end < known_numbers ? end : known_numbers) - start;
}

/* Where to cut ranges first to last: both halves as heavy as can be, the second begins with the one given. */
static size_t middle(size_t first, size_t last)
{
    uint32_t best_difference = UINT32_MAX;
    size_t best = first + 1;

    for (size_t cut = first + 1; cut <= last; cut++) {
        uint32_t left = weight(first, cut - 1), right = weight(cut, last);
        uint32_t difference = left > right ? left - right : right - left;
        if (difference < best_difference) {
            best_difference = difference;
            best = cut;
        }
    }
    return best;
}

/* The tree over ranges first to last, and where it begins: for one range alone, at the entry of its answer. */
static size_t emit_tree(size_t first, size_t last, size_t entries)
{
    if (first == last)
        return entries + ranges[first].answer;
    size_t at = length, cut = middle(first, last);
    emit(BPF_JMP | BPF_JGE | BPF_K, ranges[cut].first);
    size_t below = emit_tree(first, cut - 1, entries);
    size_t from = emit_tree(cut, last, entries);
    set_jump(at, from, below);
    return at;
}

/* One instruction for each answer, all within reach of the whole tree: a RET, or the way to more. */
static void emit_entries(void)
{
    size_t place = length + answer_count;

    for (size_t i = 0; i < answer_count; i++) {
        const struct answer *answer = &answers[i];
        if (answer->length == 1) {
            emit(answer->code[0].code, answer->code[0].k);
        } else {
            emit(BPF_JMP | BPF_JA, (uint32_t)(place - length - 1));
            place += answer->length;
        }
    }
}

static void emit_answers(void)
{
    for (size_t i = 0; i < answer_count; i++)
        for (size_t j = 0; answers[i].length > 1 && j < answers[i].length; j++) {
            emit(0, 0);
            program[length - 1] = answers[i].code[j];
        }
}

static void build(uint32_t architecture)
{
    const size_t prologue = 3, entries = prologue + range_count - 1;

    emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    emit(BPF_JMP | BPF_JEQ | BPF_K, architecture);
    set_jump(1, 2, entries + kill_answer);
    emit(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    emit_tree(0, range_count - 1, entries);
    emit_entries();
    emit_answers();
}

static void print(uint32_t architecture)
{
    printf("/* Made by native/filters/generate.c from allow.c, deny.c and guard.c. Do not edit. */\n"
           "#ifndef KIS_FILTERS_H\n#define KIS_FILTERS_H\n\n#include <linux/filter.h>\n\n"
           "enum { kis_filter_architecture = (int)0x%08xU };\n\n"
           "static const struct sock_filter kis_filter_payload[] = {\n",
           architecture);
    for (size_t i = 0; i < length; i++)
        printf("\t{0x%02x, %u, %u, 0x%08x},\n", program[i].code, program[i].jt, program[i].jf, program[i].k);
    printf("};\n\nenum { kis_filter_payload_len = %zu };\n\n#endif\n", length);
    if (fflush(stdout) != 0 || ferror(stdout))
        fail("standard output", strerror(errno));
}

int main(void)
{
    const uint32_t architecture = seccomp_arch_native();

    find_ranges(read_tables());
    build(architecture);
    print(architecture);
    fprintf(stderr, "filter payload: %zu instructions, %zu ranges, %zu answers\n", length, range_count,
            answer_count);
    return 0;
}
