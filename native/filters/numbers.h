#ifndef KIS_FILTERS_NUMBERS_H
#define KIS_FILTERS_NUMBERS_H

/* The number of a call on this architecture; CALL_ABSENT where it lacks the call, CALL_UNHEARD_OF for a name
 * that no list has. */
int call_number(const char *name);

enum { CALL_ABSENT = -1, CALL_UNHEARD_OF = -2 };

#endif
