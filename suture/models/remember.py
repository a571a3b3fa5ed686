"""Remember what was computed from an object for as long as the object lives, without holding it alive."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remember(Generic[K, V]):
    """Values by the identity of an immutable object and a label; forgotten with the object, or when there are too many.

    >>> class Rows: ...
    >>> kept, rows = Remember(2), Rows()
    >>> kept.get(rows, lambda: 5, "a"), kept.get(rows, lambda: 6, "a"), len(kept)
    (5, 5, 1)
    >>> del rows
    >>> len(kept)
    0
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[tuple[int, str], tuple[Any, V]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K, make: Callable[[], V], label: str = "") -> V:
        """The remembered value, made on first use."""
        place = (id(key), label)
        found = self._values.get(place)
        if found is not None:
            return found[1]
        value = make()
        with self._lock:
            while len(self._values) >= self._most:
                self._values.pop(next(iter(self._values)))
            # The weak reference's callback removes the entry before the identity can be given to another object.
            self._values[place] = (weakref.ref(key, lambda _: self._values.pop(place, None)), value)
        return value
