"""The house's arrows: who may import whom, and the one pair of hands for each dangerous thing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kis

SOURCE = Path(kis.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

FLOOR = {
    "command",
    "errors",
    "frozen",
    "identity",
    "limits",
    "profile",
    "receipt",
    "units",
    "vocabulary",
}

# Room -> the rooms it may import, itself aside. "facade" is the package's own __init__.
ARROWS = {
    "floor": set(),
    "engine": {"floor"},
    "linux": {"floor", "engine"},
    "backends": {"floor", "engine", "linux"},
    "caller": {"floor", "engine"},
    "api": {"floor", "engine", "linux", "backends", "caller"},
    "cli": {"floor", "engine", "caller", "api", "facade"},
    "facade": {"floor", "api"},
    "main": {"cli"},
}

PROCESS_STARTERS = {
    "fork", "forkpty", "posix_spawn", "posix_spawnp", "popen", "system", "startfile",
    "execl", "execle", "execlp", "execlpe", "execv", "execve", "execvp", "execvpe",
    "spawnl", "spawnle", "spawnlp", "spawnlpe", "spawnv", "spawnve", "spawnvp", "spawnvpe",
}  # fmt: skip
PROCESS_MODULES = {"subprocess", "multiprocessing", "pty", "_posixsubprocess"}
FILE_READERS = {
    "open", "stat", "lstat", "readlink", "listdir", "scandir", "access", "exists", "isfile",
    "isdir", "realpath", "walk", "statvfs", "getxattr",
}  # fmt: skip


def room_of(module: str) -> str:
    """Return the room of a dotted name below ``kis`` (``kis`` itself is the facade)."""
    parts = module.split(".")
    if len(parts) == 1:
        return "facade"
    if parts[1] == "__main__":
        return "main"
    if parts[1] == "py":
        return "facade"
    return "floor" if parts[1] in FLOOR else parts[1]


def module_of(path: Path) -> str:
    parts = ("kis", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield every import, also those inside functions and for type checkers only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that the arrows can be read"
            for alias in node.names:
                # ``from kis.engine import host`` names a module, ``… import Host`` does not.
                name = f"{node.module}.{alias.name}"
                yield node.lineno, name if is_module(name) else str(node.module)


def is_module(name: str) -> bool:
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def calls_of(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func
            yield node, name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")


def names_of(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield ``(line, module, name)`` for ``module.name`` and ``from module import name``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.lineno, node.value.id, node.attr
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, str(node.module), alias.name


def arrows_broken(module: str, tree: ast.Module) -> list[str]:
    room = room_of(module)
    broken = []
    for line, name in imports_of(tree):
        if name.split(".")[0] != "kis":
            continue
        target = room_of(name)
        other_backend = room == target == "backends" and name != module
        if other_backend or (target != room and target not in ARROWS[room]):
            broken.append(f"{module}:{line} imports {name}")
    return broken


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_of(path))
def test_imports_follow_the_arrows(path: Path) -> None:
    assert arrows_broken(module_of(path), tree_of(path)) == []


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("kis.profile", "import kis.engine.host"),
        ("kis.engine.engine", "def late():\n    from kis.backends.namespaces import Namespaces"),
        ("kis.engine.engine", "from kis import caller"),
        ("kis.engine.engine", "from kis.caller.config import Settings"),
        ("kis.linux.filesystem", "import kis.backends.namespaces"),
        ("kis.backends.process", "from kis.backends import namespaces"),
        ("kis.caller.config", "from kis.api import Engine"),
        ("kis.api", "import kis.cli.render"),
        ("kis.cli.run", "from kis.backends.process import Process"),
    ],
)
def test_an_arrow_the_wrong_way_is_seen(module: str, code: str) -> None:
    assert arrows_broken(module, ast.parse(code))


def test_every_room_is_known() -> None:
    assert {room_of(module_of(path)) for path in FILES} <= set(ARROWS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_of(path))
def test_imports_are_the_standard_library_or_ours(path: Path) -> None:
    """msgspec reads profile files; nothing else comes from outside."""
    allowed = {"kis", *sys.stdlib_module_names}
    if module_of(path) == "kis.caller.profilefile":
        allowed.add("msgspec")
    assert {name.split(".")[0] for _, name in imports_of(tree_of(path))} <= allowed


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_of(path))
def test_only_launch_starts_processes(path: Path) -> None:
    tree = tree_of(path)
    found = [f"{name}:{line}" for line, name in imports_of(tree) if name in PROCESS_MODULES]
    found += [
        f"{module}.{name}:{line}"
        for line, module, name in names_of(tree)
        if name.startswith("create_subprocess")
        or (module in ("os", "posix") and name in PROCESS_STARTERS)
    ]
    assert found == [] or module_of(path) == "kis.engine.launch"


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_of(path))
def test_only_host_and_observe_read_proc_and_sys(path: Path) -> None:
    found = []
    for call, name in calls_of(tree_of(path)):
        texts = [
            node.value if isinstance(node.value, bytes) else node.value.encode()
            for argument in call.args
            for node in ast.walk(argument)
            if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
        ]
        if name in FILE_READERS and any(text.startswith((b"/proc", b"/sys")) for text in texts):
            found.append(f"{name}:{call.lineno}")
    assert found == [] or module_of(path) in ("kis.engine.host", "kis.engine.observe")


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_of(path))
def test_only_syscalls_uses_ctypes(path: Path) -> None:
    names = {name.split(".")[0] for _, name in imports_of(tree_of(path))}
    assert not names & {"ctypes", "_ctypes", "cffi"} or module_of(path) == "kis.engine.syscalls"


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_of(path))
def test_only_render_prints(path: Path) -> None:
    tree = tree_of(path)
    found = [
        f"{name}:{call.lineno}"
        for call, name in calls_of(tree)
        if name == "print"
        or (
            name == "write"
            and call.args
            and isinstance(call.args[0], ast.Constant)
            and call.args[0].value in (1, 2)
        )
    ]
    found += [
        f"sys.{name}:{line}"
        for line, module, name in names_of(tree)
        if module == "sys" and name in ("stdout", "stderr", "__stdout__", "__stderr__")
    ]
    assert found == [] or module_of(path) == "kis.cli.render"


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_of(path))
def test_only_the_engine_holds_the_key_to_handles(path: Path) -> None:
    """P5: callers cannot construct a handle."""
    names = {name for _, _, name in names_of(tree_of(path))}
    assert not names & {"_KEY", "_make_handle"} or room_of(module_of(path)) == "engine"


@pytest.mark.parametrize("path", FILES, ids=lambda path: module_of(path))
def test_module_opens_with_a_room_card(path: Path) -> None:
    """Three lines: what it knows, what it must not know, who calls it."""
    card = ast.get_docstring(tree_of(path)) or ""
    assert all(word in card for word in ("Knows:", "ust not know:", "Called by:"))
