"""What was asked, which mechanism enforced it, and what was seen.

Knows: the shape of the proof. Must not know: how anything was observed.
Called by: engine (makes it), caller and cli (show it).
"""

from __future__ import annotations

from kis.frozen import Frozen
from kis.vocabulary import Reason, Tier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Literal

    Shown = str | int | float | bool | tuple[str, ...] | None


class Entry(Frozen):
    """One field of the proof.

    ``source`` is ``observed`` (the engine read it from outside), ``self_reported`` (only the
    inside can say it) or ``engine`` (the engine enforces it itself). ``after_payload`` is true
    where payload code had already run in the sandbox. ``holds`` is ``None`` where there was
    nothing to compare. Values are text, numbers or tuples of text; secrets by name only.
    """

    __slots__ = ("after_payload", "asked", "field", "holds", "mechanism", "observed", "source")
    field: str
    asked: Shown
    mechanism: str
    observed: Shown
    source: Literal["observed", "self_reported", "engine"]
    after_payload: bool
    holds: bool | None

    def __init__(
        self,
        field: str,
        asked: Shown,
        mechanism: str,
        observed: Shown,
        source: Literal["observed", "self_reported", "engine"] = "observed",
        after_payload: bool = False,
        holds: bool | None = None,
    ) -> None:
        self._set("field", field, "asked", asked, "mechanism", mechanism)
        self._set("observed", observed, "source", source)
        self._set("after_payload", after_payload, "holds", holds)

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON-ready values."""
        return {name: _plain(getattr(self, name)) for name in _ENTRY_ORDER}


class Receipt(Frozen):
    """The proof of one command. ``id`` is the run's, ``sandbox`` the sandbox's.

    ``reason``, ``exit_code`` and ``signal`` say how the command ended, as its outcome does.
    """

    __slots__ = ("_made", "backend", "exit_code", "id", "reason", "sandbox", "signal", "tier")
    id: str
    sandbox: str
    tier: Tier
    backend: str
    reason: Reason | None
    exit_code: int | None
    signal: int | None
    _made: Callable[[], Iterable[Entry]] | tuple[Entry, ...]

    def __init__(
        self,
        id: str,
        sandbox: str,
        tier: Tier,
        backend: str,
        entries: Iterable[Entry] | Callable[[], Iterable[Entry]],
        reason: Reason | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
    ) -> None:
        """``entries``: themselves, or what makes them when somebody first reads the receipt."""
        self._set("id", id, "sandbox", sandbox, "tier", tier, "backend", backend)
        self._set("_made", entries if callable(entries) else tuple(entries))
        self._set("reason", reason, "exit_code", exit_code, "signal", signal)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every field of the proof, in order."""
        if not isinstance(self._made, tuple):
            self._set("_made", tuple(self._made()))
        assert isinstance(self._made, tuple)
        return self._made

    @classmethod
    def _fields(cls) -> tuple[str, ...]:
        return (
            "id",
            "sandbox",
            "tier",
            "backend",
            "entries",
            "reason",
            "exit_code",
            "signal",
        )

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__({**state, "_made": state["entries"]} if "entries" in state else state)

    @property
    def holds(self) -> bool:
        """Whether nothing that was observed differs from what was asked."""
        return all(entry.holds is not False for entry in self.entries)

    def get(self, field: str) -> Entry | None:
        """Return the entry of a field, or ``None`` where the receipt says nothing of it."""
        for entry in self.entries:
            if entry.field == field:
                return entry
        return None

    def to_dict(self) -> dict[str, object]:
        """Return the receipt as JSON-ready values."""
        return {
            "id": self.id,
            "sandbox": self.sandbox,
            "tier": str(self.tier),
            "backend": self.backend,
            "reason": None if self.reason is None else str(self.reason),
            "exit_code": self.exit_code,
            "signal": self.signal,
            "entries": [entry.to_dict() for entry in self.entries],
        }


_ENTRY_ORDER = ("field", "asked", "mechanism", "observed", "source", "after_payload", "holds")


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
