/*
 * libFuzzer on the plan reader. Each input is tried twice: as a whole blob, and as the values in a blob whose
 * lengths are right, which no fuzzer would guess. What is accepted is walked, and held against the promises
 * that the launcher relies on.
 */
#include "blob.h"
#include "plan.h"

static struct plan plan;

static void walk_bytes(struct bytes bytes, bool text)
{
    volatile uint8_t sum = 0;
    for (uint32_t i = 0; i < bytes.length; i++) {
        CHECK(!text || bytes.data[i] != 0);
        sum = (uint8_t)(sum + bytes.data[i]);
    }
}

static void walk_path(struct bytes path)
{
    walk_bytes(path, true);
    CHECK(path.length > 0 && path.data[0] == '/');
    char text[4096 + 2];
    CHECK(path.length < sizeof text - 1);
    memcpy(text, path.data, path.length);
    memcpy(text + path.length, "/", 2); /* so that the last part ends like the others */
    CHECK(!strstr(text, "/../") && !strstr(text, "/./"));
    CHECK(path.length == 1 || !strstr(text, "//"));
}

static void walk(const struct plan_record *r)
{
    switch (r->type) {
    case REC_IDMAP:
        for (uint32_t i = 0; i < r->idmap.count; i++)
            CHECK(plan_idmap_entry(r, i).kind <= 1);
        break;
    case REC_DIR:
    case REC_FILE:
        walk_path(r->node.path);
        walk_bytes(r->node.content, false);
        CHECK((r->node.mode & 06000) == 0);
        break;
    case REC_LINK:
        walk_path(r->link.path);
        walk_bytes(r->link.target, true);
        break;
    case REC_BIND:
    case REC_OVERLAY:
        walk_path(r->bind.target);
        walk_path(r->bind.path);
        break;
    case REC_SPACE_BIND:
        walk_path(r->space_bind.target);
        CHECK((r->space_bind.mode & 06000) == 0);
        break;
    case REC_PROC:
    case REC_DEVPTS:
    case REC_MASK:
        walk_path(r->point.target);
        break;
    case REC_HOSTNAME:
        walk_bytes(r->hostname.name, true);
        break;
    case REC_SYSCTL:
        walk_bytes(r->sysctl.name, true);
        walk_bytes(r->sysctl.value, true);
        break;
    default:
        break;
    }
}

static void try(const uint8_t *data, size_t length)
{
    uint32_t at;
    uint8_t *copy = exact_copy(data, length);
    if (plan_parse(copy, length, &plan, &at)) {
        CHECK(at == NONE && plan.count > 0 && plan.count <= PLAN_RECORDS_MAX);
        for (uint32_t i = 0; i < plan.count; i++) {
            CHECK((plan.records[i].type == REC_MODE) == (i == 0));
            walk(&plan.records[i]);
        }
    } else {
        CHECK(plan.count == 0);
    }
    free(copy);
}

/* The kinds of fields of each record, as in docs/wire.md: u a u32, q a u64, s a string. */
static const char *const layouts[] = {
    [REC_MODE] = "u",           [REC_UID_MAP] = "uuu", [REC_GID_MAP] = "uuu",  [REC_AGENT] = "uu",
    [REC_HOSTNAME] = "s",       [REC_SPACE] = "qq",    [REC_IDMAP] = "uuuuuu", [REC_ROOT] = "uuus",
    [REC_DIR] = "uuus",         [REC_FILE] = "uuuss",  [REC_LINK] = "ss",      [REC_BIND] = "uuuss",
    [REC_SPACE_BIND] = "uuuus", [REC_PROC] = "s",      [REC_DEVPTS] = "s",     [REC_MASK] = "s",
    [REC_CAPS] = "q",           [REC_RLIMIT] = "uqq",  [REC_FILTER] = "u",     [REC_SYSCTL] = "ss",
    [REC_OVERLAY] = "uuss",
};
#define LAYOUTS (sizeof layouts / sizeof layouts[0])

static uint8_t next(const uint8_t **data, size_t *left)
{
    if (*left == 0)
        return 0;
    (*left)--;
    return *(*data)++;
}

static void put_field(struct blob *body, char kind, const uint8_t **data, size_t *left)
{
    uint8_t first = next(data, left);
    if (kind == 's') {
        size_t n = first % 16;
        put_u32(body, (uint32_t)n);
        while (n-- > 0)
            put(body, &(uint8_t){next(data, left)}, 1);
    } else {
        put_number(body, first == 255 ? ~0ULL : first, kind == 'q' ? 8 : 4);
    }
}

/* A plan whose lengths and counts are right, so that the fuzzer can play with what is in it. */
static struct blob well_formed(const uint8_t *data, size_t left)
{
    struct blob records = {0}, all = {0};
    uint32_t count = 0;
    do {
        uint8_t choice = next(&data, &left);
        size_t type = count == 0 ? REC_MODE : choice % LAYOUTS;
        struct blob body = {0};
        for (const char *kind = layouts[type] ? layouts[type] : ""; *kind; kind++)
            put_field(&body, *kind, &data, &left);
        put_u32(&records, (uint32_t)type);
        put_u32(&records, (uint32_t)body.length);
        put(&records, body.data, body.length);
        free(body.data);
        count++;
    } while (left > 0);
    put(&all, PLAN_MAGIC, 8);
    put_u32(&all, (uint32_t)(16 + records.length));
    put_u32(&all, count);
    put(&all, records.data, records.length);
    free(records.data);
    return all;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    try(data, length);
    struct blob b = well_formed(data, length);
    try(b.data, b.length);
    free(b.data);
    return 0;
}
