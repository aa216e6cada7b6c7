/* The host side of a start: clone, id maps, id-mapped mounts; and pid 1 until it is the agent. */
#ifndef KIS_LAUNCH_H
#define KIS_LAUNCH_H

/* `arguments`: descriptor numbers in decimal, NULL-terminated, as docs/wire.md says. */
_Noreturn void launch(char **arguments);
_Noreturn void supervise(char **arguments);

#endif
