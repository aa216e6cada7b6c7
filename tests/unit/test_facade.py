"""The package offers its public names and loads nothing until one is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kis
from kis import vocabulary
from kis.vocabulary import GRANTABLE_CAPABILITIES, REFUSED_CAPABILITIES


@pytest.mark.parametrize("name", kis.__all__)
def test_facade_offers_every_public_name(name: str) -> None:
    assert getattr(kis, name) is not None


def test_facade_refuses_other_names() -> None:
    with pytest.raises(AttributeError):
        kis.nothing  # noqa: B018
    assert set(dir(kis)) == set(kis.__all__)


def test_facade_import_loads_no_room() -> None:
    code = "import sys, kis; print([m for m in sys.modules if m.startswith('kis.')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"


def test_capabilities_of_the_kernel_are_each_known_once() -> None:
    """capabilities(7) of Linux 6: 41 names, granted or refused, never both."""
    assert not GRANTABLE_CAPABILITIES.keys() & REFUSED_CAPABILITIES.keys()
    assert len(GRANTABLE_CAPABILITIES) + len(REFUSED_CAPABILITIES) == 41


def test_demands_are_isolation_or_limits() -> None:
    assert not vocabulary.ISOLATION & vocabulary.LIMITS
    assert set(vocabulary.Demand) == vocabulary.ISOLATION | vocabulary.LIMITS
