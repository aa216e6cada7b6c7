/*
 * Prints what the C readers make of what Python wrote: `read_wire plan` or `read_wire command`, a blob on standard
 * input. One line a record: its type and fields, numbers in decimal, bytes in hexadecimal after an x.
 * Called by tests/native; status 1 where the reader refuses.
 */
#include "blob.h"
#include "frame.h"
#include "plan.h"

#include <inttypes.h>
#include <unistd.h>

static void number(uint64_t value)
{
    printf(" %" PRIu64, value);
}

static void text(const uint8_t *data, size_t length)
{
    printf(" x");
    for (size_t i = 0; i < length; i++)
        printf("%02x", data[i]);
}

static void bytes(struct bytes b)
{
    text(b.data, b.length);
}

static void print_record(const struct plan_record *r)
{
    printf("%u", (unsigned)r->type);
    switch (r->type) {
    case REC_MODE:
        number(r->mode.bits);
        break;
    case REC_UID_MAP:
    case REC_GID_MAP:
        number(r->map.inside), number(r->map.outside), number(r->map.count);
        break;
    case REC_AGENT:
        number(r->agent.uid), number(r->agent.gid);
        break;
    case REC_HOSTNAME:
        bytes(r->hostname.name);
        break;
    case REC_SPACE:
        number(r->space.bytes), number(r->space.inodes);
        break;
    case REC_IDMAP:
        number(r->idmap.index), number(r->idmap.count);
        for (uint32_t i = 0; i < r->idmap.count; i++) {
            struct idmap_entry e = plan_idmap_entry(r, i);
            number(e.kind), number(e.on_disk), number(e.outside), number(e.count);
        }
        break;
    case REC_ROOT:
        number(r->root.kind), number(r->root.source), number(r->root.idmap), bytes(r->root.path);
        break;
    case REC_DIR:
    case REC_FILE:
        number(r->node.mode), number(r->node.uid), number(r->node.gid), bytes(r->node.path);
        if (r->type == REC_FILE)
            bytes(r->node.content);
        break;
    case REC_LINK:
        bytes(r->link.path), bytes(r->link.target);
        break;
    case REC_BIND:
    case REC_OVERLAY:
        number(r->bind.source);
        if (r->type == REC_BIND)
            number(r->bind.attributes);
        number(r->bind.idmap), bytes(r->bind.target), bytes(r->bind.path);
        break;
    case REC_SPACE_BIND:
        number(r->space_bind.mode), number(r->space_bind.uid), number(r->space_bind.gid);
        number(r->space_bind.attributes), bytes(r->space_bind.target);
        break;
    case REC_PROC:
    case REC_DEVPTS:
    case REC_MASK:
        bytes(r->point.target);
        break;
    case REC_CAPS:
        number(r->caps.mask);
        break;
    case REC_RLIMIT:
        number(r->rlimit.resource), number(r->rlimit.soft), number(r->rlimit.hard);
        break;
    case REC_FILTER:
        number(r->filter.number);
        break;
    case REC_SYSCTL:
        bytes(r->sysctl.name), bytes(r->sysctl.value);
        break;
    default:
        fprintf(stderr, "a record of type %u was accepted, which this program cannot print\n", (unsigned)r->type);
        exit(2);
    }
    putchar('\n');
}

static void print_strings(char **list, uint32_t count)
{
    number(count);
    for (uint32_t i = 0; i < count; i++)
        text((const uint8_t *)list[i], strlen(list[i]));
}

static bool print_command(uint8_t *blob, size_t length)
{
    struct command c;
    bool good = command_parse(blob, length, &c);
    if (good) {
        printf("command");
        number(c.uid), number(c.gid), number(c.capabilities), number(c.flags), number(c.umask);
        text((const uint8_t *)c.cwd, strlen(c.cwd));
        print_strings(c.argv, c.argc);
        print_strings(c.envp, c.envc);
        number(c.limit_count);
        for (uint32_t i = 0; i < c.limit_count; i++) {
            struct limit limit = command_limit(&c, i);
            number(limit.resource), number(limit.soft), number(limit.hard);
        }
        putchar('\n');
    }
    command_free(&c);
    return good;
}

static bool print_plan(const uint8_t *blob, size_t length)
{
    static struct plan plan;
    uint32_t at;
    bool good = plan_parse(blob, length, &plan, &at);
    for (uint32_t i = 0; good && i < plan.count; i++)
        print_record(&plan.records[i]);
    return good;
}

int main(int argc, char **argv)
{
    struct blob input = {0};
    uint8_t part[4096];
    ssize_t n;
    CHECK(argc == 2);
    while ((n = read(0, part, sizeof part)) > 0)
        put(&input, part, (size_t)n);
    CHECK(n == 0);
    uint8_t *blob = exact_copy(input.data, input.length);
    bool good = strcmp(argv[1], "plan") == 0 ? print_plan(blob, input.length) : print_command(blob, input.length);
    free(blob), free(input.data);
    return good ? 0 : 1;
}
