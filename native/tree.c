#define _GNU_SOURCE
#include "tree.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "report.h"
#include "sys.h"

/* Every look-up below the new root: nothing above it, no link of any kind on the way. Creating
 * through a link while the host is in view is how CVE-2026-87766 and CVE-2024-45310 wrote there. */
#define BENEATH (RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)

#define OVERLAYS_MAX 64

static struct {
    int space;        /* the tmpfs of all writable room */
    int root;         /* the new root mount */
    int proc;         /* the sandbox's own procfs */
    unsigned serial;  /* for names in the space */
    dev_t ours[OVERLAYS_MAX + 1]; /* devices of the space and of the overlays above it */
    unsigned ours_count;
    int overlays[OVERLAYS_MAX]; /* of OVERLAY records: read-only once all is in its place */
    unsigned overlay_count;
    int mask_file, mask_directory;
    uint32_t uid, gid; /* who we are while building: owner of what needs no chown */
    uint32_t record;   /* the record at work, for faults */
    int parent;        /* directory of the last record, and its path */
    char parent_path[4096];
} tree = {.space = -1, .root = -1, .proc = -1, .mask_file = -1, .mask_directory = -1, .record = NONE, .parent = -1};

static _Noreturn void failed(uint32_t step, const char *detail)
{
    fault(step, errno, tree.record, detail);
}

/* A C string of a plan's path, without the leading slash: relative to the new root. */
static char *relative(struct bytes path, char text[4096])
{
    memcpy(text, path.data + 1, path.length - 1);
    text[path.length - 1] = 0;
    return text;
}

static unsigned mount_attributes(uint32_t bind)
{
    return (bind & BIND_RDONLY ? MOUNT_ATTR_RDONLY : 0u) | (bind & BIND_NOSUID ? MOUNT_ATTR_NOSUID : 0u) |
           (bind & BIND_NODEV ? MOUNT_ATTR_NODEV : 0u) | (bind & BIND_NOEXEC ? MOUNT_ATTR_NOEXEC : 0u);
}

int tree_set_attributes(int mount, uint32_t bind, int userns)
{
    struct mount_attr attr = {
        .attr_set = mount_attributes(bind) | (userns >= 0 ? MOUNT_ATTR_IDMAP : 0u),
        .propagation = 1 << 18, /* MS_PRIVATE: what the host mounts later does not appear inside */
        .userns_fd = userns >= 0 ? (uint64_t)userns : 0,
    };
    return sys_mount_setattr(mount, AT_RECURSIVE, &attr);
}

