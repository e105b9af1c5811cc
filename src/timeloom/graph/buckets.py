"""The edges of a snapshot by the pair of chunks that they go between: what a choice of chunks leaves is gathered fast.

Edges are sorted into buckets once. A choice of chunks comes as an order of them, of which the first `n` are chosen: an
edge is left when both of its chunks are, so a bucket is left when the later of its two chunks is. The buckets sorted by
that place are, for every `n`, a prefix; nothing else of the snapshot is touched.

Shape letters: E edges, B buckets, Q chunks, K edges that are left, N nodes, M rows of a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timeloom.graph.csr import Csr, Int32s
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.snapshot import Snapshot
from timeloom.jit import kernel


@dataclass(frozen=True, slots=True)
class Buckets:
    """Edges by (chunk of the target, chunk of the source); inside a bucket in the order of the snapshot."""

    sources_E: Int32s
    targets_E: Int32s
    edges_E: Int32s
    """Where each edge lies in the snapshot."""
    weights_E: Float64s | None
    """None where every weight is 1."""
    from_B: Int32s
    """The chunk that the edges of a bucket come from."""
    to_B: Int32s
    starts: Int64s
    """[B + 1] where each bucket begins."""

    def __len__(self) -> int:
        return len(self.sources_E)

    @property
    def num_bytes(self) -> int:
        """The memory that the arrays take."""
        parts = (self.sources_E, self.targets_E, self.edges_E, self.from_B, self.to_B, self.starts)
        weights = 0 if self.weights_E is None else self.weights_E.nbytes
        return weights + sum(part.nbytes for part in parts)


@dataclass(frozen=True, slots=True)
class Ranked:
    """Buckets in the order of an epoch."""

    buckets: Buckets
    order_B: Int32s
    last_B: Int32s
    """The place of the later of a bucket's two chunks, in that order: ascending."""
    total: Int64s
    """[B + 1] the edges in the buckets before each, in that order."""

    def chosen(self, num_places: int) -> tuple[int, int]:
        """Return how many buckets, and how many edges, are left of the first so many chunks."""
        buckets = int(np.searchsorted(self.last_B, num_places))
        return buckets, int(self.total[buckets])


@kernel("void(int32[::1], int32[::1], int64, int32[::1])")
def _sort_by(keys: Int32s, before: Int32s, size: int, after: Int32s) -> None:
    """Write the items of `before` sorted by their keys, below `size`; items with the same key stay in their order."""
    starts = np.zeros(size + 1, np.int64)
    for i in range(len(before)):
        starts[keys[before[i]] + 1] += 1
    for key in range(size):
        starts[key + 1] += starts[key]
    for i in range(len(before)):
        item = before[i]
        after[starts[keys[item]]] = item
        starts[keys[item]] += 1


def sorted_by(keys: tuple[Int32s, ...], size: int) -> Int32s:
    """Return the places of items sorted by several keys, the last of which counts most; one pass for each."""
    order = np.arange(len(keys[0]), dtype=np.int32)
    for key in keys:
        after = np.empty_like(order)
        _sort_by(np.ascontiguousarray(key), order, size, after)
        order = after
    return order


