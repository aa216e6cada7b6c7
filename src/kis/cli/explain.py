"""``kis sandbox explain``: what ``run`` would do, up to the plan; nothing is started.

Knows: that it takes the flags of run. Must not know: what a plan is made of.
Called by: cli.
"""

from __future__ import annotations

import os

from kis.api import Engine
from kis.caller.config import admit
from kis.cli import render
from kis.cli.run import settings_of
from kis.errors import Code, SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def explain(words: Sequence[str]) -> int:
    """Print tier, backend, what enforces each field, and every step of the plan.

    Raises what ``run`` would raise before it starts anything.
    """
    settings = settings_of(words, "explain")
    if settings is None:
        return 0
    if settings.receipt is not None:
        raise SandboxError(
            Code.CONFIG_INVALID,
            "--receipt: explain runs nothing that there could be a receipt of",
            "Say it with run.",
            {"field": "receipt"},
        )
    engine = Engine()
    request = admit(settings, engine, os.environb)
    explanation = engine.explain(
        request.command,
        request.profile,
        request.base,
        tier=request.tier,
        backend=request.backend,
    )
    if settings.json:
        render.write_json(explanation.to_dict())
    else:
        render.write_text(render.STANDARD_OUTPUT, render.explanation_text(explanation))
    return 0
