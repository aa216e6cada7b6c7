"""Puts the parts together for users of the library: which backends there are, and the defaults.

Knows: every backend, the caller's defaults. Must not know: flags or files. Called by: cli, and
by everybody who writes ``from kis import Engine``.
"""

from __future__ import annotations

import os

from kis.backends.namespaces import Namespaces
from kis.backends.process import Process
from kis.caller.idranges import FlockedIdRanges
from kis.engine.backend import AbsentBackend
from kis.engine.engine import Engine as _Engine
from kis.linux.hosttree import admit_devices, admit_host_tree
from kis.vocabulary import Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    from kis.engine.aio import AsyncEngine as AsyncEngine
    from kis.engine.backend import Backend
    from kis.engine.engine import Devices, HostTree, IdRanges

    class Parts(TypedDict):
        backends: tuple[Backend, ...]
        agent_path: bytes
        host_tree: HostTree
        devices: Devices
        id_ranges: IdRanges


_NOT_BUILT = "not built yet"


def backend_table() -> tuple[Backend, ...]:
    """Return every backend that kis knows, in the order in which a tier tries them."""
    return (
        Process(),
        AbsentBackend(Tier.HOST, "landlock", _NOT_BUILT),
        Namespaces(),
        AbsentBackend(Tier.MICROVM, "qemu", _NOT_BUILT),
        AbsentBackend(Tier.MICROVM, "qemu-tcg", _NOT_BUILT),
        AbsentBackend(Tier.WASM, "wasmtime", _NOT_BUILT),
    )


def installed_agent() -> bytes:
    """Return where the package holds kis-init. An AppArmor profile can name this very path."""
    return os.path.join(os.path.dirname(os.fsencode(__file__)), b"_native", b"kis-init")


def parts() -> Parts:
    """Return what both engines are made of by default."""
    return {
        "backends": backend_table(),
        "agent_path": installed_agent(),
        "host_tree": admit_host_tree,
        "devices": admit_devices,
        "id_ranges": FlockedIdRanges(),
    }


class Engine(_Engine):
    """The engine with every backend of kis, and host id ranges held below ``/run/kis``."""

    def __init__(self) -> None:
        super().__init__(**parts())


def __getattr__(name: str) -> object:
    # Made on demand: asyncio alone takes longer to import than a whole run.
    if name != "AsyncEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kis.engine.aio import AsyncEngine as WithoutParts

    class OfAsyncio(WithoutParts):
        """The engine for asyncio, with every backend of kis."""

        __qualname__ = __name__ = "AsyncEngine"

        def __init__(self) -> None:
            super().__init__(**parts())

    globals()[name] = OfAsyncio
    return OfAsyncio
