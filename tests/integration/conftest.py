"""Who starts kis in the integration tests: every test that asks for `starter` runs as both."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = str(Path(__file__).parent.parent)
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)

import drive  # noqa: E402


@pytest.fixture(params=["root", "user"])
def starter(request: pytest.FixtureRequest) -> drive.Starter:
    """Root, then an ordinary user; skipped, with the reason, where there is no such one."""
    found = drive.starter(request.param)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def root() -> drive.Starter:
    """Root only: for what an ordinary user cannot have."""
    found = drive.starter("root")
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def user() -> drive.Starter:
    """The ordinary user only."""
    found = drive.starter("user")
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def room(starter: drive.Starter) -> Iterator[Path]:
    """A directory that belongs to the starter."""
    with starter.room() as path:
        yield path
