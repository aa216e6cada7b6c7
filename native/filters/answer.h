/*
 * What is answered to one system call, as a piece of BPF.
 * Must not know how the pieces are joined into a program. Called by generate.c.
 */
#ifndef KIS_FILTERS_ANSWER_H
#define KIS_FILTERS_ANSWER_H

#include <linux/filter.h>
#include <stddef.h>

#define ANSWER_MAX 128

/* Every path ends in a RET of the piece's own; a single RET where the arguments do not matter. */
struct answer {
    struct sock_filter code[ANSWER_MAX];
    size_t length;
};

/* Sorts the tables' rules by call; gives the highest number they name. Ends the program where they
 * contradict themselves. */
int read_tables(void);

void answer_to(int number, struct answer *answer);

/* Says what is wrong and ends the program. */
_Noreturn void fail(const char *subject, const char *complaint);

#endif
