"""``python -m kis``: the same as the ``kis`` script.

Knows: where the command line starts. Must not know: more. Called by: the interpreter.
"""

import sys

from kis.cli import main

if __name__ == "__main__":
    sys.exit(main())
