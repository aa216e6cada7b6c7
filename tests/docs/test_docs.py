"""What the documents say is so: every code, flag, key, demand, limit and example."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from kis.cli.flags import RUN_FLAGS
from kis.errors import _CLASS_OF_CODE, Code
from kis.limits import Limits
from kis.vocabulary import GRANTABLE_CAPABILITIES, Demand, Reason, Tier

CHECKOUT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([CHECKOUT / "README.md", *(CHECKOUT / "docs").glob("*.md")])


def page(name: str) -> str:
    return (CHECKOUT / "docs" / name).read_text()


def words_in_code(text: str) -> set[str]:
    """What stands between backquotes, and the single words of it."""
    spans = re.findall(r"`([^`\n]+)`", text)
    return set(spans) | {word for span in spans for word in re.split(r"[\s,=\[\]|\\]+", span)}


def rows(text: str, first: str) -> dict[str, list[str]]:
    """The table whose head starts with `first`: its rows by their first cell."""
    found = {}
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {first} |"):
            next(lines)
            for row in lines:
                if not row.startswith("|"):
                    return found
                cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
                found[cells[0].strip("`")] = cells[1:]
    return found


def test_every_code_has_a_row() -> None:
    """The table of errors holds every code, no other, and names the class of each."""
    table = rows(page("errors.md"), "code")
    assert set(table) == {str(code) for code in Code}
    for code in Code:
        kind = _CLASS_OF_CODE.get(code)
        assert table[code][1] == (f"`{kind.__name__}`" if kind else "")


def test_every_flag_is_documented() -> None:
    """Each spelling of each flag stands in the page on the profile, and no other."""
    text = page("profile.md")
    said = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))
    known = {spelling for flag in RUN_FLAGS for spelling in flag.spellings} - {"-h"}
    assert known - said == set()
    assert said - known == set()


def test_every_key_of_a_profile_file_is_documented() -> None:
    """Each key of each table of the profile file stands in the page on the profile."""
    profilefile = pytest.importorskip("kis.caller.profilefile", reason="needs msgspec")
    words = words_in_code(page("profile.md"))
    for key in profilefile.ProfileTable.__struct_fields__:
        assert key in words | {word.strip("[]") for word in words}, key
    for name, table in profilefile._TABLES.items():
        for key in table.__struct_fields__:
            assert key in words, f"{name}.{key}"


def test_example_file_is_accepted(tmp_path: Path) -> None:
    """The profile file of the page decodes."""
    profilefile = pytest.importorskip("kis.caller.profilefile", reason="needs msgspec")
    text = re.search(r"```toml\n(.*?)```", page("profile.md"), re.S)
    assert text is not None
    assert tomllib.loads(text[1])
    (tmp_path / "profile.toml").write_text(text[1])
    table = profilefile.read_profile_file(str(tmp_path / "profile.toml").encode())
    assert table.tier == "container"


def test_defaults_of_limits_are_true() -> None:
    """The defaults in the table are those of the code."""
    table = rows(page("profile.md"), "field")
    limits = rows(page("profile.md").partition("## Limits")[2], "field")
    assert table["network mode"][0] == "`off`"
    assert limits["open files"][1] == str(Limits().resolved_open_files)
    assert float(limits["wall time"][1]) == Limits().resolved_wall_seconds
    assert float(limits["grace"][1]) == Limits().resolved_grace_seconds
    mebibytes = (Limits().resolved_output_bytes or 0) >> 20
    assert limits["output"][1] == f"{mebibytes} MiB"


def test_space_is_as_large_as_said() -> None:
    from kis.linux.filesystem import SPACE_BYTES

    assert f"{SPACE_BYTES >> 20} MiB" in page("tiers.md")


def test_every_demand_and_tier_is_documented() -> None:
    words = words_in_code(page("tiers.md"))
    assert {str(demand) for demand in Demand} - words == set()
    assert set(rows(page("tiers.md"), "tier")) == {str(tier) for tier in Tier}


def test_tiers_that_are_built_are_marked() -> None:
    """The columns name the backends, and say yes exactly where there is one."""
    from kis.api import backend_table
    from kis.engine.backend import AbsentBackend

    built = {str(b.tier): b.name for b in backend_table() if not isinstance(b, AbsentBackend)}
    for tier, cells in rows(page("tiers.md"), "tier").items():
        assert cells[-2:] == ([f"`{built[tier]}`", "yes"] if tier in built else ["", "no"])


def test_every_reason_is_documented() -> None:
    assert {str(reason) for reason in Reason} - words_in_code(page("errors.md")) == set()


def test_capabilities_are_listed() -> None:
    text = page("profile.md").partition("## Capabilities")[2].partition(" can be\n")[0]
    assert set(re.findall(r"[A-Z_]{4,}", text)) == set(GRANTABLE_CAPABILITIES)


def test_python_blocks_parse() -> None:
    """Each Python block parses, and imports only what the package offers."""
    import kis

    for path in PAGES:
        for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.S):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and node.module == "kis":
                    assert {alias.name for alias in node.names} <= set(kis.__all__)


def test_links_lead_somewhere() -> None:
    for path in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_name_no_machine(path: Path) -> None:
    """No path of whoever wrote it."""
    assert not re.search(r"/root/|/home/(?!user)", path.read_text())
    assert str(CHECKOUT) not in path.read_text()
