"""A profile file is TOML with known keys and right types, or it is refused by field."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kis.caller.config import Settings, read_settings
from kis.caller.mountspec import MountSpec
from kis.errors import Code, SandboxError
from kis.vocabulary import UNLIMITED, Tier

FULL = """\
tier = "container"
backend = "namespaces"
base = "root"
user = "1000:1000"
cwd = "work"
writable_root = true
capabilities = ["CHOWN"]
devices = ["/dev/null"]
secrets = [{ name = "token", file = "token.txt" }]

[network]
mode = "loopback"

[[mounts]]
source = "data"
target = "/data"
mode = "rw"
owner = "5:6"

[[mounts]]
source = "/a b:c"

[[tmpfs]]
target = "/scratch"

[env]
GREETING = "hello, 日本"

[limits]
open_files = 64
wall_seconds = "2m"
output_bytes = "1MiB"
grace_seconds = 0.5

[escape_hatch]
allow_net_host = true
"""


def read(path: Path, *pairs: tuple[str, str]) -> Settings:
    return read_settings([("--profile", str(path)), *pairs], ["true"], {})


def refused(path: Path, content: str | bytes) -> SandboxError:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SandboxError) as caught:
        read(path)
    assert caught.value.code is Code.CONFIG_INVALID
    return caught.value


def test_file_says_everything(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text(FULL)
    here = os.fsencode(tmp_path)
    found = read(path)
    assert found.tier is Tier.CONTAINER
    assert found.backend == "namespaces"
    assert found.base == here + b"/root"
    assert found.user == "1000:1000"
    assert found.cwd == b"work"
    assert found.writable_root
    assert found.capabilities == ["CHOWN"]
    assert list(found.devices) == [b"/dev/null"]
    assert found.secrets == {"token": here + b"/token.txt"}
    assert found.network_mode == "loopback"
    assert list(found.mounts.values()) == [
        MountSpec(here + b"/data", b"/data", "rw", (5, 6)),
        MountSpec(b"/a b:c", b"/a b:c"),
    ]
    assert list(found.tmpfs) == [b"/scratch"]
    assert found.env == {b"GREETING": "hello, 日本".encode()}
    assert found.limits == {
        "open_files": 64,
        "wall_seconds": "2m",
        "output_bytes": "1MiB",
        "grace_seconds": 0.5,
    }
    assert found.hatches["allow_net_host"]
    assert not found.hatches["allow_process_tier"]


def test_file_of_nothing_grants_nothing(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text("# nothing\n")
    found, plain = read(path), Settings(["true"])
    plain.hatches = dict.fromkeys(found.hatches, False)
    for name in Settings.__slots__:
        assert getattr(found, name) == getattr(plain, name), name


def test_flags_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text(FULL)
    found = read(
        path,
        ("--tier", "process"),
        ("--net", "off"),
        ("--base", "host"),
        ("--timeout", "5"),
        ("--unlimited", "output"),
        ("-v", "/other:/data"),
        ("--env", "GREETING=bye"),
    )
    assert found.tier is Tier.PROCESS
    assert found.network_mode == "off"
    assert found.base == b"host"
    assert found.limits["wall_seconds"] == "5"
    assert found.limits["output_bytes"] is UNLIMITED
    assert found.mounts[b"/data"] == MountSpec(b"/other", b"/data")
    assert found.env == {b"GREETING": b"bye"}


def test_flag_before_the_file_still_overrides(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text('tier = "wasm"\n')
    found = read_settings([("--tier", "process"), ("--profile", str(path))], ["true"], {})
    assert found.tier is Tier.PROCESS


@pytest.mark.parametrize(
    ("content", "field", "hint"),
    [
        ("teir = 'wasm'", "teir", "tier"),
        ("[limits]\nopen_file = 1", "limits.open_file", "open_files"),
        ("[limits]\nmemory = '1G'", "limits.memory", ""),
        ("[network]\nmodes = 'off'", "network.modes", "mode"),
        ("[[mounts]]\nsource = '/a'\n[[mounts]]\nsorce = '/b'", "mounts[1].sorce", "source"),
        ("[escape_hatch]\nallow_everything = true", "escape_hatch.allow_everything", ""),
        ("[escape_hatch]\nallow_host_net = true", "escape_hatch.allow_host_net", "allow_net_host"),
        ("'a\\nb' = 1\n\"c\\nd\" = 1", "a\\\\nb", ""),
    ],
)
def test_file_refuses_unknown_key(tmp_path: Path, content: str, field: str, hint: str) -> None:
    error = refused(tmp_path / "p.toml", content)
    assert error.details["field"] == field
    assert "unknown key" in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("writable_root = 'yes'", "writable_root"),
        ("writable_root = 1", "writable_root"),
        ("capabilities = 'CHOWN'", "capabilities"),
        ("capabilities = [1]", "capabilities[0]"),
        ("[limits]\nopen_files = '7'", "limits.open_files"),
        ("[limits]\nopen_files = 1.5", "limits.open_files"),
        ("[limits]\nopen_files = true", "limits.open_files"),
        ("[limits]\nopen_files = 99999999999999999999999999", "limits.open_files"),
        ("[limits]\nopen_files = 0", "limits.open_files"),
        ("[limits]\nwall_seconds = nan", "limits.wall_seconds"),
        ("[limits]\nwall_seconds = -1", "limits.wall_seconds"),
        ("[limits]\nwall_seconds = '5 parsecs'", "limits.wall_seconds"),
        ("[limits]\noutput_bytes = '5XB'", "limits.output_bytes"),
        ("[limits]\nunlimited = ['sky']", "limits.unlimited"),
        ("[limits]\ngrace_seconds = 1979-05-27", "limits.grace_seconds"),
        ("network = 'off'", "network"),
        ("[network]\nmode = 'on'", "network.mode"),
        ("tier = 'vm'", "tier"),
        ("[[mounts]]\ntarget = '/x'", "mounts[0]"),
        ("[[mounts]]\nsource = '/x'\nmode = 'w'", "mounts[0].mode"),
        ("[[mounts]]\nsource = '/x'\nowner = 'me'", "mounts[0].owner"),
        ("mounts = {source = '/x'}", "mounts"),
        ("[env]\nA = 1", "env[...]"),
        ("secrets = [{name = 'x', value = 'hunter2'}]", "secrets[0].value"),
    ],
)
def test_file_refuses_wrong_value(tmp_path: Path, content: str, field: str) -> None:
    error = refused(tmp_path / "p.toml", content)
    assert error.details["field"] == field
    assert "hunter2" not in str(error)


@pytest.mark.parametrize(
    "content",
    [b"tier = ", b"not toml at all", b"\xff\xfe", b"a = 1\na = 2", b"\0", b"a = " + b"9" * 5000,
     b"a = " + b"[" * 60_000],
    ids=range(7),
)  # fmt: skip
def test_file_that_is_not_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "is not TOML" in refused(tmp_path / "p.toml", content).message


def test_file_of_ten_megabytes_is_refused(tmp_path: Path) -> None:
    assert "larger than" in refused(tmp_path / "p.toml", b"#" * 10_000_000).message


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_file_that_is_no_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    """A pipe that nobody writes to must not be waited for."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SandboxError, match="no regular file"):
        read(tmp_path / name)


