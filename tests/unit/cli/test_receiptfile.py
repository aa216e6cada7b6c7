"""A receipt file is whole or not there; a bad path is found before the run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kis.cli.receiptfile import ReceiptFile, open_receipt_file
from kis.errors import Code, SandboxError
from kis.receipt import Receipt
from kis.vocabulary import Tier

RECEIPT = Receipt("run_1", "sbx_1", Tier.CONTAINER, "namespaces", ())


def test_receipt_replaces_the_file_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    path.write_text("x" * 10_000)
    path.chmod(0o644)
    file = open_receipt_file(os.fsencode(path))
    assert file is not None
    assert path.read_text() == "x" * 10_000
    assert os.listdir(tmp_path) == ["receipt.json"]
    file.write(RECEIPT)
    assert json.loads(path.read_text())["id"] == "run_1"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["receipt.json"]


def test_receipt_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    file = open_receipt_file(os.fsencode(tmp_path / "link"))
    assert file is not None
    file.write(RECEIPT)
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "real").read_text())["id"] == "run_1"


def test_receipt_into_a_pipe_goes_there(tmp_path: Path) -> None:
    """``--receipt /dev/fd/3`` must not replace the device's name."""
    reader, writer = os.pipe()
    file = open_receipt_file(b"/dev/fd/%d" % writer)
    os.close(writer)
    assert file is not None
    file.write(RECEIPT)
    assert json.loads(os.read(reader, 1 << 16))["id"] == "run_1"
    assert os.read(reader, 1) == b""
    os.close(reader)


@pytest.mark.parametrize("path", ["missing/receipt.json", ".", "", "a\0b", "file/x"])
def test_receipt_path_is_refused_before_the_run(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SandboxError) as caught:
        open_receipt_file(os.fsencode(path))
    assert caught.value.code is Code.CONFIG_INVALID
    assert caught.value.details == {"field": "--receipt"}
    assert os.listdir(tmp_path) == ["file"]


def test_receipt_whose_directory_went_away_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    file = ReceiptFile(os.fsencode(tmp_path / "d" / "receipt.json"))
    file.check()
    (tmp_path / "d").rmdir()
    with pytest.raises(SandboxError) as caught:
        file.write(RECEIPT)
    assert caught.value.code is Code.CONFIG_INVALID


def test_receipt_not_wanted_is_none_and_dash_is_a_table(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert open_receipt_file(None) is None
    table = open_receipt_file(b"-")
    assert table is not None
    table.write(RECEIPT)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("receipt run_1")


def test_receipt_goes_where_its_path_led_before_the_run(tmp_path: Path) -> None:
    """The payload may have the directory's parent to write to, and put a link in its place."""
    (tmp_path / "mounted" / "d").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    file = open_receipt_file(os.fsencode(tmp_path / "mounted" / "d" / "receipt.json"))
    assert file is not None
    (tmp_path / "mounted" / "d").rename(tmp_path / "mounted" / "moved")
    (tmp_path / "mounted" / "d").symlink_to(tmp_path / "secret")
    (tmp_path / "mounted" / "moved" / "receipt.json").symlink_to(tmp_path / "secret" / "file")
    file.write(RECEIPT)
    assert os.listdir(tmp_path / "secret") == []
    assert os.listdir(tmp_path / "mounted" / "moved") == ["receipt.json"]
    assert not (tmp_path / "mounted" / "moved" / "receipt.json").is_symlink()
