"""What a rank computes of one snapshot of a window: its own nodes in some chunks, their edges, and rows of others.

Rows of a block are the first of the owner's order of the epoch (`order.py`), so that states and inputs of a block are a
slice; rows of other ranks, the *halo*, come after them, by rank and then in that rank's own order. Both ends of every
exchange are told by the edges alone: no rank has to ask another which rows it wants.

Shape letters: O own rows of a block, H halo rows, S rows that others want, K edges, N nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.buckets import (
    Buckets,
    Left,
    Ranked,
    bucketed,
    degrees_of,
    left,
    left_ends,
    ranked,
    rows_of,
    scanned,
)
from timeloom.graph.csr import Csr
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.snapshot import Snapshot
from timeloom.jit import kernel
from timeloom.plan.batch.order import Chunking, ChunkOrder


@dataclass(frozen=True, slots=True)
class Sides:
    """The edges of a snapshot that touch a rank's nodes; made once, whatever the epoch."""

    inner: Buckets
    arriving: Buckets
    """From nodes of others to own ones."""
    leaving: Buckets
    """From own nodes to those of others."""

    @property
    def num_bytes(self) -> int:
        """The memory that the arrays take."""
        return self.inner.num_bytes + self.arriving.num_bytes + self.leaving.num_bytes


def sides_of(snapshot: Snapshot, chunking: Chunking, owner: int) -> Sides:
    """Return the edges that touch an owner's nodes, in buckets."""
    sources, targets = snapshot.sources, snapshot.targets
    mine_from, mine_to = (chunking.owner_N[nodes] == owner for nodes in (sources, targets))
    kinds = (mine_from & mine_to, ~mine_from & mine_to, mine_from & ~mine_to)
    return Sides(*(_bucketed(snapshot, chosen, chunking) for chosen in kinds))


def all_sides(snapshot: Snapshot, chunking: Chunking, *, cross: bool) -> Sides:
    """Return the edges of a snapshot as one process sees them that computes the nodes of all owners.

    Without ``cross`` edges between owners are left out, which is what ranks see together that exchange no rows.
    """
    sources, targets = snapshot.sources, snapshot.targets
    chosen = np.full(len(sources), True)
    if not cross:
        chosen = chunking.owner_N[sources] == chunking.owner_N[targets]
    nothing = _bucketed(snapshot, np.zeros_like(chosen), chunking)
    return Sides(_bucketed(snapshot, chosen, chunking), nothing, nothing)


def _bucketed(snapshot: Snapshot, chosen: NDArray[np.bool_], chunking: Chunking) -> Buckets:
    num_chunks = chunking.num_owners * chunking.per_owner
    return bucketed(snapshot, np.flatnonzero(chosen), chunking.numbers, num_chunks=num_chunks)


@dataclass(frozen=True, slots=True)
class RankedSides:
    """The edges that touch a rank's nodes, in the order of an epoch."""

    inner: Ranked
    arriving: Ranked
    leaving: Ranked


def ranked_sides(sides: Sides, order: ChunkOrder) -> RankedSides:
    """Return the edges in the order of an epoch: this sorts buckets, and touches no edge."""
    return RankedSides(*(ranked(part, order.place_Q) for part in (sides.inner, sides.arriving, sides.leaving)))


@dataclass(frozen=True, slots=True)
class Exchange:
    """Which rows of a block come from whom, and go to whom; all ranks' exchanges of a block fit each other."""

    halo_H: Int64s
    """The node of each halo row."""
    received: tuple[int, ...]
    """How many halo rows come from each rank."""
    rows_S: Int64s
    """The own rows that others want, by rank; a row that several want is there several times."""
    sent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A rank's part of some chunks of a snapshot. Rows are own rows, then halo rows; halo rows have no in-edges."""

    num_own: int
    exchange: Exchange
    into: Csr
    """Its `edges` are places in the snapshot."""
    weights_K: Float64s | None
    """Of the edges of `into`; None where every weight is 1."""
    out_of: Csr
    """Its `edges` are places in `into`."""
    in_degrees_O: Float64s
    """Of the block alone, not of the snapshot, as are all degrees here; sums of absolute weights."""
    out_degrees_O: Float64s
    """Of all edges in the block that leave an own node, wherever they lead. Those of halo rows are their owners' to
    tell: by the same exchange."""

    @property
    def num_rows(self) -> int:
        """Own rows and halo rows."""
        return self.num_own + len(self.exchange.halo_H)

    @property
    def num_edges(self) -> int:
        """Edges into own rows."""
        return len(self.into.neighbours)


