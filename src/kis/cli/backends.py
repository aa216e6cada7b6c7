"""``kis sandbox backends``: what this machine can do, found out by doing.

Knows: the flags of this verb. Must not know: how a backend is probed or a table looks.
Called by: cli.
"""

from __future__ import annotations

from kis.api import Engine
from kis.cli import render
from kis.cli.flags import BACKENDS_FLAGS, flags_help, read_flags
from kis.errors import Code, SandboxError, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def backends(words: Sequence[str]) -> int:
    """Print every backend of every tier; the status is 0 whatever they are."""
    pairs, rest = read_flags(words, BACKENDS_FLAGS)
    names = {name for name, _ in pairs}
    if "--help" in names:
        usage = "kis sandbox backends [--json]"
        render.write_text(render.STANDARD_OUTPUT, flags_help(usage, BACKENDS_FLAGS))
        return 0
    if rest:
        raise SandboxError(
            Code.CONFIG_INVALID,
            f"backends takes no argument, and {quoted(rest[0])} was given",
            details={"field": "argv"},
        )
    reports = Engine().backends()
    if "--json" in names:
        render.write_json([report.to_dict() for report in reports])
    else:
        render.write_text(render.STANDARD_OUTPUT, render.reports_table(reports))
    return 0
