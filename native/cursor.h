/* A bounded reader over untrusted bytes: once a read would pass the end, everything it gives is
 * zero and `bad` stays set, so that a decoder checks once, at the end. Pure: no I/O. */
#ifndef KIS_CURSOR_H
#define KIS_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct bytes {
    const uint8_t *data;
    uint32_t length;
};

struct cursor {
    const uint8_t *next;
    size_t left;
    bool bad;
};

static inline const uint8_t *cursor_take(struct cursor *c, size_t n)
{
    if (c->bad || n > c->left) {
        c->bad = true;
        return NULL;
    }
    const uint8_t *at = c->next;
    c->next += n;
    c->left -= n;
    return at;
}

static inline uint16_t cursor_u16(struct cursor *c)
{
    const uint8_t *p = cursor_take(c, 2);
    return p ? (uint16_t)(p[0] | p[1] << 8) : 0;
}

static inline uint32_t cursor_u32(struct cursor *c)
{
    const uint8_t *p = cursor_take(c, 4);
    return p ? (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24 : 0;
}

static inline uint64_t cursor_u64(struct cursor *c)
{
    uint64_t low = cursor_u32(c);
    return low | (uint64_t)cursor_u32(c) << 32;
}

static inline struct bytes cursor_bytes(struct cursor *c)
{
    uint32_t length = cursor_u32(c);
    const uint8_t *data = cursor_take(c, length);
    return data ? (struct bytes){data, length} : (struct bytes){NULL, 0};
}

/* Text that will become a C string: a NUL in it would make two readers see two different names. */
static inline struct bytes cursor_str(struct cursor *c)
{
    struct bytes s = cursor_bytes(c);
    if (s.length && memchr(s.data, 0, s.length))
        c->bad = true;
    return s;
}

/* True when everything was read and nothing is left over. */
static inline bool cursor_done(const struct cursor *c)
{
    return !c->bad && c->left == 0;
}

#endif
