#include "frame.h"

#include <stdlib.h>

#define LIMITS_MAX 16u
#define LIMIT_BYTES 20u

bool frame_parse(const uint8_t *packet, size_t length, struct frame *frame)
{
    struct cursor c = {packet, length, length > FRAME_HEADER_BYTES + FRAME_PAYLOAD_MAX};
    uint32_t payload = cursor_u32(&c);
    frame->type = cursor_u16(&c);
    frame->flags = cursor_u16(&c);
    frame->id = cursor_u32(&c);
    frame->generation = cursor_u32(&c);
    frame->payload.length = payload;
    frame->payload.data = cursor_take(&c, payload);
    return cursor_done(&c) && frame->generation == FRAME_GENERATION;
}

/* A string becomes a C string by moving it over its own length field, which leaves room for NUL. */
static char *take_string(struct cursor *c, uint8_t *blob, const uint8_t *start)
{
    struct bytes s = cursor_str(c);
    if (c->bad)
        return NULL;
    uint8_t *at = blob + (s.data - start) - 4;
    memmove(at, s.data, s.length);
    at[s.length] = 0;
    return (char *)at;
}

static char **take_strings(struct cursor *c, uint8_t *blob, const uint8_t *start, uint32_t *count)
{
    uint32_t n = cursor_u32(c);
    if (c->bad || n > c->left / 4) { /* each takes four bytes at least: bounds the allocation */
        c->bad = true;
        return NULL;
    }
    char **list = malloc(((size_t)n + 1) * sizeof *list);
    if (!list) {
        c->bad = true;
        return NULL;
    }
    uint32_t i = 0;
    while (i < n && !c->bad)
        list[i++] = take_string(c, blob, start);
    list[i] = NULL;
    *count = n;
    return list;
}

bool command_parse(uint8_t *blob, size_t length, struct command *command)
{
    struct cursor c = {blob, length, false};
    memset(command, 0, sizeof *command);
    command->uid = cursor_u32(&c);
    command->gid = cursor_u32(&c);
    command->capabilities = cursor_u64(&c);
    command->flags = cursor_u32(&c);
    command->umask = cursor_u32(&c);
    command->cwd = take_string(&c, blob, blob);
    command->argv = take_strings(&c, blob, blob, &command->argc);
    command->envp = take_strings(&c, blob, blob, &command->envc);
    command->limit_count = cursor_u32(&c);
    if (command->limit_count > LIMITS_MAX)
        c.bad = true;
    else
        command->limits = cursor_take(&c, (size_t)command->limit_count * LIMIT_BYTES);
    return cursor_done(&c) && command->argc > 0 && command->argv[0][0] != 0 &&
           command->flags <= COMMAND_ALL && command->umask <= 0777;
}

void command_free(struct command *command)
{
    free(command->argv);
    free(command->envp);
}

struct limit command_limit(const struct command *command, uint32_t i)
{
    struct cursor c = {command->limits + (size_t)i * LIMIT_BYTES, LIMIT_BYTES, false};
    struct limit limit;
    limit.resource = cursor_u32(&c);
    limit.soft = cursor_u64(&c);
    limit.hard = cursor_u64(&c);
    return limit;
}

static uint8_t *writer_room(struct writer *w, size_t n)
{
    if (w->full || n > w->size - w->used) {
        w->full = true;
        return NULL;
    }
    uint8_t *at = w->data + w->used;
    w->used += n;
    return at;
}

void write_u32(struct writer *w, uint32_t value)
{
    uint8_t *p = writer_room(w, 4);
    for (int i = 0; p && i < 4; i++)
        p[i] = (uint8_t)(value >> (8 * i));
}

void write_u64(struct writer *w, uint64_t value)
{
    write_u32(w, (uint32_t)value);
    write_u32(w, (uint32_t)(value >> 32));
}

void write_str(struct writer *w, const char *text, size_t length)
{
    if (w->size - w->used < 4 + length) {
        w->full = true;
        return;
    }
    write_u32(w, (uint32_t)length);
    uint8_t *p = writer_room(w, length);
    if (p && length)
        memcpy(p, text, length);
}

void write_header(uint8_t header[FRAME_HEADER_BYTES], uint16_t type, uint32_t id, uint32_t length)
{
    struct writer w = {header, FRAME_HEADER_BYTES, 0, false};
    write_u32(&w, length);
    write_u32(&w, type); /* flags, the upper half, are zero from this side */
    write_u32(&w, id);
    write_u32(&w, FRAME_GENERATION);
}
