/* Descendants of this process, for the process tier, which has no pid namespace to end them. */
#ifndef KIS_DESCEND_H
#define KIS_DESCEND_H

#include <stdbool.h>

/* Whether this kernel lists children (CONFIG_PROC_CHILDREN) on this /proc. */
bool descend_possible(void);
void descend_signal_all(int signal);
/* Kills until none is left; as a child subreaper we inherit whatever is orphaned meanwhile. */
void descend_kill_all(void);

#endif
