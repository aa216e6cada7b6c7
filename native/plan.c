#include "plan.h"

#define PATH_BYTES_MAX 4095u
#define IDMAP_ENTRIES_MAX 64u
#define IDMAP_ENTRY_BYTES 16u

/* Absolute and normalised: what the engine resolved, nothing that a lookup could reinterpret. */
static bool is_path(struct bytes path, bool root_allowed)
{
    if (path.length == 0 || path.length > PATH_BYTES_MAX || path.data[0] != '/')
        return false;
    if (path.length == 1)
        return root_allowed;
    uint32_t start = 1;
    for (uint32_t i = 1; i <= path.length; i++) {
        if (i < path.length && path.data[i] != '/')
            continue;
        const uint8_t *part = path.data + start;
        uint32_t n = i - start;
        if (n == 0 || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        start = i + 1;
    }
    return true;
}

static struct bytes read_path(struct cursor *c, bool root_allowed)
{
    struct bytes path = cursor_str(c);
    if (!is_path(path, root_allowed))
        c->bad = true;
    return path;
}

static void read_idmap(struct cursor *c, struct plan_record *r)
{
    r->idmap.index = cursor_u32(c);
    r->idmap.count = cursor_u32(c);
    if (r->idmap.index == 0 || r->idmap.index == NONE || r->idmap.count == 0 ||
        r->idmap.count > IDMAP_ENTRIES_MAX)
        c->bad = true;
    else
        r->idmap.entries = cursor_take(c, (size_t)r->idmap.count * IDMAP_ENTRY_BYTES);
    for (uint32_t i = 0; !c->bad && i < r->idmap.count; i++)
        if (plan_idmap_entry(r, i).kind > 1)
            c->bad = true;
}

static void read_root(struct cursor *c, struct plan_record *r)
{
    r->root.kind = cursor_u32(c);
    r->root.source = cursor_u32(c);
    r->root.idmap = cursor_u32(c);
    if (r->root.kind == ROOT_OVERLAY) {
        r->root.path = read_path(c, true);
        c->bad = c->bad || r->root.source == NONE;
    } else {
        r->root.path = cursor_str(c);
        c->bad = c->bad || r->root.kind != ROOT_SKELETON || r->root.source != NONE ||
                 r->root.idmap != NONE || r->root.path.length != 0;
    }
}

static void read_bind(struct cursor *c, struct plan_record *r)
{
    r->bind.source = cursor_u32(c);
    r->bind.attributes = r->type == REC_BIND ? cursor_u32(c) : 0;
    r->bind.idmap = cursor_u32(c);
    r->bind.target = read_path(c, false);
    r->bind.path = read_path(c, true);
    c->bad = c->bad || r->bind.source == NONE || r->bind.attributes > BIND_ALL;
}

static void read_node(struct cursor *c, struct plan_record *r)
{
    r->node.mode = cursor_u32(c);
    r->node.uid = cursor_u32(c);
    r->node.gid = cursor_u32(c);
    r->node.path = read_path(c, false);
    if (r->type == REC_FILE)
        r->node.content = cursor_bytes(c);
    c->bad = c->bad || r->node.mode > 01777; /* no set-id bit, ever */
}

static void read_space_bind(struct cursor *c, struct plan_record *r)
{
    r->space_bind.mode = cursor_u32(c);
    r->space_bind.uid = cursor_u32(c);
    r->space_bind.gid = cursor_u32(c);
    r->space_bind.attributes = cursor_u32(c);
    r->space_bind.target = read_path(c, false);
    c->bad = c->bad || r->space_bind.mode > 01777 || r->space_bind.attributes > BIND_ALL;
}

static void read_body(struct cursor *c, struct plan_record *r)
{
    switch (r->type) {
    case REC_MODE:
        r->mode.bits = cursor_u32(c);
        c->bad = c->bad || r->mode.bits > MODE_ALL;
        break;
    case REC_UID_MAP:
    case REC_GID_MAP:
        r->map.inside = cursor_u32(c);
        r->map.outside = cursor_u32(c);
        r->map.count = cursor_u32(c);
        c->bad = c->bad || r->map.count == 0;
        break;
    case REC_AGENT:
        r->agent.uid = cursor_u32(c);
        r->agent.gid = cursor_u32(c);
        break;
    case REC_HOSTNAME:
        r->hostname.name = cursor_str(c);
        c->bad = c->bad || r->hostname.name.length == 0 || r->hostname.name.length > 63;
        break;
    case REC_SPACE:
        r->space.bytes = cursor_u64(c);
        r->space.inodes = cursor_u64(c);
        c->bad = c->bad || r->space.bytes == 0 || r->space.inodes == 0; /* 0 means unlimited to tmpfs */
        break;
    case REC_IDMAP:
        read_idmap(c, r);
        break;
    case REC_ROOT:
        read_root(c, r);
        break;
    case REC_DIR:
    case REC_FILE:
        read_node(c, r);
        break;
    case REC_LINK:
        r->link.path = read_path(c, false);
        r->link.target = cursor_str(c);
        c->bad = c->bad || r->link.target.length == 0 || r->link.target.length > PATH_BYTES_MAX;
        break;
    case REC_BIND:
    case REC_OVERLAY:
        read_bind(c, r);
        break;
    case REC_SPACE_BIND:
        read_space_bind(c, r);
        break;
    case REC_PROC:
    case REC_DEVPTS:
    case REC_MASK:
        r->point.target = read_path(c, false);
        break;
    case REC_CAPS:
        r->caps.mask = cursor_u64(c);
        break;
    case REC_RLIMIT:
        r->rlimit.resource = cursor_u32(c);
        r->rlimit.soft = cursor_u64(c);
        r->rlimit.hard = cursor_u64(c);
        c->bad = c->bad || r->rlimit.resource > 15 || r->rlimit.soft > r->rlimit.hard;
        break;
    case REC_FILTER:
        r->filter.number = cursor_u32(c);
        c->bad = c->bad || r->filter.number != FILTER_PAYLOAD;
        break;
    case REC_SYSCTL:
        r->sysctl.name = cursor_str(c);
        r->sysctl.value = cursor_str(c);
        c->bad = c->bad || r->sysctl.name.length > 255 || r->sysctl.value.length > 255;
        break;
    default:
        c->bad = true;
    }
}

bool plan_parse(const uint8_t *blob, size_t length, struct plan *plan, uint32_t *at)
{
    *at = NONE;
    plan->mode = 0;
    plan->count = 0;
    if (length > PLAN_BYTES_MAX)
        return false;
    struct cursor c = {blob, length, false};
    const uint8_t *magic = cursor_take(&c, 8);
    uint32_t total = cursor_u32(&c);
    uint32_t count = cursor_u32(&c);
    if (c.bad || memcmp(magic, PLAN_MAGIC, 8) != 0 || total != length || count == 0 ||
        count > PLAN_RECORDS_MAX)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        struct plan_record *r = &plan->records[i];
        *at = i;
        memset(r, 0, sizeof *r);
        r->type = cursor_u16(&c);
        uint16_t zero = cursor_u16(&c);
        struct bytes body = cursor_bytes(&c);
        struct cursor inner = {body.data, body.length, c.bad || zero != 0};
        read_body(&inner, r);
        /* MODE leads, once: what every other record means may depend on it. */
        if (!cursor_done(&inner) || (r->type == REC_MODE) != (i == 0))
            return false;
    }
    *at = NONE;
    if (!cursor_done(&c))
        return false;
    plan->mode = plan->records[0].mode.bits;
    plan->count = count;
    return true;
}

struct idmap_entry plan_idmap_entry(const struct plan_record *record, uint32_t i)
{
    struct cursor c = {record->idmap.entries + (size_t)i * IDMAP_ENTRY_BYTES, IDMAP_ENTRY_BYTES, false};
    struct idmap_entry entry;
    entry.kind = cursor_u32(&c);
    entry.on_disk = cursor_u32(&c);
    entry.outside = cursor_u32(&c);
    entry.count = cursor_u32(&c);
    return entry;
}

uint32_t plan_source(const struct plan_record *record)
{
    if (record->type == REC_BIND || record->type == REC_OVERLAY)
        return record->bind.source;
    return record->type == REC_ROOT ? record->root.source : NONE;
}

uint32_t plan_idmap(const struct plan_record *record)
{
    if (record->type == REC_BIND || record->type == REC_OVERLAY)
        return record->bind.idmap;
    return record->type == REC_ROOT ? record->root.idmap : NONE;
}
