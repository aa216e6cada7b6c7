/* The plan reader: every record read back, and everything that is not a whole plan refused. */
#include "blob.h"
#include "plan.h"

static struct plan plan; /* a quarter of a megabyte: not for the stack */
static uint32_t bad_record;

static bool parses(const uint8_t *data, size_t length)
{
    uint8_t *copy = exact_copy(data, length);
    bool good = plan_parse(copy, length, &plan, &bad_record);
    free(copy);
    return good;
}

static struct blob record(uint16_t type, const struct blob *body)
{
    struct blob b = {0};
    put_number(&b, type, 2);
    put_number(&b, 0, 2);
    put_u32(&b, (uint32_t)body->length);
    put(&b, body->data, body->length);
    return b;
}

static struct blob whole(const struct blob *records, uint32_t count)
{
    struct blob b = {0};
    put(&b, PLAN_MAGIC, 8);
    put_u32(&b, (uint32_t)(16 + records->length));
    put_u32(&b, count);
    put(&b, records->data, records->length);
    return b;
}

/* MODE and one more record. */
static struct blob plan_with(uint16_t type, const struct blob *body)
{
    struct blob bits = {0}, records = {0};
    put_u32(&bits, MODE_PRIVILEGED);
    struct blob mode = record(REC_MODE, &bits), other = record(type, body);
    put(&records, mode.data, mode.length);
    put(&records, other.data, other.length);
    struct blob all = whole(&records, 2);
    free(bits.data), free(mode.data), free(other.data), free(records.data);
    return all;
}

/* The format of a body: u for u32, q for u64, t for text; the values follow. */
static struct blob body_of(const char *format, ...)
{
    struct blob b = {0};
    va_list values;
    va_start(values, format);
    for (const char *f = format; *f; f++) {
        if (*f == 'u')
            put_u32(&b, va_arg(values, uint32_t));
        else if (*f == 'q')
            put_u64(&b, va_arg(values, uint64_t));
        else
            put_text(&b, va_arg(values, const char *));
    }
    va_end(values);
    return b;
}

/* Takes the body. The plan stays readable through `held` until the next call. */
static bool accepts(uint16_t type, struct blob body)
{
    static uint8_t *held;
    free(held);
    struct blob b = plan_with(type, &body);
    held = exact_copy(b.data, b.length);
    bool good = plan_parse(held, b.length, &plan, &bad_record);
    if (!good)
        CHECK(bad_record == 1 && plan.count == 0);
    free(b.data), free(body.data);
    return good;
}

static bool is(struct bytes got, const char *text)
{
    return got.length == strlen(text) && memcmp(got.data, text, got.length) == 0;
}

static void test_each_record_is_read_back(void)
{
    const struct plan_record *r = &plan.records[1];

    CHECK(accepts(REC_UID_MAP, body_of("uuu", 0, 100000, 65536)));
    CHECK(plan.mode == MODE_PRIVILEGED && plan.count == 2);
    CHECK(r->map.inside == 0 && r->map.outside == 100000 && r->map.count == 65536);
    CHECK(accepts(REC_GID_MAP, body_of("uuu", 1, 2, 3)) && r->map.outside == 2);
    CHECK(accepts(REC_AGENT, body_of("uu", 65533, 65532)) && r->agent.uid == 65533 && r->agent.gid == 65532);
    CHECK(accepts(REC_HOSTNAME, body_of("t", "sandbox")) && is(r->hostname.name, "sandbox"));
    CHECK(accepts(REC_SPACE, body_of("qq", 1ULL << 40, 7ULL)));
    CHECK(r->space.bytes == 1ULL << 40 && r->space.inodes == 7);
    CHECK(accepts(REC_IDMAP, body_of("uuuuuuuuuu", 1, 2, 0, 1000, 100000, 1, 1, 1001, 100001, 2)));
    CHECK(r->idmap.index == 1 && r->idmap.count == 2);
    struct idmap_entry entry = plan_idmap_entry(r, 1);
    CHECK(entry.kind == 1 && entry.on_disk == 1001 && entry.outside == 100001 && entry.count == 2);
    CHECK(accepts(REC_ROOT, body_of("uuut", ROOT_SKELETON, NONE, NONE, "")) && plan_source(r) == NONE);
    CHECK(accepts(REC_ROOT, body_of("uuut", ROOT_OVERLAY, 3, 1, "/srv/root")));
    CHECK(plan_source(r) == 3 && plan_idmap(r) == 1 && is(r->root.path, "/srv/root"));
    CHECK(accepts(REC_DIR, body_of("uuut", 01777, 5, 6, "/tmp")));
    CHECK(r->node.mode == 01777 && r->node.uid == 5 && r->node.gid == 6 && is(r->node.path, "/tmp"));
    CHECK(accepts(REC_FILE, body_of("uuutt", 0400, 5, 6, "/etc/x y", "content")));
    CHECK(is(r->node.path, "/etc/x y") && is(r->node.content, "content"));
    CHECK(accepts(REC_LINK, body_of("tt", "/bin", "usr/bin")));
    CHECK(is(r->link.path, "/bin") && is(r->link.target, "usr/bin"));
    CHECK(accepts(REC_BIND, body_of("uuutt", 2, BIND_RDONLY | BIND_NODEV, 1, "/usr", "/")));
    CHECK(plan_source(r) == 2 && plan_idmap(r) == 1 && r->bind.attributes == (BIND_RDONLY | BIND_NODEV));
    CHECK(is(r->bind.target, "/usr") && is(r->bind.path, "/"));
    CHECK(accepts(REC_OVERLAY, body_of("uutt", 2, NONE, "/opt", "/srv")) && r->bind.attributes == 0);
    CHECK(accepts(REC_SPACE_BIND, body_of("uuuut", 0700, 1000, 1000, BIND_NOSUID, "/home/user")));
    CHECK(r->space_bind.uid == 1000 && is(r->space_bind.target, "/home/user"));
    CHECK(accepts(REC_PROC, body_of("t", "/proc")) && is(r->point.target, "/proc"));
    CHECK(accepts(REC_DEVPTS, body_of("t", "/dev/pts")) && is(r->point.target, "/dev/pts"));
    CHECK(accepts(REC_MASK, body_of("t", "/proc/keys")) && is(r->point.target, "/proc/keys"));
    CHECK(accepts(REC_CAPS, body_of("q", 0x8000000000000001ULL)) && r->caps.mask == 0x8000000000000001ULL);
    CHECK(accepts(REC_RLIMIT, body_of("uqq", 7, 1024ULL, ~0ULL)) && r->rlimit.hard == ~0ULL);
    CHECK(accepts(REC_FILTER, body_of("u", FILTER_PAYLOAD)) && r->filter.number == FILTER_PAYLOAD);
    CHECK(accepts(REC_SYSCTL, body_of("tt", "net/ipv4/ping_group_range", "0 65535")));
    CHECK(is(r->sysctl.name, "net/ipv4/ping_group_range") && is(r->sysctl.value, "0 65535"));
}

