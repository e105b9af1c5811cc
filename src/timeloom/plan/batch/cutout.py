"""How a neighbourhood is cut out of snapshots: nodes numbered anew, with the edges that their rows hear by.

A cache is a cutout for the nodes that a rank owns, over all snapshots it trains on; a hybrid batch is a cutout of the
cache for a few of them, over a few snapshots. Every kernel here releases the GIL.

Shape letters: T snapshots, N nodes that are held, P nodes of what is cut from, E edges, M = N + 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from timeloom.graph.keys import Float64s, Int64s
from timeloom.jit import kernel
from timeloom.plan.batch.neighbourhood import Depths, Forecast, Layers, Neighbourhood, Sets, find_neighbourhood, number
from timeloom.plan.batch.rows import NO_WEIGHTS, Bools, Int32s, SnapshotRows, Source


@dataclass(frozen=True, slots=True)
class Cutout:
    """Some nodes over consecutive snapshots, and all edges by which the rows that must hear do hear.

    The deepest nodes come first: the targets, then (where every snapshot needs the same rows) what they hear, and so
    on.
    Any model over these edges, with the degrees given here, is exact in the rows of the targets.
    """

    first: int
    last: int
    """The snapshot after the last one."""
    both: bool
    """Messages may also go from targets to sources."""
    num_targets: int
    nodes_N: Int64s
    """The nodes of the graph."""
    places_N: Int32s
    """Where their rows lie in what this was cut from."""
    depth_TN: Depths
    """How many hops a node's row must have heard in each snapshot; 0: it is only read; -1: it is not needed."""
    graphs: tuple[SnapshotRows, ...]

    @property
    def num_nodes(self) -> int:
        """How many nodes are held."""
        return len(self.nodes_N)

    def __len__(self) -> int:
        return len(self.graphs)

    def rows(self, t: int) -> SnapshotRows:
        """Return snapshot t (by its index in the graph): a cutout may be cut from."""
        assert self.first <= t < self.last, f"snapshot {t} is not among {self.first} to {self.last - 1}"
        return self.graphs[t - self.first]

    def deep(self, t: int, depth: int) -> Int32s:
        """Return the rows that must have heard so many hops in snapshot t: those of a layer, by the hops up to it."""
        return np.flatnonzero(self.depth_TN[t - self.first] >= depth).astype(np.int32)

    @property
    def num_edges(self) -> int:
        """How many edges there are, of all snapshots together."""
        return sum(len(graph) for graph in self.graphs)

    @property
    def rows_read(self) -> int:
        """How many rows are read, of all snapshots together."""
        return int(np.count_nonzero(self.depth_TN >= 0))

    @property
    def num_bytes(self) -> int:
        """The memory that the arrays take."""
        # In a union all snapshots share one row of depths.
        depths = self.depth_TN.nbytes if self.depth_TN.strides[0] else self.num_nodes
        return self.nodes_N.nbytes + self.places_N.nbytes + depths + sum(graph.num_bytes for graph in self.graphs)

    def between(self, first: int, last: int) -> Cutout:
        """Return the same nodes over fewer snapshots; nothing is copied."""
        assert self.first <= first < last <= self.last, f"{first} to {last} is not within {self.first} to {self.last}"
        span = slice(first - self.first, last - self.first)
        return replace(self, first=first, last=last, depth_TN=self.depth_TN[span], graphs=self.graphs[span])


@kernel(
    "int64(int32[::1], int32[::1], int32[::1], int32[::1], int32[::1], int8[::1], boolean, int32[::1])",
)
def _count_edges(
    starts: Int32s, out_starts: Int32s, out_neighbours: Int32s, places: Int32s, local: Int32s, depth: Depths,
    both: bool, new_starts: Int32s,
) -> int:  # fmt: skip
    new_starts[:] = 0
    for i in range(len(places)):
        if depth[i] < 1:
            continue
        v = places[i]
        new_starts[i + 1] += starts[v + 1] - starts[v]
        if both:
            for e in range(out_starts[v], out_starts[v + 1]):
                # An edge to a row that must hear is counted there.
                j = local[out_neighbours[e]] - 1
                if depth[j] < 1:
                    new_starts[j + 1] += 1
    total = 0
    for i in range(1, len(new_starts)):
        total += new_starts[i]
        new_starts[i] = total
    return total


@kernel(
    "void(int32[::1], int32[::1], float64[::1], int32[::1], int32[::1], int32[::1], int32[::1], int32[::1], int8[::1], "
    "boolean, int32[::1], int32[::1], int32[::1], float64[::1])",
)
def _fill_edges(
    starts: Int32s, neighbours: Int32s, weights: Float64s, out_starts: Int32s, out_neighbours: Int32s,
    out_order: Int32s, places: Int32s, local: Int32s, depth: Depths, both: bool, new_starts: Int32s,
    filled: Int32s, new_neighbours: Int32s, new_weights: Float64s,
) -> None:  # fmt: skip
    weighted = len(weights) > 0
    filled[:] = 0
    for i in range(len(places)):
        if depth[i] < 1:
            continue
        v = places[i]
        at = new_starts[i]
        for e in range(starts[v], starts[v + 1]):
            new_neighbours[at] = local[neighbours[e]] - 1
            if weighted:
                new_weights[at] = weights[e]
            at += 1
        if both:
            for e in range(out_starts[v], out_starts[v + 1]):
                j = local[out_neighbours[e]] - 1
                if depth[j] < 1:
                    at = new_starts[j] + filled[j]
                    filled[j] += 1
                    new_neighbours[at] = i
                    if weighted:
                        new_weights[at] = weights[out_order[e]]


