/* How a part of kis-init that cannot keep its promise ends: one FAULT frame, status 125. */
#ifndef KIS_REPORT_H
#define KIS_REPORT_H

#include <stddef.h>
#include <stdint.h>

#include "frame.h"

#define EXIT_FAULT 125

/* The control socket on which faults are reported; set once, first of all. */
void report_to(int control);

/* Sends the frame and ends the process. `record` is the plan record at work or NONE. */
_Noreturn void fault(uint32_t step, int error, uint32_t record, const char *detail);

/* Sends one frame; a peer that is gone is no error here, the end of file tells it. */
void send_frame(int control, uint16_t type, uint32_t id, const uint8_t *payload, size_t length);

#endif
