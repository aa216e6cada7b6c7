/* kis-init: one small static program that is the launcher on the host side and the agent (pid 1)
 * inside. What it does is in its first argument; docs/wire.md has the rest. */
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "agent.h"
#include "launch.h"

int main(int argc, char **argv)
{
    /* Started through a descriptor the process would be called by its number; ps(1) should tell. */
    prctl(PR_SET_NAME, "kis-init", 0, 0, 0);
    if (argc > 2 && strcmp(argv[1], "launch") == 0)
        launch(argv + 2);
    if (argc > 2 && strcmp(argv[1], "supervise") == 0)
        supervise(argv + 2);
    if (argc == 4 && strcmp(argv[1], "agent") == 0)
        agent_main(argv + 2);
    static const char usage[] = "kis-init is started by kis and does nothing by itself.\n";
    return write(2, usage, sizeof usage - 1) < 0 || 1 ? 125 : 0;
}
