"""How a law of change becomes rows: edges that appear and go, part by part, with one part in memory at a time.

A part is a fixed share of a graph's edges. Its size depends on the options of the graph alone, so that the same graph
comes out however the rows are cut into blocks; however many edges there are, the memory needed is that of one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadConfig
from timeloom.graph.ingest.rows import Account, BadRows, RowBlock
from timeloom.graph.keys import Int64s

PART_EDGES = 1 << 21
BLOCK_ROWS = 1 << 18
NO_EDGES: Int64s = np.empty(0, np.int64)
_ROW_BYTES = 25
_MOST_DRAWN = 1 << 19
_FRUITLESS = 2_000


@dataclass(frozen=True, slots=True)
class Change:
    """The edges of one part that go and that appear with one snapshot, both sorted; an edge is one number."""

    gone: Int64s
    new: Int64s


class Law(Protocol):
    """What decides which edges there are."""

    @property
    def num_parts(self) -> int:
        """How many parts the edges are divided into."""
        ...

    @property
    def num_rows(self) -> int:
        """About how many rows there will be."""
        ...

    def change(self, part: int, t: int, edges: Int64s) -> Change:
        """Return what becomes of the part's ``edges`` of snapshot t - 1, which are sorted."""
        ...

    def rows(self, edges: Int64s) -> RowBlock:
        """Return the rows that say what these edges are, without time and operation."""
        ...


class Evolution:
    """The source of rows that follow a law: each says that an edge appears in a snapshot, or goes."""

    time_unit = "plain"

    def __init__(self, law: Law, num_snapshots: int, *, block_rows: int = BLOCK_ROWS) -> None:
        self._law, self._num_snapshots, self._block_rows = law, num_snapshots, block_rows

    @property
    def size_bytes(self) -> int:
        """About how many bytes of rows there will be."""
        return self._law.num_rows * _ROW_BYTES

    def blocks(self, account: Account, bad: BadRows) -> Iterator[tuple[RowBlock, int]]:
        """Yield all rows; none is ever bad."""
        waiting: list[_Rows] = []
        num_waiting = 0
        for rows in self._changes():
            waiting.append(rows)
            num_waiting += len(rows.edges)
            if num_waiting >= self._block_rows:
                yield from self._emit(_joined(waiting), account)
                waiting, num_waiting = [], 0
        if waiting:
            yield from self._emit(_joined(waiting), account)

    def _emit(self, rows: _Rows, account: Account) -> Iterator[tuple[RowBlock, int]]:
        for first in range(0, len(rows.edges), self._block_rows):
            cut = slice(first, first + self._block_rows)
            block = self._law.rows(rows.edges[cut])
            block.time, block.operation = rows.time[cut], rows.operation[cut]
            account.read += block.num_rows
            yield block, account.read * _ROW_BYTES

    def _changes(self) -> Iterator[_Rows]:
        for part in range(self._law.num_parts):
            edges = NO_EDGES
            for t in range(self._num_snapshots):
                change = self._law.change(part, t, edges)
                edges = with_edges(without_edges(edges, change.gone), change.new)
                for some, operation in ((change.gone, -1), (change.new, 1)):
                    if len(some):
                        size = len(some)
                        yield _Rows(some, np.full(size, t, np.int64), np.full(size, operation, np.int8))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Edges with the snapshot and the operation (1 appears, -1 goes) of each."""

    edges: Int64s
    time: Int64s
    operation: NDArray[np.int8]


def _joined(parts: list[_Rows]) -> _Rows:
    if len(parts) == 1:
        return parts[0]
    return _Rows(
        np.concatenate([part.edges for part in parts]),
        np.concatenate([part.time for part in parts]),
        np.concatenate([part.operation for part in parts]),
    )


def are_among(some: Int64s, edges: Int64s) -> NDArray[np.bool_]:
    """Say of each edge whether it is one of the sorted ``edges``."""
    if not len(edges):
        return np.zeros(len(some), np.bool_)
    places = np.minimum(np.searchsorted(edges, some), len(edges) - 1)
    among: NDArray[np.bool_] = edges[places] == some
    return among


def without_edges(edges: Int64s, gone: Int64s) -> Int64s:
    """Return sorted edges without some of them."""
    if not len(gone):
        return edges
    stays = np.ones(len(edges), np.bool_)
    stays[np.searchsorted(edges, gone)] = False
    return edges[stays]


def with_edges(edges: Int64s, new: Int64s) -> Int64s:
    """Return sorted edges with sorted ones that were not there."""
    return np.insert(edges, np.searchsorted(edges, new), new) if len(edges) else new


Propose = Callable[[int], Int64s]
"""Returns edges drawn from a law, at most so many: some may be refused on the way."""


def draw_new(count: int, edges: Int64s, propose: Propose, already: Int64s = NO_EDGES) -> Int64s:
    """Return ``count`` sorted edges, ``already`` among them, no two the same and none one of ``edges``.

    The first ones that were proposed are taken, so that sorting favours none.
    """
    new, num_asked, num_found = already, 0, len(already)
    while (lacking := count - len(new)) > 0:
        if num_asked > _FRUITLESS * (num_found + 1_000):
            raise BadConfig(
                f"{count} new edges were asked for in one snapshot, but after {num_asked} draws {lacking} are still "
                f"lacking: ask for fewer edges, for more nodes or for a higher exponent"
            )
        rate = max(num_found, 1) / num_asked if num_asked else 1.0
        asked = min(int(lacking * 1.1 / rate) + 64, _MOST_DRAWN)
        fresh = _fresh(propose(asked), edges, new, lacking)
        new = with_edges(new, fresh)
        num_asked, num_found = num_asked + asked, num_found + len(fresh)
    return new


def _fresh(drawn: Int64s, edges: Int64s, new: Int64s, most: int) -> Int64s:
    """Return, sorted, the first ``most`` different edges that were drawn and are in neither ``edges`` nor ``new``."""
    different, places = np.unique(drawn, return_index=True)
    unknown = ~(are_among(different, edges) | are_among(different, new))
    different, places = different[unknown], places[unknown]
    if len(different) <= most:
        return different
    first: Int64s = different[places < np.partition(places, most)[most]]
    return first
