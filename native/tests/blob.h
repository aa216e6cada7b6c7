/* Writes blobs byte by byte, independently of the writer in frame.c, so that tests can also write wrong ones. */
#ifndef KIS_TESTS_BLOB_H
#define KIS_TESTS_BLOB_H

#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

struct blob {
    uint8_t *data;
    size_t length, room;
};

static inline void put(struct blob *b, const void *bytes, size_t n)
{
    if (b->length + n >= b->room) {
        b->room = 2 * (b->length + n) + 64;
        b->data = realloc(b->data, b->room);
        CHECK(b->data);
    }
    if (n > 0)
        memcpy(b->data + b->length, bytes, n);
    b->length += n;
}

static inline void put_number(struct blob *b, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        put(b, &(uint8_t){(uint8_t)(value >> (8 * i))}, 1);
}

static inline void put_u32(struct blob *b, uint32_t value)
{
    put_number(b, value, 4);
}

static inline void put_u64(struct blob *b, uint64_t value)
{
    put_number(b, value, 8);
}

static inline void put_text(struct blob *b, const char *text)
{
    put_u32(b, (uint32_t)strlen(text));
    put(b, text, strlen(text));
}

/* The same bytes in an allocation of exactly their size, so that AddressSanitizer sees the first one past it. */
static inline uint8_t *exact_copy(const uint8_t *data, size_t length)
{
    uint8_t *copy = malloc(length ? length : 1);
    CHECK(copy);
    if (length > 0)
        memcpy(copy, data, length);
    return copy;
}

#endif
