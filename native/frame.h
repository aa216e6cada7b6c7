/* The frames of docs/wire.md: header and command, decoded in place; and a small writer. Pure. */
#ifndef KIS_FRAME_H
#define KIS_FRAME_H

#include "cursor.h"
#include "wire.h"

struct frame {
    uint16_t type, flags;
    uint32_t id, generation;
    struct bytes payload;
};

/* One packet is one frame; false for a short header, another length, or another generation. */
bool frame_parse(const uint8_t *packet, size_t length, struct frame *frame);

struct limit {
    uint32_t resource;
    uint64_t soft, hard;
};

/* The command of an EXEC frame. argv and envp are NULL-terminated arrays of C strings inside the
 * blob itself (which is changed), allocated with malloc. */
struct command {
    uint32_t uid, gid, flags, umask;
    uint64_t capabilities;
    char *cwd;
    char **argv, **envp;
    uint32_t argc, envc, limit_count;
    const uint8_t *limits;
};

bool command_parse(uint8_t *blob, size_t length, struct command *command);
void command_free(struct command *command);
struct limit command_limit(const struct command *command, uint32_t i);

struct writer {
    uint8_t *data;
    size_t size, used;
    bool full;
};

void write_u32(struct writer *w, uint32_t value);
void write_u64(struct writer *w, uint64_t value);
void write_str(struct writer *w, const char *text, size_t length);
void write_header(uint8_t header[FRAME_HEADER_BYTES], uint16_t type, uint32_t id, uint32_t length);

#endif
