/* The plan blob of docs/wire.md, decoded in place. Pure: no I/O, no allocation; the records point
 * into the blob, which must outlive them. */
#ifndef KIS_PLAN_H
#define KIS_PLAN_H

#include "cursor.h"
#include "wire.h"

struct idmap_entry {
    uint32_t kind, on_disk, outside, count;
};

struct plan_record {
    uint16_t type;
    union {
        struct { uint32_t bits; } mode;
        struct { uint32_t inside, outside, count; } map;
        struct { uint32_t uid, gid; } agent;
        struct { struct bytes name; } hostname;
        struct { uint64_t bytes, inodes; } space;
        struct { uint32_t index, count; const uint8_t *entries; } idmap;
        struct { uint32_t kind, source, idmap; struct bytes path; } root;
        struct { uint32_t mode, uid, gid; struct bytes path, content; } node;
        struct { struct bytes path, target; } link;
        struct { uint32_t source, attributes, idmap; struct bytes target, path; } bind;
        struct { uint32_t mode, uid, gid, attributes; struct bytes target; } space_bind;
        struct { struct bytes target; } point;
        struct { uint64_t mask; } caps;
        struct { uint32_t resource; uint64_t soft, hard; } rlimit;
        struct { uint32_t number; } filter;
        struct { struct bytes name, value; } sysctl;
    };
};

struct plan {
    uint32_t mode;
    uint32_t count;
    struct plan_record records[PLAN_RECORDS_MAX];
};

/* False for anything but a whole, well-formed plan; *at then holds the number of the bad record. */
bool plan_parse(const uint8_t *blob, size_t length, struct plan *plan, uint32_t *at);

/* Entry `i` of an IDMAP record; i < record->idmap.count. */
struct idmap_entry plan_idmap_entry(const struct plan_record *record, uint32_t i);

/* The source index and idmap index a record uses, or NONE. */
uint32_t plan_source(const struct plan_record *record);
uint32_t plan_idmap(const struct plan_record *record);

#endif
