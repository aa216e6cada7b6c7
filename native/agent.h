/* Pid 1 of a sandbox (or, in the process tier, a child subreaper): starts commands on request,
 * reaps, signals, and ends with everything it started. */
#ifndef KIS_AGENT_H
#define KIS_AGENT_H

#include <stdint.h>

/* Descriptors the agent is started with. */
enum { AGENT_CONTROL = 3, AGENT_ENGINE = 4, AGENT_PROGRAM = 5 };

/* As pid 1, already confined: `grantable` are the capabilities a command may get, the keyrings are
 * serials of the launcher's session keyring and of our own. */
_Noreturn void agent(uint32_t mode, uint64_t grantable, uint32_t host_keyring, uint32_t own_keyring);

/* The same from the four arguments of an exec, in decimal. */
_Noreturn void agent_main(char **arguments);

/* The loop alone, for the process tier, which confines nothing. */
_Noreturn void agent_serve(uint32_t mode, uint64_t grantable, uint32_t host_keyring, uint32_t own_keyring);

#endif
