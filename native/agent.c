#define _GNU_SOURCE
#include "agent.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "command.h"
#include "confine.h"
#include "descend.h"
#include "report.h"
#include "sys.h"

#define COMMANDS_MAX 256
#define REAPED_AT_ONCE 64
#define RIGHTS_COUNT 4 /* standard input, output, error, and the gate (command.h) */

struct running {
    pid_t pid; /* 0: free place */
    uint32_t id;
    bool last; /* the sandbox ends with it */
};

static struct {
    uint32_t mode;
    uint64_t grantable;
    struct running running[COMMANDS_MAX];
    uint8_t packet[FRAME_HEADER_BYTES + FRAME_PAYLOAD_MAX];
    uint8_t pending[COMMAND_BYTES_MAX]; /* the command being received, untouched pages cost nothing */
    size_t pending_length;
    uint32_t pending_id;
} self;

static struct running *find_running(pid_t pid, uint32_t id)
{
    for (int i = 0; i < COMMANDS_MAX; i++)
        if (self.running[i].pid && (pid ? self.running[i].pid == pid : self.running[i].id == id))
            return &self.running[i];
    return NULL;
}

static struct running *free_place(void)
{
    for (int i = 0; i < COMMANDS_MAX; i++)
        if (!self.running[i].pid)
            return &self.running[i];
    return NULL;
}

/* In a pid namespace our end is everybody's; the subreaper has to do it by hand. */
static _Noreturn void end(void)
{
    if (self.mode & MODE_SUPERVISE)
        descend_kill_all();
    _exit(0);
}

static _Noreturn void protocol_error(const char *what)
{
    if (self.mode & MODE_SUPERVISE)
        descend_kill_all();
    fault(STEP_PROTOCOL, EPROTO, NONE, what);
}

static void close_all(const int *descriptors)
{
    for (int i = 0; i < RIGHTS_COUNT; i++)
        close(descriptors[i]);
}

static void send_exited(uint32_t id, int status, const struct rusage *usage)
{
    uint8_t payload[32];
    struct writer w = {payload, sizeof payload, 0, false};
    write_u32(&w, WIFEXITED(status) ? (uint32_t)WEXITSTATUS(status) : NONE);
    write_u32(&w, WIFSIGNALED(status) ? (uint32_t)WTERMSIG(status) : 0);
    write_u64(&w, (uint64_t)usage->ru_utime.tv_sec * 1000000u + (uint64_t)usage->ru_utime.tv_usec);
    write_u64(&w, (uint64_t)usage->ru_stime.tv_sec * 1000000u + (uint64_t)usage->ru_stime.tv_usec);
    write_u64(&w, (uint64_t)usage->ru_maxrss);
    send_frame(AGENT_CONTROL, FRAME_EXITED, id, payload, w.used);
}

static void refuse_command(uint32_t id, int error, const int *descriptors)
{
    static const struct rusage none;
    command_failed(id, STAGE_DESCRIPTORS, error, KIND_OTHER, "");
    send_exited(id, EXIT_FAULT << 8, &none);
    close_all(descriptors);
}

static void start_command(uint32_t id, bool last, const int *descriptors)
{
    struct running *place = free_place();
    if (!place || find_running(0, id)) {
        refuse_command(id, EAGAIN, descriptors);
        return;
    }
    pid_t pid = fork();
    if (pid == 0)
        command_run(id, self.pending, self.pending_length, descriptors,
                    self.mode & MODE_SUPERVISE ? 0 : self.grantable, !(self.mode & MODE_SUPERVISE));
    int error = errno;
    if (pid < 0) {
        refuse_command(id, error, descriptors);
        return;
    }
    close_all(descriptors);
    *place = (struct running){pid, id, last};
}

static void on_exec(const struct frame *frame, const int *descriptors, int count)
{
    if (self.pending_length && frame->id != self.pending_id)
        protocol_error("two commands at once");
    if (self.pending_length + frame->payload.length > COMMAND_BYTES_MAX)
        protocol_error("command too long");
    memcpy(self.pending + self.pending_length, frame->payload.data, frame->payload.length);
    self.pending_length += frame->payload.length;
    self.pending_id = frame->id;
    if (frame->flags & FLAG_MORE) {
        if (count)
            protocol_error("early descriptors");
        return;
    }
    if (count != RIGHTS_COUNT)
        protocol_error("descriptors");
    start_command(frame->id, frame->flags & FLAG_LAST, descriptors);
    if (self.pending_length > FRAME_PAYLOAD_MAX)
        madvise(self.pending, sizeof self.pending, MADV_DONTNEED);
    else
        memset(self.pending, 0, self.pending_length); /* environments hold secrets */
    self.pending_length = 0;
}

