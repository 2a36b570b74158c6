"""A least-recently-used cache that is safe to use from several threads."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """At most `capacity` values by key; the least recently used value is dropped first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """Return the value of a key, now the most recently used, or None."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: K, value: V) -> V:
        """Store a value unless the key has one, and return the stored one: threads that race share
        one value.
        """
        with self._lock:
            value = self._entries.setdefault(key, value)
            self._entries.move_to_end(key)
            while len(self._entries) > self.capacity:
                self._entries.popitem(last=False)
            return value

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, made and stored if it is absent. `make` runs outside of the
        lock.
        """
        found = self.get(key)
        return self.put(key, make()) if found is None else found

    def __iter__(self) -> Iterator[V]:
        """Iterate over the values, the most recently used first."""
        with self._lock:
            return iter(list(reversed(self._entries.values())))
