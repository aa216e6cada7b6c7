#define _GNU_SOURCE
#include "descend.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEPTH_MAX 256

static void children_file(const char *process, const char *thread, char path[64])
{
    snprintf(path, 64, "/proc/%.15s/task/%.15s/children", process, thread);
}

bool descend_possible(void)
{
    char path[64], own[16];
    snprintf(own, sizeof own, "%d", getpid());
    children_file(own, own, path);
    return access(path, R_OK) == 0;
}

/* Every thread has a list of its own. A process that goes away meanwhile is simply not there. */
static void signal_children(const char *process, int number, int depth)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%.15s/task", process);
    DIR *threads = depth < DEPTH_MAX ? opendir(path) : NULL;
    struct dirent *thread;
    while (threads && (thread = readdir(threads))) {
        if (thread->d_name[0] == '.')
            continue;
        children_file(process, thread->d_name, path);
        FILE *list = fopen(path, "re");
        char child[16];
        while (list && fscanf(list, "%15s", child) == 1) {
            signal_children(child, number, depth + 1);
            kill((pid_t)atoi(child), number);
        }
        if (list)
            fclose(list);
    }
    if (threads)
        closedir(threads);
}

void descend_signal_all(int number)
{
    char own[16];
    snprintf(own, sizeof own, "%d", getpid());
    signal_children(own, number, 0);
}

void descend_kill_all(void)
{
    for (;;) {
        descend_signal_all(SIGKILL);
        /* Everything that has ended by now, so that a walk is not made for each of a storm's dead. */
        pid_t ended = waitpid(-1, NULL, 0);
        while (ended > 0)
            ended = waitpid(-1, NULL, WNOHANG);
        if (ended < 0 && errno == ECHILD)
            return;
    }
}