@final
class Slicer:
    """Cuts the blocks of one owner in one epoch. It holds a row for every node of the graph."""

    def __init__(self, order: ChunkOrder, owner: int, *, shrink: bool = True) -> None:
        """Without ``shrink`` every block numbers its nodes anew and looks at every edge, to compare the costs."""
        chunking = order.chunking
        self._shrink, self._place_N = shrink, order.place_Q[chunking.numbers]
        self._owner_N, self._num_owners = chunking.owner_N, chunking.num_owners
        self._own_row_N = order.own_rows
        self._ends = order.own(owner).ends
        # Rows of others are written here for the time of a block; the rest is never read.
        self._mine = chunking.owner_N == owner
        self._row_N = np.where(self._mine, order.own_rows, -1).astype(np.int32)
        self._seen_N = np.zeros(chunking.num_nodes, np.bool_)
        self._wanted = np.zeros(chunking.num_owners * int(self._ends[-1]), np.bool_)

    def block(self, edges: RankedSides, num_chunks: int, *, halo: bool) -> Block:
        """Return the first so many chunks of a snapshot; without ``halo`` edges from and to other ranks are dropped.

        The time is that of its rows and edges (and of sorting its halo), not that of the snapshot.
        """
        num_own, num_places = int(self._ends[num_chunks]), num_chunks * self._num_owners
        if not self._shrink:
            here = self._mine & (self._place_N < num_places)
            self._row_N = np.where(here, self._own_row_N, -1).astype(np.int32)
        parts = [self._left(edges.inner, num_places)]
        exchange, leaving = _no_exchange(self._num_owners), None
        if halo:
            exchange = self._exchange(edges, num_places)
            rows_H = np.arange(num_own, num_own + len(exchange.halo_H), dtype=np.int32)
            self._row_N[exchange.halo_H] = rows_H
            parts.append(self._left(edges.arriving, num_places))
            # Where it leads has no row here.
            leaving = replace(self._left(edges.leaving, num_places), targets_K=np.empty(0, np.int32))
        return _block(_joined(parts), exchange, leaving, num_own)

    def _left(self, edges: Ranked, num_places: int) -> Left:
        if self._shrink:
            return left(edges, num_places, self._row_N)
        return scanned(edges, num_places, self._row_N, self._place_N)

    def _exchange(self, edges: RankedSides, num_places: int) -> Exchange:
        size, own = len(self._owner_N), int(self._ends[-1])
        sources = left_ends(edges.arriving, num_places)[0]
        halo = _distinct(sources, self._seen_N)
        halo = halo[np.argsort(self._owner_N[halo].astype(np.int64) * size + self._own_row_N[halo])]
        from_K, to_K = left_ends(edges.leaving, num_places)
        wanted = np.sort(_distinct(self._owner_N[to_K].astype(np.int64) * own + self._own_row_N[from_K], self._wanted))
        received, sent = (
            tuple(np.bincount(owners, minlength=self._num_owners).tolist())
            for owners in (self._owner_N[halo], wanted // max(own, 1))
        )
        return Exchange(halo, received, wanted % max(own, 1), sent)


def whole_block(edges: RankedSides, order: ChunkOrder, num_chunks: int) -> Block:
    """Return the first so many chunks of every owner as one process computes them: rows are those of all nodes."""
    found = left(edges.inner, num_chunks * order.chunking.num_owners, order.rows)
    nothing = _no_exchange(order.chunking.num_owners)
    return _block(found, nothing, None, int(order.ends[num_chunks]))


def _block(found: Left, exchange: Exchange, leaving: Left | None, num_own: int) -> Block:
    num_rows = num_own + len(exchange.halo_H)
    into = rows_of(found.targets_K, found.sources_K, num_rows)
    assert into.edges is not None
    targets = np.repeat(np.arange(num_rows, dtype=np.int32), np.diff(into.starts))
    out_of = rows_of(into.neighbours, targets, num_rows)
    in_degrees = degrees_of(found.targets_K, found.weights_K, num_own)
    out_degrees = degrees_of(found.sources_K, found.weights_K, num_rows)[:num_own]
    if leaving is not None:
        out_degrees += degrees_of(leaving.sources_K, leaving.weights_K, num_own)
    weights_K = None if found.weights_K is None else found.weights_K[into.edges]
    into = Csr(into.starts, into.neighbours, found.edges_K[into.edges].astype(np.int64))
    return Block(num_own, exchange, into, weights_K, out_of, in_degrees, out_degrees)


def _joined(parts: list[Left]) -> Left:
    if len(parts) == 1:
        return parts[0]
    weights = [part.weights_K for part in parts if part.weights_K is not None]
    return Left(
        np.concatenate([part.sources_K for part in parts]), np.concatenate([part.targets_K for part in parts]),
        np.concatenate([part.edges_K for part in parts]), np.concatenate(weights) if weights else None,
    )  # fmt: skip


def _no_exchange(num_owners: int) -> Exchange:
    nobody, none = np.empty(0, np.int64), (0,) * num_owners
    return Exchange(nobody, none, nobody, none)


@kernel("int64(int64[::1], bool_[::1], int64[::1])")
def _mark(places: Int64s, seen: NDArray[np.bool_], found: Int64s) -> int:
    count = 0
    for place in places:
        if not seen[place]:
            seen[place] = True
            found[count] = place
            count += 1
    for i in range(count):
        seen[found[i]] = False
    return count


def _distinct(places: NDArray[np.integer], seen: NDArray[np.bool_]) -> Int64s:
    """Return the different ones among some places; ``seen`` has room for all and is left as it was: all false."""
    places = np.ascontiguousarray(places, np.int64)
    found = np.empty(len(places), np.int64)
    return found[: _mark(places, seen, found)].copy()
