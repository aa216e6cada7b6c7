#define _GNU_SOURCE
#include "report.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static int control_socket = -1;

void report_to(int control)
{
    control_socket = control;
}

void send_frame(int control, uint16_t type, uint32_t id, const uint8_t *payload, size_t length)
{
    uint8_t header[FRAME_HEADER_BYTES];
    write_header(header, type, id, (uint32_t)length);
    struct iovec parts[2] = {{header, sizeof header}, {(void *)(uintptr_t)payload, length}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = length ? 2 : 1};
    while (sendmsg(control, &message, MSG_NOSIGNAL) < 0)
        if (errno != EINTR)
            return;
}

_Noreturn void fault(uint32_t step, int error, uint32_t record, const char *detail)
{
    uint8_t payload[512];
    struct writer w = {payload, sizeof payload, 0, false};
    write_u32(&w, step);
    write_u32(&w, (uint32_t)error);
    write_u32(&w, record);
    size_t length = strlen(detail);
    write_str(&w, detail, length < 400 ? length : 400);
    if (control_socket >= 0)
        send_frame(control_socket, FRAME_FAULT, 0, payload, w.used);
    _exit(EXIT_FAULT);
}
