/* What a process gives up before it may run what is not ours. */
#ifndef KIS_CONFINE_H
#define KIS_CONFINE_H

#include "plan.h"

/* What the agent keeps in its own user namespace when it must act for several ids. */
#define AGENT_CAPABILITIES ((1ull << 5) | (1ull << 6) | (1ull << 7)) /* KILL, SETGID, SETUID */

void confine_limits(const struct plan *plan);

/* Becomes the agent's ids with the agent's capabilities (plus those that may be granted, held only
 * as permitted), a bounding set of the grantable ones, locked securebits and no_new_privs. */
void confine_identity(const struct plan *plan);

void confine_filters(const struct plan *plan);

/* capset with the three sets equal; false on failure. */
bool set_capabilities(uint64_t effective, uint64_t permitted, uint64_t inheritable);
bool raise_ambient(uint64_t mask);

#endif
