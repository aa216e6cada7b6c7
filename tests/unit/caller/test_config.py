"""Flags become settings, settings become what the engine takes, and mistakes name their flag."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kis.caller import config
from kis.caller.config import Settings, admit, read_settings
from kis.cli.flags import RUN_FLAGS
from kis.engine import admission
from kis.errors import Code, SandboxError
from kis.identity import Base, MountSource
from kis.vocabulary import MountMode, Tier, Unlimited

ENVIRON = {b"TOKEN": b"hunter2", b"LANG": b"C"}


class AdmittingEngine:
    """The engine's admission and nothing else: no test here may start anything."""

    def admit_mount(self, descriptor: int) -> MountSource:
        return admission.admit_mount(descriptor)

    def admit_device(self, descriptor: int) -> MountSource:
        return admission.admit_device(descriptor)

    def admit_directory(self, descriptor: int) -> Base:
        return admission.admit_directory(descriptor, ())

    def admit_host_base(self, *_trees: object, **_named: object) -> Base:
        return admission.make_base("host", ())


def settings(*pairs: tuple[str, str], argv: tuple[str, ...] = ("true",)) -> Settings:
    return read_settings(pairs, argv, ENVIRON)


def request(*pairs: tuple[str, str], argv: tuple[str, ...] = ("true",)) -> config.Request:
    return admit(settings(*pairs, argv=argv), AdmittingEngine(), ENVIRON)  # type: ignore[arg-type]


@pytest.fixture
def open_descriptors() -> Iterator[None]:
    """No path through here may leave a descriptor open."""
    before = set(os.listdir("/dev/fd"))
    yield
    assert set(os.listdir("/dev/fd")) <= before


def test_every_flag_has_a_meaning() -> None:
    """A flag that is read and not applied would be accepted and not enforced."""
    named = {flag.name for flag in RUN_FLAGS} - {"--profile", "--help"}
    assert named == set(config._APPLY)


def test_no_flag_changes_nothing() -> None:
    found = request()
    assert found.profile == config.Profile()
    assert found.command == config.Command(["true"])
    assert found.tier is None
    assert found.backend is None
    assert found.base.kind == "host"


@pytest.mark.parametrize(
    ("pair", "said_by"),
    [
        (("--tier", "vm"), "--tier"),
        (("--net", "on"), "--net"),
        (("--allow", "pypi.org"), "--allow"),
        (("--timeout", "0"), "--timeout"),
        (("--timeout", "-1"), "--timeout"),
        (("--timeout", "nan"), "--timeout"),
        (("--timeout", "inf"), "--timeout"),
        (("--timeout", "99999999999"), "--timeout"),
        (("--timeout", "5d"), "--timeout"),
        (("--grace", "soon"), "--grace"),
        (("--output-limit", "1XB"), "--output-limit"),
        (("--output-limit", "0"), "--output-limit"),
        (("--open-files", "1K"), "--open-files"),
        (("--open-files", "-5"), "--open-files"),
        (("--open-files", "9999999999"), "--open-files"),
        (("--open-files", "999999999"), "--open-files"),
        (("--unlimited", "sky"), "--unlimited"),
        (("--unlimited", ""), "--unlimited"),
        (("--unlimited", "memory"), "--unlimited"),
        (("--env", ""), "--env"),
        (("--env", "=x"), "--env"),
        (("--env", "NOT_SET"), "--env"),
        (("--env-file", "/does/not/exist"), "--env-file"),
        (("--secret", "hunter2"), "--secret"),
        (("--secret", "name=hunter2"), "--secret"),
        (("--secret", "=@/dev/null"), "--secret"),
        (("--secret", "name=@"), "--secret"),
    ],
)
def test_flag_refuses_value(pair: tuple[str, str], said_by: str) -> None:
    with pytest.raises(SandboxError) as caught:
        request(pair)
    assert caught.value.code is Code.CONFIG_INVALID
    assert caught.value.message.startswith(f"{said_by}: ")
    assert "hunter2" not in str(caught.value)


def test_unlimited_lifts_what_it_names() -> None:
    limits = request(("--unlimited", "open-files,timeout,output")).profile.limits
    for name in ("open_files", "wall_seconds", "output_bytes"):
        assert isinstance(getattr(limits, name), Unlimited)


def test_later_limit_wins() -> None:
    found = request(("--unlimited", "timeout"), ("--timeout", "5")).profile.limits
    assert found.resolved_wall_seconds == 5.0


def test_variables_come_from_flag_file_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_bytes(b"# comment\n\nA=file\nB=x=y \xff\nLANG\nE=\n")
    found = request(("--env", "A=flag"), ("--env", "TOKEN"), ("--env-file", str(file)))
    assert dict(found.command.env) == {
        b"A": b"flag",
        b"B": b"x=y \xff",
        b"LANG": b"C",
        b"E": b"",
        b"TOKEN": b"hunter2",
    }
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    "line", ["hunter2 and more", "hunter2", " A=hunter2", "1A=hunter2", "A-B=hunter2", "=hunter2"]
)
def test_line_of_a_file_of_variables_is_never_shown(tmp_path: Path, line: str) -> None:
    """It may be the rest of a secret that spans lines: only its number is told."""
    file = tmp_path / "env"
    file.write_text(f"A=1\n# note\n{line}\n")
    with pytest.raises(SandboxError) as caught:
        request(("--env-file", str(file)))
    error = caught.value
    assert error.code is Code.CONFIG_INVALID
    assert f"line 3 of '{file}'" in error.message
    assert "hunter2" not in str(error) + error.hint + str(error.details)