@kernel("void(int32[::1], int32[::1], int32[::1], int32[::1], int32[::1])")
def _transpose(
    starts: Int32s, neighbours: Int32s, out_starts: Int32s, out_neighbours: Int32s, out_order: Int32s
) -> None:
    out_starts[:] = 0
    for e in range(len(neighbours)):
        out_starts[neighbours[e] + 1] += 1
    for i in range(1, len(out_starts)):
        out_starts[i] += out_starts[i - 1]
    for row in range(len(starts) - 1):
        for e in range(starts[row], starts[row + 1]):
            at = out_starts[neighbours[e]]
            out_neighbours[at] = row
            out_order[at] = e
            out_starts[neighbours[e]] = at + 1
    for i in range(len(out_starts) - 1, 0, -1):
        out_starts[i] = out_starts[i - 1]
    out_starts[0] = 0


@kernel("void(int32[::1], float64[::1], float64[::1], boolean[::1], float64[::1], float64[::1], boolean[::1])")
def _gather_nodes(
    places: Int32s, into: Float64s, out_of: Float64s, alive: Bools,
    new_into: Float64s, new_out_of: Float64s, new_alive: Bools,
) -> None:  # fmt: skip
    for i in range(len(places)):
        new_into[i] = into[places[i]]
        new_out_of[i] = out_of[places[i]]
        new_alive[i] = alive[places[i]]


def cut(source: Source, found: Neighbourhood, nodes_P: Int64s | None = None) -> Cutout:
    """Return a neighbourhood with its edges; ``nodes_P`` names the nodes of the source (None: they are the graph's)."""
    local = np.zeros(source.num_nodes, np.int32)
    number(found.places_N, local)
    span = range(found.first, found.last)
    graphs = tuple(_cut_rows(source.rows(t), found, found.depth_TN[place], local) for place, t in enumerate(span))
    nodes_N = found.places_N.astype(np.int64) if nodes_P is None else nodes_P[found.places_N]
    return Cutout(
        found.first, found.last, found.both, found.num_targets, nodes_N, found.places_N, found.depth_TN, graphs
    )


def cut_from(
    cutout: Cutout, targets: Int32s, layers: Layers, *, first: int, last: int, sets: Sets, both: bool
) -> Cutout:
    """Return the cutout of a few of a cutout's own targets (by row, ascending) over fewer snapshots.

    The layers must be those that the cutout was made for: what its own targets need is held, and nothing else.
    """
    assert len(targets) == 0 or targets[-1] < cutout.num_targets, "only targets have all they need"
    found = find_neighbourhood(cutout, targets, layers, first=first, last=last, sets=sets, both=both)
    return cut(cutout, found, cutout.nodes_N)


def _cut_rows(rows: SnapshotRows, found: Neighbourhood, depth_N: Depths, local_P: Int32s) -> SnapshotRows:
    places, both, count = found.places_N, found.both, len(found)
    starts = np.empty(count + 1, np.int32)
    out_of = (rows.out_starts_M, rows.out_neighbours_E)
    num_edges = _count_edges(rows.starts_M, *out_of, places, local_P, depth_N, both, starts)
    weighted = rows.weights_E is not None
    neighbours, weights = np.empty(num_edges, np.int32), np.empty(num_edges if weighted else 0)
    old = NO_WEIGHTS if rows.weights_E is None else rows.weights_E
    _fill_edges(
        rows.starts_M, rows.neighbours_E, old, *out_of, rows.out_order_E, places, local_P, depth_N, both, starts,
        np.empty(count, np.int32), neighbours, weights,
    )  # fmt: skip
    out_starts = np.empty(count + 1, np.int32)
    out_neighbours, out_order = np.empty(num_edges, np.int32), np.empty(num_edges, np.int32)
    _transpose(starts, neighbours, out_starts, out_neighbours, out_order)
    into, out_degree, alive = np.empty(count), np.empty(count), np.empty(count, np.bool_)
    _gather_nodes(places, rows.into_degree_N, rows.out_degree_N, rows.alive_N, into, out_degree, alive)
    return SnapshotRows(
        starts,
        neighbours,
        weights if weighted else None,
        out_starts,
        out_neighbours,
        out_order,
        into,
        out_degree,
        alive,
    )


def forecast(source: Source, found: Neighbourhood) -> Forecast:
    """Return what a cutout would take, to the byte; one pass over the source, and memory for one of its snapshots."""
    local, starts = np.zeros(source.num_nodes, np.int32), np.empty(len(found) + 1, np.int32)
    number(found.places_N, local)
    num_edges = edge_bytes = 0
    for t, depth_N in _depths(found):
        rows = source.rows(t)
        out_of = (rows.out_starts_M, rows.out_neighbours_E)
        count = _count_edges(rows.starts_M, *out_of, found.places_N, local, depth_N, found.both, starts)
        num_edges += count
        edge_bytes += count * (12 if rows.weights_E is None else 20)
    nodes, snapshots = len(found), found.last - found.first
    depth_bytes = found.depth_TN.nbytes if found.depth_TN.strides[0] else nodes
    row_bytes = snapshots * (2 * 4 * (nodes + 1) + 17 * nodes)
    graph_bytes = edge_bytes + row_bytes + depth_bytes + 12 * nodes
    return Forecast(found.num_targets, nodes, found.rows_read, num_edges, graph_bytes)


def _depths(found: Neighbourhood) -> Iterator[tuple[int, Depths]]:
    return ((found.first + place, found.depth_TN[place]) for place in range(found.last - found.first))