static void test_senseless_values_are_refused(void)
{
    CHECK(!accepts(REC_MODE, body_of("u", 0)));             /* a second MODE */
    CHECK(!accepts(0, body_of("")));                        /* unknown types */
    CHECK(!accepts(REC_OVERLAY + 1, body_of("u", 0)));
    CHECK(!accepts(REC_UID_MAP, body_of("uuu", 0, 0, 0)));  /* a map of nothing */
    CHECK(!accepts(REC_HOSTNAME, body_of("t", "")));
    CHECK(!accepts(REC_SPACE, body_of("qq", 0ULL, 1ULL)));  /* to tmpfs 0 means without bound */
    CHECK(!accepts(REC_SPACE, body_of("qq", 1ULL, 0ULL)));
    CHECK(!accepts(REC_IDMAP, body_of("uuuuuu", 0, 1, 0, 0, 0, 1))); /* index 0 is the sandbox's own */
    CHECK(!accepts(REC_IDMAP, body_of("uu", 1, 0)));
    CHECK(!accepts(REC_IDMAP, body_of("uuuuuu", 1, 2, 0, 0, 0, 1))); /* fewer entries than it says */
    CHECK(!accepts(REC_IDMAP, body_of("uu", 1, 0x10000000)));        /* 16 times that is 0 in 32 bits */
    CHECK(!accepts(REC_IDMAP, body_of("uuuuuu", 1, 1, 2, 0, 0, 1)));
    CHECK(!accepts(REC_ROOT, body_of("uuut", ROOT_OVERLAY, NONE, NONE, "/srv")));
    CHECK(!accepts(REC_ROOT, body_of("uuut", ROOT_SKELETON, 0, NONE, "")));
    CHECK(!accepts(REC_ROOT, body_of("uuut", 2, NONE, NONE, "")));
    CHECK(!accepts(REC_DIR, body_of("uuut", 04755, 0, 0, "/d"))); /* set-id bits */
    CHECK(!accepts(REC_DIR, body_of("uuut", 02755, 0, 0, "/d")));
    CHECK(!accepts(REC_FILE, body_of("uuutt", 04755, 0, 0, "/f", "")));
    CHECK(!accepts(REC_SPACE_BIND, body_of("uuuut", 02777, 0, 0, 0, "/d")));
    CHECK(!accepts(REC_SPACE_BIND, body_of("uuuut", 0777, 0, 0, 16, "/d")));
    CHECK(!accepts(REC_BIND, body_of("uuutt", NONE, 0, NONE, "/d", "/s")));
    CHECK(!accepts(REC_BIND, body_of("uuutt", 0, 16, NONE, "/d", "/s")));
    CHECK(!accepts(REC_LINK, body_of("tt", "/l", "")));
    CHECK(!accepts(REC_RLIMIT, body_of("uqq", 16, 1ULL, 1ULL)));
    CHECK(!accepts(REC_RLIMIT, body_of("uqq", 7, 2ULL, 1ULL)));
    CHECK(!accepts(REC_FILTER, body_of("u", 0)));
    CHECK(!accepts(REC_FILTER, body_of("u", 2)));
}

