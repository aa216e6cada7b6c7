/* Pid 1 of a sandbox (or, in the process tier, a child subreaper): starts commands on request,
 * reaps, signals, and ends with everything it started. */
#ifndef KIS_AGENT_H
#define KIS_AGENT_H

#include <stdint.h>

/* Descriptors the agent is started with. */
enum { AGENT_CONTROL = 3, AGENT_ENGINE = 4, AGENT_LEASE = 5, AGENT_PROGRAM = 6 };

/* HELLO: the place is complete, though this process has yet to give up what it must. The numbers are
 * serials of the launcher's session keyring and of our own, 0 where keyctl cannot be called. */
void agent_greet(int control, uint32_t host_keyring, uint32_t own_keyring);

/* As pid 1, already confined: `grantable` are the capabilities a command may get. */
_Noreturn void agent(uint32_t mode, uint64_t grantable);

/* The same from the two arguments of an exec, in decimal. */
_Noreturn void agent_main(char **arguments);

/* The loop alone, for the process tier, which confines nothing. */
_Noreturn void agent_serve(uint32_t mode, uint64_t grantable);

#endif
