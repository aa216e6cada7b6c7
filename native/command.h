/* A command between the agent's fork and its own execve. */
#ifndef KIS_COMMAND_H
#define KIS_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In the forked child: takes three descriptors as 0, 1, 2, gives up what it must, reports READY on
 * the control socket, waits for a byte at the fourth (end of file: end) and executes. `grantable`
 * bounds the capabilities; `probe` calls what the filters must answer. */
_Noreturn void command_run(uint32_t id, uint8_t *blob, size_t length, const int *descriptors,
                           uint64_t grantable, bool probe);

void command_failed(uint32_t id, uint32_t stage, int error, uint32_t kind, const char *detail);

#endif
