#define _GNU_SOURCE
#include "command.h"

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "agent.h"
#include "confine.h"
#include "report.h"
#include "sys.h"

enum { GATE = AGENT_ENGINE, ABORTED = 125 };

#define AF_VSOCK_NUMBER 40

void command_failed(uint32_t id, uint32_t stage, int error, uint32_t kind, const char *detail)
{
    uint8_t payload[4096 + 32];
    struct writer w = {payload, sizeof payload, 0, false};
    write_u32(&w, stage);
    write_u32(&w, (uint32_t)error);
    write_u32(&w, kind);
    size_t length = strlen(detail);
    write_str(&w, detail, length < 4096 ? length : 4096);
    send_frame(AGENT_CONTROL, FRAME_FAILED, id, payload, w.used);
}

static _Noreturn void failed(uint32_t id, uint32_t stage, const char *detail)
{
    command_failed(id, stage, errno, KIND_OTHER, detail);
    _exit(ABORTED);
}

static void take_descriptors(uint32_t id, const int *descriptors)
{
    for (int i = 0; i < 3; i++)
        if (dup2(descriptors[i], i) < 0)
            failed(id, STAGE_DESCRIPTORS, "stdio");
    if (dup3(descriptors[3], GATE, O_CLOEXEC) < 0 || sys_close_range(GATE + 1, ~0u) < 0)
        failed(id, STAGE_DESCRIPTORS, "gate");
}

static void set_limits(uint32_t id, const struct command *command)
{
    for (uint32_t i = 0; i < command->limit_count; i++) {
        struct limit l = command_limit(command, i);
        struct rlimit limit = {l.soft, l.hard};
        if (l.resource > 15 || setrlimit((int)l.resource, &limit) < 0)
            failed(id, STAGE_LIMITS, "setrlimit");
    }
}

/* uid 0xffffffff: stay who we are. Whatever happens to the ids, the capabilities end as granted. */
static void become(uint32_t id, const struct command *command, uint64_t granted, bool confined)
{
    bool change = command->uid != NONE && (command->uid != geteuid() || command->gid != getegid());
    if (change && (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 ||
                   setresgid(command->gid, command->gid, command->gid) < 0 ||
                   setresuid(command->uid, command->uid, command->uid) < 0))
        failed(id, STAGE_IDS, "ids");
    if (change && prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0) < 0)
        failed(id, STAGE_IDS, "keepcaps");
    /* Changing ids sets it to fs.suid_dumpable, which need not be 0. */
    if (confined && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        failed(id, STAGE_IDS, "dumpable");
    if (confined && (!set_capabilities(granted, granted, granted) || !raise_ambient(granted)))
        failed(id, STAGE_IDS, "capabilities");
}

static int answer(long result)
{
    return result < 0 ? errno : 0;
}

/* Calls that do nothing, and that the kernel answers otherwise than our filters do. */
static void write_probes(struct writer *w)
{
    int vsock = socket(AF_VSOCK_NUMBER, SOCK_STREAM, 0);
    const int vsock_answer = answer(vsock); /* at once: the next call overwrites errno */
    const int answers[] = {
        answer(sys_keyctl(0 /* KEYCTL_GET_KEYRING_ID */, (unsigned long)KEY_SPEC_SESSION_KEYRING, 0)),
        answer(syscall(SYS_ptrace, 0x7fffffffL, 0L, 0L, 0L)),
        answer(syscall(SYS_bpf, -1L, 0L, 0L)),
        answer(syscall(SYS_unshare, CLONE_NEWUSER | 1L)),
        vsock_answer,
        answer(ioctl(0, TIOCSTI, NULL)),
        answer(chmod("", 04000)),
        answer(syscall(SYS_io_uring_setup, 0L, 0L)),
        answer(syscall(SYS_prlimit64, 1L, (long)RLIMIT_CORE, 0L, 0L)),
        answer(syscall(SYS_clone3, 0L, 0L)),
    };
    if (vsock >= 0)
        close(vsock);
    const uint32_t count = sizeof answers / sizeof *answers;
    write_u32(w, count);
    for (uint32_t i = 0; i < count; i++) {
        write_u32(w, i + 1);
        write_u32(w, (uint32_t)answers[i]);
    }
}

static void write_names(struct writer *w, const struct command *command)
{
    if (!(command->flags & COMMAND_REPORT_NAMES)) {
        write_u32(w, 0);
        return;
    }
    write_u32(w, command->envc);
    for (uint32_t i = 0; i < command->envc; i++)
        write_str(w, command->envp[i], strcspn(command->envp[i], "="));
}

static void send_ready(uint32_t id, const struct command *command, bool probe)
{
    static uint8_t payload[FRAME_PAYLOAD_MAX];
    struct writer w = {payload, sizeof payload, 0, false};
    int dumpable = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
    long keyring = sys_keyctl(0, (unsigned long)KEY_SPEC_SESSION_KEYRING, 0);
    write_u32(&w, keyring < 0 ? 0 : (uint32_t)keyring);
    write_u32(&w, (uint32_t)dumpable);
    if (probe)
        write_probes(&w);
    else
        write_u32(&w, 0);
    write_names(&w, command);
    if (w.full) {
        errno = E2BIG;
        failed(id, STAGE_MALFORMED, "too many names to report");
    }
    send_frame(AGENT_CONTROL, FRAME_READY, id, payload, w.used);
}

