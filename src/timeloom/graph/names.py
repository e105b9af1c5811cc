"""The original ids of nodes and edge types, and the way back from them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadConfig
from timeloom.graph.keys import Int64s
from timeloom.graph.store import Store, StoreWriter

IdList = Int64s | list[str]


class NodeIds(Protocol):
    """Original ids by number."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def of(self, numbers: Int64s) -> IdList:
        """Return the original id of each number."""
        ...

    def index_of(self, ids: object) -> Int64s:
        """Return the number of each original id; an unknown id is an error."""
        ...

    def all(self) -> IdList:
        """Return every original id, in order of number."""
        ...


class IntegerIds:
    """Ids that are integers."""

    def __init__(self, ids: Int64s) -> None:
        self._ids = ids
        self._order: Int64s | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def of(self, numbers: Int64s) -> Int64s:
        """Return the original id of each number."""
        return self._ids[numbers]

    def all(self) -> Int64s:
        """Return every original id."""
        return self._ids

    def index_of(self, ids: object) -> Int64s:
        """Return the number of each original id."""
        wanted = np.atleast_1d(np.asarray(ids))
        if not wanted.size:
            return np.empty(0, np.int64)
        if wanted.dtype.kind not in "iu":
            raise BadConfig(f"ids here are integers, but {wanted.flat[0]!r} was asked for")
        if self._order is None:
            self._order = np.argsort(self._ids, kind="stable")
        at = np.searchsorted(self._ids, wanted, sorter=self._order)
        found = self._order[np.minimum(at, max(len(self._ids) - 1, 0))] if len(self._ids) else np.full(len(wanted), -1)
        unknown = wanted != self._ids[found] if len(self._ids) else np.ones(len(wanted), np.bool_)
        if unknown.any():
            raise BadConfig(f"id {wanted[unknown][0]} is not in this graph, which has {len(self)} ids")
        return np.asarray(found, np.int64)


class TextIds:
    """Ids that are names: UTF-8 bytes one after another, and where each ends."""

    def __init__(self, data: NDArray[np.uint8], ends: Int64s) -> None:
        self._data, self._ends = data, ends
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def of(self, numbers: Int64s) -> list[str]:
        """Return the original id of each number."""
        first = [int(self._ends[n - 1]) if n else 0 for n in numbers.tolist()]
        last = self._ends[numbers].tolist()
        return [bytes(self._data[low:high]).decode() for low, high in zip(first, last, strict=True)]

    def all(self) -> list[str]:
        """Return every original id."""
        data, ends = bytes(self._data), self._ends.tolist()
        return [data[low:high].decode() for low, high in zip([0, *ends[:-1]], ends, strict=True)] if ends else []

    def index_of(self, ids: object) -> Int64s:
        """Return the number of each original id."""
        if not self._numbers:
            self._numbers = {name: number for number, name in enumerate(self.all())}
        wanted = [ids] if isinstance(ids, str) else [str(name) for name in np.asarray(ids).tolist()]
        unknown = next((name for name in wanted if name not in self._numbers), None)
        if unknown is not None:
            raise BadConfig(f"id {unknown!r} is not in this graph, which has {len(self)} ids")
        return np.array([self._numbers[name] for name in wanted], np.int64)


def put_ids(store: StoreWriter, family: str, ids: IdList) -> None:
    """Write ids as one array (integers) or two (names)."""
    if isinstance(ids, np.ndarray):
        store.put(f"{family}.ids", ids)
        return
    encoded = [name.encode() for name in ids]
    ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
    store.put(f"{family}.id_bytes", np.frombuffer(b"".join(encoded), np.uint8))
    store.put(f"{family}.id_ends", ends)


def id_arrays(family: str) -> tuple[str, ...]:
    """Return the names of the arrays that may hold ids."""
    return (f"{family}.ids", f"{family}.id_bytes", f"{family}.id_ends")


def open_ids(store: Store, family: str) -> NodeIds:
    """Return the ids of nodes or edge types."""
    if f"{family}.id_ends" in store:
        return TextIds(store.array(f"{family}.id_bytes"), store.array(f"{family}.id_ends"))
    return IntegerIds(store.array(f"{family}.ids"))
