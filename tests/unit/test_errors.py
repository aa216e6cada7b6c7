"""Errors carry a stable code, and no foreign text in them can steer a terminal."""

from __future__ import annotations

import json
import pickle

import pytest

from kis.errors import (
    Code,
    ErrEscapeHatchForbidden,
    ErrProfileUnsatisfiable,
    ErrTierUnavailable,
    SandboxError,
    escaped,
    os_reason,
    quoted,
)


def test_error_text_is_code_and_message() -> None:
    error = SandboxError(Code.MOUNT_INVALID, "no such thing", "look again", {"field": "mounts"})
    assert str(error) == "mount_invalid: no such thing"
    assert error.to_dict() == {
        "code": "mount_invalid",
        "message": "no such thing",
        "hint": "look again",
        "details": {"field": "mounts"},
    }
    json.dumps(error.to_dict())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.PROFILE_UNSATISFIABLE, ErrProfileUnsatisfiable),
        (Code.TIER_UNAVAILABLE, ErrTierUnavailable),
        (Code.ESCAPE_HATCH_FORBIDDEN, ErrEscapeHatchForbidden),
    ],
)
def test_error_raised_by_code_is_caught_by_class(code: Code, kind: type[SandboxError]) -> None:
    with pytest.raises(kind) as caught:
        raise SandboxError(code, "message")
    assert caught.value.code is code


def test_error_class_refuses_foreign_code() -> None:
    with pytest.raises(TypeError):
        ErrTierUnavailable(Code.MOUNT_INVALID, "message")


def test_error_survives_pickle() -> None:
    """A worker process can hand its error to its parent."""
    error = SandboxError(Code.TIER_UNAVAILABLE, "message", "hint", {"usable_tiers": ["process"]})
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is ErrTierUnavailable
    assert again.to_dict() == error.to_dict()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"plain name", "'plain name'"),
        ("日本", "'日本'"),
        (b"\xe6\x97\xa5", "'日'"),
        (b"bad\xff", r"'bad\xff'"),
        ("bad\udcff", r"'bad\xff'"),
        (b"\x1b[2J", r"'\x1b[2J'"),
        ("a\nb\tc\rd", r"'a\nb\tc\rd'"),
        (r"back\slash", r"'back\\slash'"),
        ("it's", r"'it\'s'"),
        ("\u202eright to left", r"'\u202eright to left'"),
        ("\x85\x7f", r"'\u0085\x7f'"),
        ("\U000e0001", r"'\U000e0001'"),
        ("\ud800", r"'\ud800'"),
        (b"\0", r"'\x00'"),
    ],
)
def test_quoted_shows_every_character(text: bytes | str, shown: str) -> None:
    """CVE-2023-28101: control characters in a name must not reach the terminal."""
    assert quoted(text) == shown


def test_escaped_cuts_long_text() -> None:
    assert len(escaped("x" * 100_000)) == 4097


def test_os_reason_leaves_out_the_path() -> None:
    assert os_reason(FileNotFoundError(2, "No such file", "/secret/path")) == (
        "No such file or directory"
    )
