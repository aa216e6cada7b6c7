"""Lets the tests here find what the suites share (``made_up``)."""

from __future__ import annotations

import sys
from pathlib import Path

SHARED = next(str(place) for place in Path(__file__).parents if (place / "made_up.py").exists())
if SHARED not in sys.path:
    sys.path.insert(0, SHARED)