static void test_paths_must_be_absolute_and_normalised(void)
{
    static const char *const good[] = {"/a", "/a/b", "/...", "/.a", "/a..", "/ ", "/a\nb", "/\xff", "/-v"};
    static const char *const bad[] = {"",     "/",      "a",     "a/b",  "//",    "/a/",  "//a",
                                      "/a//b", "/.",     "/..",   "/a/.", "/a/..", "/../a", "/a/./b"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        CHECK(accepts(REC_PROC, body_of("t", good[i])));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK(!accepts(REC_PROC, body_of("t", bad[i])));

    char longest[4097] = "/";
    memset(longest + 1, 'x', 4094);
    CHECK(accepts(REC_PROC, body_of("t", longest)));
    longest[4095] = 'x';
    CHECK(!accepts(REC_PROC, body_of("t", longest)));

    struct blob with_nul = {0};
    put_u32(&with_nul, 4);
    put(&with_nul, "/a\0b", 4);
    CHECK(!accepts(REC_PROC, with_nul));
}

static void test_every_byte_counts(void)
{
    struct blob body = body_of("uuutt", 2, 0, NONE, "/usr", "/usr");
    struct blob b = plan_with(REC_BIND, &body);
    CHECK(parses(b.data, b.length));
    for (size_t n = 0; n < b.length; n++)
        CHECK(!parses(b.data, n));
    put(&b, "", 1);
    CHECK(!parses(b.data, b.length));
    b.length--;
    b.data[18] = 1; /* the half of a record's head that must be zero */
    CHECK(!parses(b.data, b.length) && bad_record == 0);
    free(b.data);

    put(&body, "", 1); /* a byte at the end of a body */
    CHECK(!accepts(REC_BIND, body));
}

static void test_the_head_must_agree_with_the_rest(void)
{
    struct blob bits = {0};
    put_u32(&bits, 0);
    struct blob mode = record(REC_MODE, &bits);
    struct blob b = whole(&mode, 1);
    CHECK(parses(b.data, b.length) && plan.mode == 0 && plan.count == 1);
    static const struct {
        size_t at;
        uint8_t value;
    } changes[] = {{0, 'k'}, {7, '2'}, {8, 0}, {8, 255}, {12, 0}, {12, 2}, {15, 1}, {16, REC_CAPS}, {24, 32}};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        uint8_t before = b.data[changes[i].at];
        b.data[changes[i].at] = changes[i].value;
        CHECK(!parses(b.data, b.length));
        b.data[changes[i].at] = before;
    }
    CHECK(parses(b.data, b.length));
    free(b.data), free(mode.data), free(bits.data);
}

static void test_bounds(void)
{
    struct blob bits = {0}, mask = {0}, records = {0};
    put_u32(&bits, 0);
    put_u64(&mask, 0);
    struct blob mode = record(REC_MODE, &bits), caps = record(REC_CAPS, &mask);
    put(&records, mode.data, mode.length);
    for (uint32_t i = 1; i < PLAN_RECORDS_MAX; i++)
        put(&records, caps.data, caps.length);
    struct blob most = whole(&records, PLAN_RECORDS_MAX);
    CHECK(parses(most.data, most.length) && plan.count == PLAN_RECORDS_MAX);
    put(&records, caps.data, caps.length);
    struct blob more = whole(&records, PLAN_RECORDS_MAX + 1);
    CHECK(!parses(more.data, more.length));
    free(most.data), free(more.data), free(records.data), free(mode.data), free(caps.data);
    free(bits.data), free(mask.data);

    struct blob file = body_of("uuut", 0400, 0, 0, "/f");
    size_t room = PLAN_BYTES_MAX - 16 - 12 - 8 - file.length - 4;
    uint8_t *content = calloc(1, room + 1);
    CHECK(content);
    for (size_t extra = 0; extra < 2; extra++) {
        struct blob body = {0};
        put(&body, file.data, file.length);
        put_u32(&body, (uint32_t)(room + extra));
        put(&body, content, room + extra);
        struct blob b = plan_with(REC_FILE, &body);
        CHECK(b.length == PLAN_BYTES_MAX + extra);
        CHECK(parses(b.data, b.length) == (extra == 0));
        free(b.data), free(body.data);
    }
    free(content), free(file.data);
}

int main(void)
{
    test_each_record_is_read_back();
    test_senseless_values_are_refused();
    test_paths_must_be_absolute_and_normalised();
    test_every_byte_counts();
    test_the_head_must_agree_with_the_rest();
    test_bounds();
    return 0;
}
