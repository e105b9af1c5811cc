"""What is kept in memory of what was made: as far as there is room, and the last few things whatever the room.

Two threads may ask at once: one trains, one makes ready what the next step needs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Room:
    """The bytes that are left, shared by everything that is kept."""

    def __init__(self, num_bytes: int) -> None:
        self.left = num_bytes
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> bool:
        """Take so many bytes, and say whether they were there."""
        with self._lock:
            fits = num_bytes <= self.left
            self.left -= num_bytes * fits
        return fits

    def give_back(self, num_bytes: int) -> None:
        """Leave so many bytes that were taken to others."""
        with self._lock:
            self.left += num_bytes


class Kept(Generic[K, V]):
    """What was made for the first things asked for, up to a size; a sweep over all of them then finds some of them.

    (Keeping the latest instead would keep nothing that the next sweep still finds.)
    """

    def __init__(self, room: Room) -> None:
        self._room, self._made = room, dict[K, V]()

    def get(self, key: K) -> V | None:
        """Return what was made, or None."""
        return self._made.get(key)

    def offer(self, key: K, made: V, num_bytes: int) -> V:
        """Keep it if there is room."""
        if key not in self._made and self._room.take(num_bytes):
            self._made[key] = made
        return made


class AtHand(Generic[K, V]):
    """The last few things that were asked for. Whoever asks for one that another thread is making waits for it."""

    def __init__(self, size: int) -> None:
        self._size, self._made = size, OrderedDict[K, Future[V]]()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._made)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return it, made now if it is not at hand."""
        with self._lock:
            future = self._made.get(key)
            if known := future is not None:
                self._made.move_to_end(key)
            else:
                future = self._made[key] = Future()
                while len(self._made) > self._size:
                    self._made.popitem(last=False)
        if not known:
            try:
                future.set_result(make())
            except BaseException as error:
                with self._lock:
                    self._made.pop(key, None)
                future.set_exception(error)
        return future.result()
