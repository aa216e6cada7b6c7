/* Keeps pid 1 reaping: with CLONE_PARENT a zombie of ours is a child of pid 1 at once. The limit
 * on processes keeps the storm from the rest of the machine. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct rlimit most = {4000, 4000};
    setrlimit(RLIMIT_NPROC, &most);
    for (int i = argc > 1 ? atoi(argv[1]) : 0; i > 0; i--) {
        if (syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0) != 0)
            continue;
        for (;;)
            if (syscall(SYS_clone, CLONE_PARENT | CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) == 0)
                syscall(SYS_exit, 0);
    }
    pause();
    return 0;
}
