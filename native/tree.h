/* The mount tree of the sandbox, built by descriptors beneath its new root. Runs as pid 1 inside
 * the new namespaces, with the host's tree still in view until tree_enter. */
#ifndef KIS_TREE_H
#define KIS_TREE_H

#include "plan.h"

#define SOURCES_MAX 1024

/* One source descriptor per index of the plan, and per record the detached clone of it (or -1). */
struct sources {
    int count;
    int descriptors[SOURCES_MAX];
    int trees[PLAN_RECORDS_MAX];
};

/* Clones the tree of every record's source. Host side, PRIVILEGED only: without privilege over the
 * host's mounts this is EPERM, and the tree is reopened inside instead. */
void tree_clone_sources(const struct plan *plan, struct sources *sources);

/* Read-only and friends, private propagation and, with `userns` >= 0, the id map: one call. */
int tree_set_attributes(int tree, uint32_t bind_attributes, int userns);

void tree_build(const struct plan *plan, struct sources *sources);

/* Makes the new root the root and lets go of the host's tree. */
void tree_enter(void);

#endif
