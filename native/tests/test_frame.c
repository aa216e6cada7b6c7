/* The frame and command readers, and the writer: what is written is read back, what is not whole is refused. */
#include "blob.h"
#include "frame.h"

static struct blob packet(uint32_t length, uint16_t type, uint16_t flags, uint32_t id, uint32_t generation)
{
    struct blob b = {0};
    put_u32(&b, length);
    put_number(&b, type, 2);
    put_number(&b, flags, 2);
    put_u32(&b, id);
    put_u32(&b, generation);
    return b;
}

static void test_a_frame_is_one_whole_packet(void)
{
    struct frame frame;
    struct blob b = packet(3, FRAME_EXEC, FLAG_MORE, 0x01020304, FRAME_GENERATION);
    put(&b, "abc", 3);
    uint8_t *copy = exact_copy(b.data, b.length);
    CHECK(frame_parse(copy, b.length, &frame));
    CHECK(frame.type == FRAME_EXEC && frame.flags == FLAG_MORE && frame.id == 0x01020304);
    CHECK(frame.payload.length == 3 && memcmp(frame.payload.data, "abc", 3) == 0);
    free(copy);
    for (size_t n = 0; n < b.length; n++) {
        copy = exact_copy(b.data, n);
        CHECK(!frame_parse(copy, n, &frame));
        free(copy);
    }
    put(&b, "d", 1);
    CHECK(!frame_parse(b.data, b.length, &frame));
    free(b.data);
}

static void test_frames_are_bounded(void)
{
    struct frame frame;
    static uint8_t zeroes[FRAME_PAYLOAD_MAX + 1];
    struct blob b = packet(FRAME_PAYLOAD_MAX, FRAME_EXEC, 0, 1, FRAME_GENERATION);
    put(&b, zeroes, FRAME_PAYLOAD_MAX);
    CHECK(frame_parse(b.data, b.length, &frame));
    free(b.data);
    b = packet(FRAME_PAYLOAD_MAX + 1, FRAME_EXEC, 0, 1, FRAME_GENERATION);
    put(&b, zeroes, FRAME_PAYLOAD_MAX + 1);
    CHECK(!frame_parse(b.data, b.length, &frame));
    free(b.data);
    b = packet(0xffffffff, FRAME_EXEC, 0, 1, FRAME_GENERATION); /* plus the header: 15 in 32 bits */
    CHECK(!frame_parse(b.data, b.length, &frame));
    free(b.data);
    b = packet(0, FRAME_SHUTDOWN, 0, 1, FRAME_GENERATION + 1);
    CHECK(!frame_parse(b.data, b.length, &frame));
    free(b.data);
}

struct draft {
    uint32_t flags, umask, argc, envc, limits;
    const char *first;
};
static const struct draft ordinary = {COMMAND_ALL, 022, 3, 2, 1, "/bin/sh"};

static struct blob command_blob(struct draft d)
{
    struct blob b = {0};
    put_u32(&b, 1000);
    put_u32(&b, 1001);
    put_u64(&b, 0x8000000000000040ULL);
    put_u32(&b, d.flags);
    put_u32(&b, d.umask);
    put_text(&b, "/home/user");
    put_u32(&b, d.argc);
    for (uint32_t i = 0; i < d.argc; i++)
        put_text(&b, i == 0 ? d.first : "");
    put_u32(&b, d.envc);
    for (uint32_t i = 0; i < d.envc; i++)
        put_text(&b, i == 0 ? "A=b" : "\xff=\n");
    put_u32(&b, d.limits);
    for (uint32_t i = 0; i < d.limits; i++) {
        put_u32(&b, 7);
        put_u64(&b, 1024 + i);
        put_u64(&b, ~0ULL);
    }
    return b;
}

/* Parses a copy of exactly that length and gives it up again. */
static bool parses(const uint8_t *data, size_t length)
{
    struct command command;
    uint8_t *copy = exact_copy(data, length);
    bool good = command_parse(copy, length, &command);
    command_free(&command);
    free(copy);
    return good;
}

