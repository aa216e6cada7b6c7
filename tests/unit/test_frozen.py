"""Records cannot change, compare by value, and hide what they were told to hide."""

from __future__ import annotations

import copy
import pickle

import pytest

from kis.frozen import Frozen


class Point(Frozen):
    __slots__ = ("x", "y")
    _hidden = frozenset({"y"})

    def __init__(self, x: int, y: int = 0) -> None:
        self._set("x", x, "y", y)


class Point3(Point):
    __slots__ = ("z",)

    def __init__(self, x: int, y: int, z: int) -> None:
        super().__init__(x, y)
        self._set("z", z)


def test_frozen_refuses_changes() -> None:
    """Neither setting nor deleting a field works, and no new field can be added."""
    point = Point(1)
    for change in (
        lambda: setattr(point, "x", 2),
        lambda: delattr(point, "x"),
        lambda: setattr(point, "new", 2),
    ):
        with pytest.raises(AttributeError):
            change()
    assert point == Point(1)


def test_frozen_compares_by_type_and_value() -> None:
    """Equal fields of one type are equal and hash alike; another type is never equal."""
    assert Point(1, 2) == Point(1, 2)
    assert hash(Point(1, 2)) == hash(Point(1, 2))
    assert Point(1, 2) != Point(1, 3)
    assert Point3(1, 2, 3) != Point(1, 2)
    assert Point3(1, 2, 3) != Point3(1, 2, 4)


def test_frozen_repr_hides_hidden_fields() -> None:
    assert repr(Point(1, 987654)) == "Point(x=1, y=…)"


def test_frozen_replace_changes_one_field() -> None:
    assert Point3(1, 2, 3).replace(y=9) == Point3(1, 9, 3)
    with pytest.raises(TypeError):
        Point(1).replace(nothing=2)


def test_frozen_survives_pickle_and_copy() -> None:
    point = Point3(1, 2, 3)
    assert pickle.loads(pickle.dumps(point)) == point
    assert copy.deepcopy(point) == point