def test_file_above_the_cap_is_refused_by_the_cap(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(b"#" * 65536)
    read(path)
    assert "larger than 65536 bytes" in refused(path, b"#" * 65537).message


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "content",
    [
        "a." * 32_000 + "a = 1",
        "[" + "a." * 32_000 + "a]",
        "x = { " + '"a".' * 16_000 + "a = 1 }",
        'x = ["""a"""", { ' + "a." * 32_000 + 'a = 1 }, "b"]',
    ],
    ids=range(4),
)
def test_deep_keys_are_refused_before_they_are_decoded(tmp_path: Path, content: str) -> None:
    """Decoding one takes time by the cube of its parts: minutes, for what fits into the cap."""
    assert "dots in its keys" in refused(tmp_path / "p.toml", f"#\n{content}").message
    assert "line 2" in refused(tmp_path / "p.toml", f"#\n{content}").message


@pytest.mark.timeout(20)
@pytest.mark.parametrize("unit", ['"', '"""', "'", 3 * "'", '\\"', '"""\\', '"\\', "#", ". "])
def test_no_file_takes_long_to_look_through(tmp_path: Path, unit: str) -> None:
    refused(tmp_path / "p.toml", 'x = """' + unit * (65_000 // len(unit)))
    refused(tmp_path / "p.toml", "x = " + unit * (65_000 // len(unit)))


def test_dots_in_texts_part_no_keys(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    dots = "a." * 40
    path.write_text(
        f'# {dots}\n[env]\nA = "{dots}"\nB = \'{dots}\'\nC = """\n{dots}\n"{dots}"""\n'
        f"D = '''{dots}\n'{dots}'''\n"
    )
    assert len(read(path).env) == 4


def test_file_that_is_missing_or_a_directory_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(SandboxError) as caught:
            read(path)
        assert caught.value.code is Code.CONFIG_INVALID
