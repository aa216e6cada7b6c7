"""The process tier's backend: what it cannot give is refused, not left out in silence."""

from __future__ import annotations

import pytest
from made_up import directory_base, host_base, request

from kis.backends.process import Process
from kis.engine import admission
from kis.errors import Code, SandboxError
from kis.identity import Base


@pytest.mark.parametrize(
    "base",
    [
        directory_base(),
        admission.make_base("host", (), path_entries=(b"/opt/python/bin",), extended=True),
        admission.make_base("host", (), extended=True),
    ],
)
def test_a_named_base_is_refused(base: Base) -> None:
    with pytest.raises(SandboxError) as caught:
        Process().plan(request(base=base))
    assert caught.value.code is Code.PROFILE_UNSATISFIABLE
    assert caught.value.details["field"] == "base"
    assert "base" in caught.value.message


def test_the_host_is_the_base_there_is() -> None:
    assert Process().plan(request(base=host_base())).steps
