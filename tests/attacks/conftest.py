"""Puts `drive` and `arena` on the import path of the attack tests."""

from __future__ import annotations

import sys
from pathlib import Path

for place in (Path(__file__).parent, Path(__file__).parent.parent):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))