static void on_signal(const struct frame *frame)
{
    struct cursor c = {frame->payload.data, frame->payload.length, false};
    uint32_t number = cursor_u32(&c), scope = cursor_u32(&c);
    if (!cursor_done(&c) || number < 1 || number > 64 || scope > SCOPE_SANDBOX)
        protocol_error("signal");
    struct running *r = find_running(0, frame->id);
    if (scope == SCOPE_SANDBOX && self.mode & MODE_SUPERVISE)
        descend_signal_all((int)number);
    else if (scope == SCOPE_SANDBOX)
        kill(-1, (int)number);
    else if (r)
        kill(scope == SCOPE_GROUP ? -r->pid : r->pid, (int)number);
}

static void on_frame(const struct frame *frame, const int *descriptors, int count)
{
    if (count && frame->type != FRAME_EXEC)
        protocol_error("descriptors");
    switch (frame->type) {
    case FRAME_EXEC:
        on_exec(frame, descriptors, count);
        break;
    case FRAME_SIGNAL:
        on_signal(frame);
        break;
    case FRAME_SHUTDOWN:
        end();
    default:
        protocol_error("unknown frame");
    }
}

static int take_rights(struct msghdr *message, int *descriptors)
{
    int count = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(descriptors, CMSG_DATA(c), (size_t)count * sizeof(int));
    }
    return count;
}

static void on_control(void)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(RIGHTS_COUNT * sizeof(int))];
    } rights;
    struct iovec part = {self.packet, sizeof self.packet};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = rights.room, .msg_controllen = sizeof rights.room};
    ssize_t n = recvmsg(AGENT_CONTROL, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0)
        end();
    int descriptors[RIGHTS_COUNT];
    int count = take_rights(&message, descriptors);
    struct frame frame;
    if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC) || !frame_parse(self.packet, (size_t)n, &frame))
        protocol_error("malformed frame");
    on_frame(&frame, descriptors, count);
}

/* Whether there may be more. */
static bool reap(int signals)
{
    struct signalfd_siginfo info;
    if (read(signals, &info, sizeof info) < 0 && errno != EAGAIN)
        protocol_error("signalfd"); /* SIGCHLD is one at most: what ended is asked below, not here */
    int status;
    struct rusage usage;
    /* A bounded batch: a payload can make zombies of pid 1 faster than they are reaped, and must not
     * keep it from hearing that its engine has ended. */
    for (int i = 0; i < REAPED_AT_ONCE; i++) {
        pid_t pid = wait4(-1, &status, WNOHANG, &usage);
        if (pid <= 0)
            return false;
        struct running *r = find_running(pid, 0);
        if (!r)
            continue;
        r->pid = 0;
        send_exited(r->id, status, &usage);
        if (r->last)
            end();
    }
    return true;
}

static int child_signals(void)
{
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    int fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        fault(STEP_AGENT, errno, NONE, "signalfd");
    return fd;
}

void agent_greet(int control, uint32_t host_keyring, uint32_t own_keyring)
{
    uint8_t payload[12];
    struct writer w = {payload, sizeof payload, 0, false};
    write_u32(&w, 1);
    write_u32(&w, host_keyring);
    write_u32(&w, own_keyring);
    send_frame(control, FRAME_HELLO, 0, payload, w.used);
}

_Noreturn void agent_serve(uint32_t mode, uint64_t grantable)
{
    self.mode = mode;
    self.grantable = grantable;
    if (mode & MODE_SUPERVISE && (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0 || !descend_possible()))
        fault(STEP_AGENT, errno, NONE, "subreaper");
    int signals = child_signals();
    struct pollfd watched[] = {
        {.fd = AGENT_CONTROL, .events = POLLIN}, {.fd = AGENT_ENGINE, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
    bool more = false;
    for (;;) {
        if (poll(watched, 3, more ? 0 : -1) < 0 && errno != EINTR)
            protocol_error("poll");
        /* The engine's end is told twice: a process forked from it may still hold the socket. */
        if (watched[1].revents)
            end();
        if (more || watched[2].revents)
            more = reap(signals);
        if (watched[0].revents)
            on_control();
    }
}

_Noreturn void agent(uint32_t mode, uint64_t grantable)
{
    /* First of all: nothing inside may read or trace this process, whatever its uid. */
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        _exit(EXIT_FAULT);
    report_to(AGENT_CONTROL);
    uint64_t own = mode & MODE_PRIVILEGED ? AGENT_CAPABILITIES : 0;
    if (fcntl(AGENT_CONTROL, F_SETFD, FD_CLOEXEC) < 0 || fcntl(AGENT_ENGINE, F_SETFD, FD_CLOEXEC) < 0 ||
        fcntl(AGENT_LEASE, F_SETFD, FD_CLOEXEC) < 0)
        fault(STEP_AGENT, errno, NONE, "descriptors");
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 ||
        !set_capabilities(own, own | grantable, own | grantable))
        fault(STEP_CAPABILITIES, errno, NONE, "agent");
    agent_serve(mode, grantable);
}

_Noreturn void agent_main(char **arguments)
{
    agent((uint32_t)strtoul(arguments[0], NULL, 10), strtoull(arguments[1], NULL, 10));
}
