/*
 * libFuzzer on the plan reader. Each input is tried as a whole blob and as the records of one whose
 * head is right, so that the fuzzer need not guess magic and length. What is accepted is walked, and held
 * against the promises that the launcher relies on.
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    try(data, length);
    if (length == 0)
        return 0;
    struct blob b = {0};
    put(&b, PLAN_MAGIC, 8);
    put_u32(&b, (uint32_t)(16 + 12 + length - 1));
    put_u32(&b, data[0] + 1U);
    put(&b, "\1\0\0\0\4\0\0\0\0\0\0\0", 12); /* MODE */
    put(&b, data + 1, length - 1);
    try(b.data, b.length);
    free(b.data);
    return 0;
}
