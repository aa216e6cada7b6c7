"""Immutable records with slots.

Knows: how a record is filled once, compared, shown and changed by copy.
Must not know: any particular record. Called by: every module of the floor and above.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar, Self


class Frozen:
    """Base of every record: slots only, filled in ``__init__``, never changed after.

    A subclass names its fields in ``__slots__`` and fills them with ``_set``. Fields listed in
    ``_hidden`` are shown as ``…``: a secret must not reach a log by way of ``repr``.
    ``dataclasses`` would do the same but costs the command line a tenth of its start-up budget.
    """

    __slots__ = ()
    _hidden: ClassVar[frozenset[str]] = frozenset()

    def _set(self, *pairs: object) -> None:
        """Fill fields: ``self._set("name", value, "other", value)``. For ``__init__`` only."""
        for index in range(0, len(pairs), 2):
            object.__setattr__(self, str(pairs[index]), pairs[index + 1])

    @classmethod
    def _fields(cls) -> tuple[str, ...]:
        """Names of all fields, those of the base classes first."""
        names: list[str] = []
        for owner in reversed(cls.__mro__):
            slots = owner.__dict__.get("__slots__", ())
            names.extend((slots,) if isinstance(slots, str) else slots)
        return tuple(names)

    def _arguments(self) -> dict[str, object]:
        """What the constructor takes to make an equal record; the fields, unless overridden."""
        return {name: getattr(self, name) for name in self._fields()}

    def replace(self, **changes: object) -> Self:
        """Return a copy with these fields changed, validated as at construction."""
        return type(self)(**{**self._arguments(), **changes})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name!r} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: {name!r} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._fields())

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in self._fields())))

    def __repr__(self) -> str:
        shown = (
            f"{name}={'…' if name in self._hidden else repr(getattr(self, name))}"
            for name in self._fields()
        )
        return f"{type(self).__name__}({', '.join(shown)})"

    def __getstate__(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self._fields()}

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