static bool accepts(struct draft d)
{
    struct blob b = command_blob(d);
    bool good = parses(b.data, b.length);
    free(b.data);
    return good;
}

static void test_a_command_is_read_back(void)
{
    struct blob b = command_blob(ordinary);
    struct command c;
    uint8_t *copy = exact_copy(b.data, b.length);
    CHECK(command_parse(copy, b.length, &c));
    CHECK(c.uid == 1000 && c.gid == 1001 && c.capabilities == 0x8000000000000040ULL);
    CHECK(c.flags == COMMAND_ALL && c.umask == 022 && strcmp(c.cwd, "/home/user") == 0);
    CHECK(c.argc == 3 && strcmp(c.argv[0], "/bin/sh") == 0 && c.argv[1][0] == 0 && c.argv[2][0] == 0);
    CHECK(c.argv[3] == NULL);
    CHECK(c.envc == 2 && strcmp(c.envp[0], "A=b") == 0 && strcmp(c.envp[1], "\xff=\n") == 0 && !c.envp[2]);
    CHECK(c.limit_count == 1);
    struct limit limit = command_limit(&c, 0);
    CHECK(limit.resource == 7 && limit.soft == 1024 && limit.hard == ~0ULL);
    command_free(&c);
    free(copy), free(b.data);
}

static void test_a_malformed_command_is_refused(void)
{
    struct draft d;
    CHECK(accepts(ordinary));
    d = ordinary, d.argc = 0;
    CHECK(!accepts(d)); /* execve without argv[0]: CVE-2021-4034 */
    d = ordinary, d.first = "";
    CHECK(!accepts(d));
    d = ordinary, d.flags = COMMAND_ALL + 1;
    CHECK(!accepts(d));
    d = ordinary, d.umask = 01000;
    CHECK(!accepts(d));
    d = ordinary, d.envc = 0;
    CHECK(accepts(d));
    d = ordinary, d.limits = 16;
    CHECK(accepts(d));
    d = ordinary, d.limits = 17;
    CHECK(!accepts(d));

    struct blob b = command_blob(ordinary);
    for (size_t n = 0; n < b.length; n++)
        CHECK(!parses(b.data, n));
    put(&b, "", 1);
    CHECK(!parses(b.data, b.length));
    b.length--;
    const size_t cwd = 24, argc = cwd + 4 + strlen("/home/user");
    b.data[cwd + 6] = 0; /* a NUL inside a string */
    CHECK(!parses(b.data, b.length));
    b.data[cwd + 6] = 'o';
    CHECK(parses(b.data, b.length));
    memset(b.data + argc, 0xff, 4); /* a count that no blob can hold, nor memory */
    CHECK(!parses(b.data, b.length));
    free(b.data);
}

static void test_the_writer(void)
{
    uint8_t room[32];
    struct writer w = {room, sizeof room, 0, false};
    write_u32(&w, 0x04030201);
    write_u64(&w, 0x0c0b0a0908070605ULL);
    write_str(&w, "hi", 2);
    CHECK(!w.full && w.used == 18);
    for (uint8_t i = 0; i < 12; i++)
        CHECK(room[i] == i + 1);
    CHECK(memcmp(room + 12, "\2\0\0\0hi", 6) == 0);
    write_str(&w, "more than is left", 17); /* all or nothing */
    CHECK(w.full && w.used == 18);
    write_u32(&w, 1);
    CHECK(w.full && w.used == 18);

    uint8_t header[FRAME_HEADER_BYTES];
    struct frame frame;
    write_header(header, FRAME_READY, 77, 0);
    CHECK(frame_parse(header, sizeof header, &frame));
    CHECK(frame.type == FRAME_READY && frame.flags == 0 && frame.id == 77);
}

int main(void)
{
    test_a_frame_is_one_whole_packet();
    test_frames_are_bounded();
    test_a_command_is_read_back();
    test_a_malformed_command_is_refused();
    test_the_writer();
    return 0;
}