def test_secret_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"hunter2\0\xff")
    found = request(("--secret", f"api=@{tmp_path}/token"))
    assert found.profile.secrets[0].name == "api"
    assert found.profile.secrets[0].content == b"hunter2\0\xff"
    assert "hunter2" not in repr(found)


def test_secret_refuses_bad_name_and_large_file(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * ((1 << 20) + 1))
    for text in (f"a/b=@{tmp_path}/large", f"ok=@{tmp_path}/large", f"ok=@{tmp_path}"):
        with pytest.raises(SandboxError) as caught:
            request(("--secret", text))
        assert caught.value.code is Code.CONFIG_INVALID


@pytest.mark.parametrize("name", ["a b:c", "a,b", "-v", "two\nlines", "\udcff", "日本"])
def test_mount_of_awkward_path_is_admitted(
    tmp_path: Path, name: str, open_descriptors: None
) -> None:
    """A11: the long form takes any path; bytes that are no UTF-8 survive."""
    path = os.fsencode(tmp_path) + b"/" + name.encode("utf-8", "surrogateescape")
    os.mkdir(path)
    text = path.decode("utf-8", "surrogateescape").replace('"', '""')
    found = request(("--mount", f'"source={text}",target=/m/{"a b:c" if "," in name else name}'))
    mount = found.profile.mounts[0]
    assert mount.source.path == path
    assert mount.mode is MountMode.RO
    mount.source.close()


def test_mount_shows_a_link_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    mount = request(("-v", f"{tmp_path}/link:/m")).profile.mounts[0]
    assert mount.source.path == os.fsencode(tmp_path / "real")


def test_mount_refuses_special_files(tmp_path: Path, open_descriptors: None) -> None:
    os.mkfifo(tmp_path / "fifo")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "socket"))
    for path in (tmp_path / "fifo", tmp_path / "socket", Path("/dev/null"), tmp_path / "gone"):
        with pytest.raises(SandboxError) as caught:
            request(("-v", f"{path}:/m"))
        assert caught.value.code is Code.MOUNT_INVALID
        assert f"'{path}'" in caught.value.message
    server.close()


def test_device_must_be_one(tmp_path: Path, open_descriptors: None) -> None:
    found = request(("--device", "/dev/null"))
    assert found.profile.devices[0].target == b"/dev/null"
    found.profile.devices[0].source.close()
    with pytest.raises(SandboxError) as caught:
        request(("--device", str(tmp_path)))
    assert caught.value.code is Code.MOUNT_INVALID
    assert caught.value.message.endswith("is a directory, not a device node")
    assert "--mount" in caught.value.hint
    assert caught.value.details["field"] == "devices"


def test_device_that_the_caller_may_not_open_is_refused(
    monkeypatch: pytest.MonkeyPatch, open_descriptors: None
) -> None:
    """The kernel is asked, for lists of access count as well as modes."""
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    with pytest.raises(SandboxError) as caught:
        request(("--device", "/dev/null"))
    assert caught.value.code is Code.MOUNT_INVALID
    assert caught.value.details["field"] == "devices"
    assert "cannot be opened" in caught.value.message


def test_base_must_be_a_directory(tmp_path: Path, open_descriptors: None) -> None:
    (tmp_path / "file").touch()
    for name in ("missing", "file"):
        with pytest.raises(SandboxError) as caught:
            request(("--base", str(tmp_path / name)))
        assert caught.value.code is Code.BASE_INVALID
        assert f"'{tmp_path / name}'" in caught.value.message
    found = request(("--base", str(tmp_path)))
    assert found.base.kind == "directory"
    found.base.close()


def test_request_holds_what_was_said() -> None:
    found = request(
        ("--tier", "container"),
        ("--backend", "namespaces"),
        ("--net", "loopback"),
        ("--cap", "chown"),
        ("--tmpfs", "/t"),
        ("--cwd", "w"),
        ("--user", "root"),
        ("--writable-root", ""),
        ("--merge-stderr", ""),
        ("--allow-net-host", ""),
        argv=("cat", "\udcff"),
    )
    assert found.tier is Tier.CONTAINER
    assert found.backend == "namespaces"
    assert found.profile.network.mode == "loopback"
    assert found.profile.capabilities == ("CHOWN",)
    assert found.profile.tmpfs[0].target == b"/t"
    assert found.profile.writable_root
    assert found.profile.escape_hatch == config.EscapeHatch(allow_net_host=True)
    assert found.command.cwd == b"w"
    assert found.command.uid == 0
    assert found.command.merged
    assert found.command.argv == (b"cat", b"\xff")
