/* libFuzzer on the frame reader and the command reader: nothing outside the packet is touched, and what is
 * accepted holds what the agent relies on. */
#include "blob.h"
#include "frame.h"

static void check_string(const char *text, const uint8_t *blob, size_t length)
{
    const uint8_t *at = (const uint8_t *)text;
    CHECK(at >= blob && at + strlen(text) < blob + length);
}

static void try_command(const uint8_t *data, size_t length)
{
    struct command c;
    uint8_t *blob = exact_copy(data, length);
    if (command_parse(blob, length, &c)) {
        CHECK(c.argc > 0 && c.argv[0][0] != 0 && c.argv[c.argc] == NULL && c.envp[c.envc] == NULL);
        check_string(c.cwd, blob, length);
        for (uint32_t i = 0; i < c.argc; i++)
            check_string(c.argv[i], blob, length);
        for (uint32_t i = 0; i < c.envc; i++)
            check_string(c.envp[i], blob, length);
        for (uint32_t i = 0; i < c.limit_count; i++)
            command_limit(&c, i);
    }
    command_free(&c);
    free(blob);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length)
{
    struct frame frame;
    uint8_t *packet = exact_copy(data, length);
    if (frame_parse(packet, length, &frame)) {
        CHECK(frame.payload.length + FRAME_HEADER_BYTES == length && frame.generation == FRAME_GENERATION);
        try_command(frame.payload.data, frame.payload.length);
    }
    free(packet);
    try_command(data, length);
    return 0;
}