/* The program that a script or an ELF file asks for, or "". */
static void read_interpreter(const char *path, char *name, size_t size)
{
    name[0] = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    union {
        char text[256];
        Elf64_Ehdr elf;
    } head;
    ssize_t n = fd < 0 ? -1 : pread(fd, &head, sizeof head, 0);
    if (n > 2 && head.text[0] == '#' && head.text[1] == '!') {
        size_t end = (size_t)n, at = 2;
        while (at < end && (head.text[at] == ' ' || head.text[at] == '\t'))
            at++;
        size_t length = 0;
        while (at + length < end && length + 1 < size && !strchr(" \t\n\r", head.text[at + length]))
            length++;
        memcpy(name, head.text + at, length);
        name[length] = 0;
    } else if (n >= (ssize_t)sizeof head.elf && memcmp(head.elf.e_ident, ELFMAG, SELFMAG) == 0 &&
               head.elf.e_ident[EI_CLASS] == ELFCLASS64) {
        for (unsigned i = 0; i < head.elf.e_phnum && i < 64; i++) {
            Elf64_Phdr part;
            off_t at = (off_t)(head.elf.e_phoff + (uint64_t)i * sizeof part);
            if (pread(fd, &part, sizeof part, at) != sizeof part || part.p_type != PT_INTERP)
                continue;
            ssize_t length = pread(fd, name, part.p_filesz < size ? part.p_filesz : size - 1, (off_t)part.p_offset);
            name[length < 0 ? 0 : length] = 0;
            break;
        }
    }
    if (fd >= 0)
        close(fd);
}

static _Noreturn void exec_failed(uint32_t id, const char *path, int error)
{
    struct stat st;
    char interpreter[512] = "";
    bool there = stat(path, &st) == 0;
    uint32_t kind = KIND_OTHER;
    if (there && S_ISDIR(st.st_mode))
        kind = KIND_IS_DIRECTORY;
    else if (error == ENOENT && there) {
        kind = KIND_INTERPRETER_MISSING;
        read_interpreter(path, interpreter, sizeof interpreter);
    } else if (error == ENOENT || error == ENOTDIR)
        kind = KIND_NOT_FOUND;
    else if (error == EACCES)
        kind = KIND_NOT_EXECUTABLE;
    else if (error == ENOEXEC || error == ELIBBAD || error == EINVAL)
        kind = KIND_BAD_FORMAT;
    command_failed(id, STAGE_EXEC, error, kind, interpreter);
    _exit(error == ENOENT ? 127 : 126);
}

static const char *search_path(const struct command *command)
{
    for (uint32_t i = 0; i < command->envc; i++)
        if (strncmp(command->envp[i], "PATH=", 5) == 0)
            return command->envp[i] + 5;
    return "/usr/local/bin:/usr/bin:/bin";
}

/* As execvp(3) looks things up, but never through a shell. */
static _Noreturn void execute(uint32_t id, const struct command *command)
{
    const char *name = command->argv[0];
    if (strchr(name, '/')) {
        execve(name, command->argv, command->envp);
        exec_failed(id, name, errno);
    }
    static char path[8192], refused[8192];
    int error = ENOENT;
    for (const char *at = search_path(command); at; at = *at == ':' ? at + 1 : NULL) {
        size_t length = strcspn(at, ":");
        int n = snprintf(path, sizeof path, "%.*s/%s", (int)length, length ? at : ".", name);
        at += length;
        if (n < 0 || (size_t)n >= sizeof path)
            continue;
        execve(path, command->argv, command->envp);
        struct stat st;
        if ((errno == ENOENT && stat(path, &st) < 0) || errno == ENOTDIR)
            continue;
        if (errno != EACCES || stat(path, &st) < 0)
            exec_failed(id, path, errno == EACCES ? ENOENT : errno);
        error = EACCES; /* remembered: a later directory may have one that can be executed */
        memcpy(refused, path, sizeof path);
    }
    exec_failed(id, error == EACCES ? refused : name, error);
}

_Noreturn void command_run(uint32_t id, uint8_t *blob, size_t length, const int *descriptors,
                           uint64_t grantable, bool probe)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    take_descriptors(id, descriptors);
    struct command command;
    if (!command_parse(blob, length, &command) || command.capabilities & ~grantable) {
        errno = EINVAL;
        failed(id, STAGE_MALFORMED, "command");
    }
    if (command.flags & COMMAND_NEW_SESSION && setsid() < 0)
        failed(id, STAGE_IDS, "setsid");
    set_limits(id, &command);
    become(id, &command, command.capabilities, probe);
    umask((mode_t)command.umask);
    if (chdir(command.cwd) < 0)
        failed(id, STAGE_CWD, "");
    send_ready(id, &command, probe);
    char byte;
    if (read(GATE, &byte, 1) != 1)
        _exit(ABORTED);
    execute(id, &command);
}
