"""Which trees an interpreter needs, and which interpreter the caller means."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kis.caller.bases import Interpreter, find_interpreter, interpreter_trees
from kis.errors import Code, SandboxError


class NoEngine:
    """Asking for anything of it is a mistake of the test."""


def test_interpreter_below_usr_needs_no_tree() -> None:
    assert interpreter_trees(Interpreter(b"/usr/bin/python3", (b"/usr", b"/usr/local"))) == ()


def test_interpreter_outside_usr_needs_each_prefix_once(tmp_path: Path) -> None:
    here = os.fsencode(tmp_path)
    found = interpreter_trees(
        Interpreter(here + b"/venv/bin/python", (here + b"/venv", here + b"/py", here + b"/py/"))
    )
    assert found == (here + b"/py", here + b"/venv")


def test_interpreter_prefix_below_another_is_covered(tmp_path: Path) -> None:
    here = os.fsencode(tmp_path)
    found = interpreter_trees(Interpreter(here + b"/x", (here, here + b"/venv")))
    assert found == (here,)


def test_interpreter_prefix_behind_a_link_is_at_both_paths(tmp_path: Path) -> None:
    (tmp_path / "py3.11").mkdir()
    (tmp_path / "py").symlink_to("py3.11")
    here = os.fsencode(tmp_path)
    found = interpreter_trees(Interpreter(here + b"/py/bin/python3", (here + b"/py",)))
    assert found == (here + b"/py", here + b"/py3.11")


def test_interpreter_of_the_whole_file_system_is_refused() -> None:
    with pytest.raises(SandboxError) as caught:
        interpreter_trees(Interpreter(b"/bin/python3", (b"/",)))
    assert caught.value.code is Code.BASE_INVALID


def test_interpreter_that_runs_kis_answers_for_itself() -> None:
    directory = os.path.dirname(os.fsencode(sys.executable))
    found = find_interpreter(NoEngine(), {b"PATH": b"relative:/does/not/exist:" + directory})  # type: ignore[arg-type]
    assert found.directory == directory
    assert os.fsencode(sys.prefix) in found.prefixes


def test_interpreter_missing_is_base_invalid(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("not executable")
    for path in (b"", os.fsencode(tmp_path)):
        with pytest.raises(SandboxError) as caught:
            find_interpreter(NoEngine(), {b"PATH": path})  # type: ignore[arg-type]
        assert caught.value.code is Code.BASE_INVALID
