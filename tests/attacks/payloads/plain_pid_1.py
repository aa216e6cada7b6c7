# The control's pid 1: a plain program of the payload's own user, with a socket open and nothing
# done to protect it. Runs the attack script it is given as its child.

import os
import socket
import sys

left, right = socket.socketpair()
child = os.fork()
if child == 0:
    left.close()
    right.close()
    os.execv(sys.executable, [sys.executable, "-I", "-c", sys.argv[1], *sys.argv[2:]])
os.waitpid(child, 0)