void tree_clone_sources(const struct plan *plan, struct sources *sources)
{
    for (uint32_t i = 0; i < plan->count; i++) {
        uint32_t source = plan_source(&plan->records[i]);
        if (source == NONE)
            continue;
        sources->trees[i] = sys_open_tree(sources->descriptors[source], "",
                                          AT_EMPTY_PATH | AT_RECURSIVE | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        if (sources->trees[i] < 0)
            fault(STEP_SOURCE, errno, i, "clone");
    }
}

/* Without privilege a host descriptor cannot be cloned from inside (EINVAL), so the path it was
 * resolved to is opened again and must lead to the very same inode. */
static int reopen_source(const struct sources *sources, uint32_t source, struct bytes path)
{
    char text[4097] = "/";
    relative(path, text + 1);
    int again = sys_openat2(AT_FDCWD, text, O_PATH | O_NOFOLLOW, 0,
                            RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS);
    if (again < 0)
        failed(STEP_SOURCE, "reopen");
    struct stat given, found;
    if (fstat(sources->descriptors[source], &given) < 0 || fstat(again, &found) < 0)
        failed(STEP_SOURCE, "compare");
    if (given.st_dev != found.st_dev || given.st_ino != found.st_ino ||
        (given.st_mode & S_IFMT) != (found.st_mode & S_IFMT)) {
        errno = ESTALE;
        failed(STEP_SOURCE, "another file stands there now");
    }
    int clone = sys_open_tree(again, "", AT_EMPTY_PATH | AT_RECURSIVE | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (clone < 0)
        failed(STEP_SOURCE, "clone");
    close(again);
    return clone;
}

static int take_source(struct sources *sources, uint32_t source, struct bytes path, uint32_t attributes)
{
    if (sources->trees[tree.record] >= 0) /* attributes and id map were set on the host side */
        return sources->trees[tree.record];
    int clone = reopen_source(sources, source, path);
    if (tree_set_attributes(clone, attributes, -1) < 0)
        failed(STEP_MOUNT, "attributes");
    return clone;
}

static void own(int directory, const char *name, uint32_t uid, uint32_t gid)
{
    if ((uid != tree.uid || gid != tree.gid) && fchownat(directory, name, uid, gid, AT_SYMLINK_NOFOLLOW) < 0)
        failed(STEP_TARGET, "chown");
}

static void note_ours(int mount)
{
    struct stat st;
    if (tree.ours_count >= OVERLAYS_MAX + 1)
        errno = E2BIG;
    else if (fstat(mount, &st) == 0) {
        tree.ours[tree.ours_count++] = st.st_dev;
        return;
    }
    failed(STEP_MOUNT, "overlays");
}

/* Things are made in the space or the overlay's upper and nowhere else: a directory that lies in
 * any other mount belongs to somebody. */
static void must_be_ours(int directory)
{
    struct stat st;
    if (fstat(directory, &st) < 0)
        failed(STEP_TARGET, "stat");
    for (unsigned i = 0; i < tree.ours_count; i++)
        if (st.st_dev == tree.ours[i])
            return;
    errno = EROFS;
    failed(STEP_TARGET, "missing inside another mount");
}

/* The directory at `path` relative to the new root, made with its parents when missing. */
static int make_directories(const char *path, mode_t mode, uint32_t uid, uint32_t gid)
{
    int found = *path ? sys_openat2(tree.root, path, O_PATH | O_DIRECTORY, 0, BENEATH) : dup(tree.root);
    if (found >= 0)
        return found;
    if (errno != ENOENT)
        failed(STEP_TARGET, "directory");
    char parent[4096];
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    memcpy(parent, path, length);
    parent[length] = 0;
    int above = make_directories(parent, 0755, tree.uid, tree.gid);
    const char *name = slash ? slash + 1 : path;
    must_be_ours(above);
    if (mkdirat(above, name, mode) < 0)
        failed(STEP_TARGET, "mkdir");
    own(above, name, uid, gid);
    found = sys_openat2(above, name, O_PATH | O_DIRECTORY, 0, BENEATH);
    if (found < 0)
        failed(STEP_TARGET, "directory");
    close(above);
    return found;
}

static void attach(int mount, int target)
{
    if (sys_move_mount(mount, target) < 0)
        failed(STEP_MOUNT, "attach");
    close(target);
}

static void forget_parent(void)
{
    if (tree.parent >= 0)
        close(tree.parent);
    tree.parent = -1;
}

/* The directory that `path` (changed here) ends in, made when missing, and in *name its last part.
 * The last one is kept open: records come sorted, and most share theirs with the one before. */
static int parent_of(char *path, const char **name)
{
    char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    size_t length = slash ? (size_t)(slash - path) : 0;
    path[length] = slash ? 0 : path[length];
    const char *directory = slash ? path : "";
    if (tree.parent >= 0 && strcmp(tree.parent_path, directory) == 0)
        return tree.parent;
    forget_parent();
    tree.parent = make_directories(directory, 0755, tree.uid, tree.gid);
    memcpy(tree.parent_path, directory, strlen(directory) + 1);
    return tree.parent;
}

static int create_file(int parent, const char *name, mode_t mode)
{
    must_be_ours(parent);
    return openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
}

/* Attach a mount on `path`, which is there already or is made to fit. */
static void attach_at(struct bytes path, int mount, bool directory)
{
    char text[4096];
    const char *name;
    relative(path, text);
    if (directory) {
        attach(mount, make_directories(text, 0755, tree.uid, tree.gid));
        forget_parent(); /* it may lie under what is mounted now */
        return;
    }
    int parent = parent_of(text, &name);
    int target = sys_openat2(parent, name, O_PATH | O_NOFOLLOW, 0, BENEATH);
    if (target < 0 && errno == ENOENT) {
        must_be_ours(parent);
        if (mknodat(parent, name, S_IFREG | 0444, 0) < 0)
            failed(STEP_TARGET, "create");
        target = sys_openat2(parent, name, O_PATH | O_NOFOLLOW, 0, BENEATH);
    }
    if (target < 0)
        failed(STEP_TARGET, "target");
    attach(mount, target);
}

static int new_filesystem(const char *type)
{
    int fs = sys_fsopen(type);
    if (fs < 0)
        failed(STEP_MOUNT, type);
    return fs;
}

static void option(int fs, const char *key, const char *value)
{
    if (sys_fsconfig(fs, value ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG, key, value) < 0)
        failed(STEP_MOUNT, key);
}

static int mount_filesystem(int fs, unsigned attributes)
{
    if (sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL) < 0)
        failed(STEP_MOUNT, "create");
    int mount = sys_fsmount(fs, attributes);
    if (mount < 0)
        failed(STEP_MOUNT, "fsmount");
    close(fs);
    return mount;
}

/* A fresh directory of the space and a detached mount of it. */
static int space_directory(char prefix, mode_t mode, uint32_t uid, uint32_t gid, char name[16])
{
    snprintf(name, 16, "%c%u", prefix, tree.serial++);
    if (mkdirat(tree.space, name, mode) < 0)
        failed(STEP_MOUNT, "space");
    own(tree.space, name, uid, gid);
    return sys_open_tree(tree.space, name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
}

static void build_space(uint64_t bytes, uint64_t inodes)
{
    char size[24], count[24];
    snprintf(size, sizeof size, "%llu", (unsigned long long)bytes);
    snprintf(count, sizeof count, "%llu", (unsigned long long)inodes);
    int fs = new_filesystem("tmpfs");
    option(fs, "size", size);
    option(fs, "nr_inodes", count);
    option(fs, "mode", "0755");
    tree.space = mount_filesystem(fs, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    note_ours(tree.space);
    /* Attached, because only a mount of this namespace can be cloned from; above the host's /proc,
     * which pid 1 does not need, so that nothing else of the host is hidden while it is in view. */
    if (syscall(SYS_move_mount, tree.space, "", AT_FDCWD, "/proc", MOVE_MOUNT_F_EMPTY_PATH) < 0)
        failed(STEP_ROOT, "space");
}

/* An overlay whose lower is `lower` and whose upper lies in the space. Names are relative to the
 * space, so that no path of the host is parsed by the file system's option reader. */
static int overlay_mount(int lower)
{
    char lower_name[16], upper[16], work[16];
    int placeholder = space_directory('l', 0700, tree.uid, tree.gid, lower_name);
    close(placeholder);
    int point = openat(tree.space, lower_name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (point < 0)
        failed(STEP_MOUNT, "lower");
    attach(lower, point);
    close(space_directory('u', 0755, tree.uid, tree.gid, upper));
    close(space_directory('w', 0700, tree.uid, tree.gid, work));
    if (fchdir(tree.space) < 0)
        failed(STEP_MOUNT, "chdir");
    int fs = new_filesystem("overlay");
    option(fs, "lowerdir", lower_name);
    option(fs, "upperdir", upper);
    option(fs, "workdir", work);
    option(fs, "userxattr", NULL);
    int mount = mount_filesystem(fs, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    note_ours(mount);
    return mount;
}

static void build_root(const struct plan_record *r, struct sources *sources)
{
    char place[16];
    int mount = space_directory('r', 0755, tree.uid, tree.gid, place);
    if (r->root.kind == ROOT_OVERLAY) {
        close(mount);
        mount = overlay_mount(
            take_source(sources, r->root.source, r->root.path, BIND_RDONLY | BIND_NOSUID | BIND_NODEV));
    }
    int point = openat(tree.space, place, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (mount < 0 || point < 0)
        failed(STEP_ROOT, "mount");
    attach(mount, point);
    tree.root = mount;
}

static void build_directory(const struct plan_record *r)
{
    char text[4096];
    close(make_directories(relative(r->node.path, text), (mode_t)r->node.mode, r->node.uid, r->node.gid));
}

static void write_all(int fd, struct bytes content)
{
    while (content.length > 0) {
        ssize_t n = write(fd, content.data, content.length);
        if (n < 0)
            failed(STEP_TARGET, "write");
        content.data += n;
        content.length -= (uint32_t)n;
    }
}

static void build_file(const struct plan_record *r)
{
    char text[4096];
    const char *name;
    int parent = parent_of(relative(r->node.path, text), &name);
    int fd = create_file(parent, name, (mode_t)r->node.mode);
    if (fd < 0 && errno == EEXIST && unlinkat(parent, name, 0) == 0) /* in the overlay: ours replaces the base's */
        fd = create_file(parent, name, (mode_t)r->node.mode);
    if (fd < 0)
        failed(STEP_TARGET, "create");
    write_all(fd, r->node.content);
    close(fd);
    own(parent, name, r->node.uid, r->node.gid);
}

static void build_link(const struct plan_record *r)
{
    char text[4096], target[4096];
    memcpy(target, r->link.target.data, r->link.target.length);
    target[r->link.target.length] = 0;
    const char *name;
    int parent = parent_of(relative(r->link.path, text), &name);
    must_be_ours(parent);
    int made = symlinkat(target, parent, name);
    if (made < 0 && errno == EEXIST && unlinkat(parent, name, 0) == 0)
        made = symlinkat(target, parent, name);
    if (made < 0)
        failed(STEP_TARGET, "symlink");
}

static void build_bind(const struct plan_record *r, struct sources *sources)
{
    int mount = take_source(sources, r->bind.source, r->bind.path, r->bind.attributes);
    struct stat st;
    if (fstat(mount, &st) < 0)
        failed(STEP_MOUNT, "stat");
    attach_at(r->bind.target, mount, S_ISDIR(st.st_mode));
    close(mount);
}

static void build_overlay(const struct plan_record *r, struct sources *sources)
{
    int lower = take_source(sources, r->bind.source, r->bind.path, BIND_RDONLY | BIND_NOSUID | BIND_NODEV);
    int mount = overlay_mount(lower);
    attach_at(r->bind.target, mount, true);
    tree.overlays[tree.overlay_count++] = mount; /* note_ours keeps the count below OVERLAYS_MAX */
    close(lower);
}

static void build_space_bind(const struct plan_record *r)
{
    char name[16];
    int mount = space_directory('s', (mode_t)r->space_bind.mode, r->space_bind.uid, r->space_bind.gid, name);
    if (mount < 0 || (r->space_bind.attributes && tree_set_attributes(mount, r->space_bind.attributes, -1) < 0))
        failed(STEP_MOUNT, "space");
    attach_at(r->space_bind.target, mount, true);
    close(mount);
}

/* hidepid=ptraceable: a process sees only what it could trace, which pid 1 (non-dumpable) is not. */
static void build_proc(const struct plan_record *r)
{
    int fs = new_filesystem("proc");
    option(fs, "hidepid", "ptraceable");
    tree.proc = mount_filesystem(fs, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    attach_at(r->point.target, tree.proc, true);
}

static void build_devpts(const struct plan_record *r, uint32_t mode)
{
    int fs = new_filesystem("devpts");
    option(fs, "ptmxmode", "0666");
    option(fs, "mode", "0620");
    if (mode & MODE_PRIVILEGED) /* "tty" by convention; without a range only one id is mapped */
        option(fs, "gid", "5");
    int mount = mount_filesystem(fs, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    attach_at(r->point.target, mount, true);
    close(mount);
}

static int mask_source(bool directory)
{
    char name[16];
    int *name_made = directory ? &tree.mask_directory : &tree.mask_file;
    if (*name_made < 0) {
        snprintf(name, sizeof name, "m%u", tree.serial);
        *name_made = (int)tree.serial++;
        int made = directory ? mkdirat(tree.space, name, 0555)
                             : openat(tree.space, name, O_CREAT | O_EXCL | O_CLOEXEC, 0444);
        if (made < 0)
            failed(STEP_PROC, "mask");
        if (!directory)
            close(made);
    }
    snprintf(name, sizeof name, "m%d", *name_made);
    return sys_open_tree(tree.space, name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
}

static void build_mask(const struct plan_record *r)
{
    char text[4096];
    int target = sys_openat2(tree.root, relative(r->point.target, text), O_PATH | O_NOFOLLOW, 0, BENEATH);
    if (target < 0 && errno == ENOENT)
        return; /* this kernel has no such file: nothing to hide */
    struct stat st;
    if (target < 0 || fstat(target, &st) < 0)
        failed(STEP_PROC, "mask");
    int mount = mask_source(S_ISDIR(st.st_mode));
    if (mount < 0 || tree_set_attributes(mount, BIND_RDONLY | BIND_NOEXEC, -1) < 0)
        failed(STEP_PROC, "mask");
    attach(mount, target);
    close(mount);
}

static void build_sysctl(const struct plan_record *r)
{
    static const char *const known[] = {"net/ipv4/ping_group_range", "net/ipv4/ip_unprivileged_port_start"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (r->sysctl.name.length != strlen(known[i]) ||
            memcmp(r->sysctl.name.data, known[i], r->sysctl.name.length) != 0)
            continue;
        char path[64];
        snprintf(path, sizeof path, "sys/%s", known[i]);
        int fd = sys_openat2(tree.proc, path, O_WRONLY, 0, BENEATH);
        if (fd < 0)
            failed(STEP_NETWORK, known[i]);
        write_all(fd, r->sysctl.value);
        close(fd);
        return;
    }
    errno = EINVAL;
    failed(STEP_NETWORK, "sysctl");
}

static void build_record(const struct plan *plan, const struct plan_record *r, struct sources *sources)
{
    switch (r->type) {
    case REC_SPACE:
        build_space(r->space.bytes, r->space.inodes);
        break;
    case REC_ROOT:
        build_root(r, sources);
        break;
    case REC_DIR:
        build_directory(r);
        break;
    case REC_FILE:
        build_file(r);
        break;
    case REC_LINK:
        build_link(r);
        break;
    case REC_BIND:
        build_bind(r, sources);
        break;
    case REC_OVERLAY:
        build_overlay(r, sources);
        break;
    case REC_SPACE_BIND:
        build_space_bind(r);
        break;
    case REC_PROC:
        build_proc(r);
        break;
    case REC_DEVPTS:
        build_devpts(r, plan->mode);
        break;
    case REC_MASK:
        build_mask(r);
        break;
    case REC_SYSCTL:
        build_sysctl(r);
        break;
    default:
        break; /* not of the tree */
    }
}

static void make_readonly(int mount, const char *what)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY};
    if (sys_mount_setattr(mount, 0, &attr) < 0)
        failed(STEP_MOUNT, what);
}

void tree_build(const struct plan *plan, struct sources *sources)
{
    tree.uid = geteuid();
    tree.gid = getegid();
    for (uint32_t i = 0; i < plan->count; i++) {
        tree.record = i;
        build_record(plan, &plan->records[i], sources);
    }
    tree.record = NONE;
    if (tree.root < 0) {
        errno = EINVAL;
        failed(STEP_ROOT, "the plan has no root");
    }
    if (tree.proc >= 0)
        make_readonly(tree.proc, "proc");
    for (unsigned i = 0; i < tree.overlay_count; i++)
        make_readonly(tree.overlays[i], "overlay");
    if (plan->mode & MODE_ROOT_READONLY)
        make_readonly(tree.root, "root");
}

void tree_enter(void)
{
    /* pivot_root(2): with both names ".", the old root is left stacked on the new one, and the
     * second call takes it off with every mount of the host below it. */
    if (fchdir(tree.root) < 0 || sys_pivot_root(".", ".") < 0 || sys_umount2(".", 2 /* MNT_DETACH */) < 0 ||
        chdir("/") < 0)
        failed(STEP_ROOT, "pivot");
}