def bucketed(snapshot: Snapshot, edges: Int64s, chunk_N: Int32s, *, num_chunks: int) -> Buckets:
    """Return the buckets of some edges of a snapshot; ``edges`` are their places in it."""
    keys, weights = snapshot.keys[edges], snapshot.stored_weights
    sources, targets = snapshot.layout.sources(keys), snapshot.layout.targets(keys)
    from_E, to_E = chunk_N[sources], chunk_N[targets]
    order = sorted_by((from_E, to_E), num_chunks)
    from_E, to_E = from_E[order], to_E[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (from_E[1:] != from_E[:-1]) | (to_E[1:] != to_E[:-1])
    firsts = np.flatnonzero(begins)
    return Buckets(
        sources[order].astype(np.int32), targets[order].astype(np.int32), edges[order].astype(np.int32),
        None if weights is None else weights[edges[order]], from_E[firsts], to_E[firsts], np.append(firsts, len(order)),
    )  # fmt: skip


def ranked(buckets: Buckets, place_Q: Int32s) -> Ranked:
    """Return the buckets in the order that the places of their chunks give them.

    By the later chunk, then by the source's: the sources of any target then come in the order of their chunks.
    """
    from_B, to_B = place_Q[buckets.from_B], place_Q[buckets.to_B]
    last_B = np.maximum(from_B, to_B)
    order_B = sorted_by((from_B, last_B), len(place_Q))
    sizes = np.diff(buckets.starts)[order_B]
    return Ranked(buckets, order_B, last_B[order_B], np.concatenate([[0], np.cumsum(sizes)]))


@kernel(
    "void(int32[::1], int64[::1], int32[::1], int32[::1], int32[::1], int32[::1], int32[::1], int32[::1], int32[::1])"
)
def _gather(
    order_B: Int32s, starts: Int64s, sources_E: Int32s, targets_E: Int32s, edges_E: Int32s, row_N: Int32s,
    sources_K: Int32s, targets_K: Int32s, edges_K: Int32s,
) -> None:  # fmt: skip
    k = 0
    for b in order_B:
        for i in range(starts[b], starts[b + 1]):
            sources_K[k] = row_N[sources_E[i]]
            targets_K[k] = row_N[targets_E[i]]
            edges_K[k] = edges_E[i]
            k += 1


@dataclass(frozen=True, slots=True)
class Left:
    """The edges that are left, with rows for nodes."""

    sources_K: Int32s
    targets_K: Int32s
    edges_K: Int32s
    """Where each edge lies in the snapshot."""
    weights_K: Float64s | None


def left(ranked: Ranked, num_places: int, row_N: Int32s) -> Left:
    """Return the edges between the first so many chunks, in time that is proportional to their number."""
    num_buckets, num_edges = ranked.chosen(num_places)
    buckets, order_B = ranked.buckets, ranked.order_B[:num_buckets]
    weights_K = None
    if buckets.weights_E is not None:
        weights_K = np.empty(num_edges)
        _pick_weights(order_B, buckets.starts, buckets.weights_E, weights_K)
    ints = [np.empty(num_edges, np.int32) for _ in range(3)]
    found = Left(ints[0], ints[1], ints[2], weights_K)
    _gather(
        order_B, buckets.starts, buckets.sources_E, buckets.targets_E, buckets.edges_E, row_N,
        found.sources_K, found.targets_K, found.edges_K,
    )  # fmt: skip
    return found


def scanned(ranked: Ranked, num_places: int, row_N: Int32s, place_N: Int32s) -> Left:
    """Return what `left` returns, in the order of buckets, by a look at every edge: what it would cost without them.

    ``place_N`` is the place of each node's chunk.
    """
    buckets = ranked.buckets
    chosen = (place_N[buckets.sources_E] < num_places) & (place_N[buckets.targets_E] < num_places)
    weights = None if buckets.weights_E is None else buckets.weights_E[chosen]
    return Left(row_N[buckets.sources_E[chosen]], row_N[buckets.targets_E[chosen]], buckets.edges_E[chosen], weights)


def left_ends(ranked: Ranked, num_places: int) -> tuple[Int32s, Int32s]:
    """Return the source and the target node of each edge between the first so many chunks."""
    num_buckets, num_edges = ranked.chosen(num_places)
    ends = np.empty(num_edges, np.int32), np.empty(num_edges, np.int32)
    for nodes_E, nodes_K in zip((ranked.buckets.sources_E, ranked.buckets.targets_E), ends, strict=True):
        _pick(ranked.order_B[:num_buckets], ranked.buckets.starts, nodes_E, nodes_K)
    return ends


@kernel("void(int32[::1], int64[::1], int32[::1], int32[::1])")
def _pick(order_B: Int32s, starts: Int64s, nodes_E: Int32s, nodes_K: Int32s) -> None:
    k = 0
    for b in order_B:
        for i in range(starts[b], starts[b + 1]):
            nodes_K[k] = nodes_E[i]
            k += 1


@kernel("void(int32[::1], int64[::1], float64[::1], float64[::1])")
def _pick_weights(order_B: Int32s, starts: Int64s, weights_E: Float64s, weights_K: Float64s) -> None:
    k = 0
    for b in order_B:
        for i in range(starts[b], starts[b + 1]):
            weights_K[k] = weights_E[i]
            k += 1


@kernel("void(int32[::1], int32[::1], int64[::1], int32[::1], int64[::1])")
def _rows(rows_K: Int32s, others_K: Int32s, starts: Int64s, neighbours: Int32s, places: Int64s) -> None:
    for k in range(len(rows_K)):
        starts[rows_K[k] + 1] += 1
    for row in range(1, len(starts)):
        starts[row] += starts[row - 1]
    for k in range(len(rows_K)):
        row = rows_K[k]
        at = starts[row]
        neighbours[at] = others_K[k]
        places[at] = k
        starts[row] = at + 1
    for row in range(len(starts) - 1, 0, -1):
        starts[row] = starts[row - 1]
    starts[0] = 0


def rows_of(rows_K: Int32s, others_K: Int32s, num_rows: int) -> Csr:
    """Return edges by row, in the order given; `edges` of the result are their places among those given."""
    starts, neighbours = np.zeros(num_rows + 1, np.int64), np.empty(len(rows_K), np.int32)
    places = np.empty(len(rows_K), np.int64)
    _rows(rows_K, others_K, starts, neighbours, places)
    return Csr(starts, neighbours, places)


def degrees_of(rows_K: Int32s, weights_K: Float64s | None, num_rows: int) -> Float64s:
    """Return the sum of the absolute weights of each row's edges (the number of edges where there are no weights)."""
    weights = None if weights_K is None else np.abs(weights_K)
    return np.bincount(rows_K, weights, num_rows).astype(np.float64)
