"""Which rows of several snapshots are one and the same: a table in which each is computed once (SPEC 3.5).

What a model makes of a node in a snapshot depends on the node's own row and edges, and, hop by hop, on those of the
nodes it hears. Where none of these changed from one snapshot to the next, the result did not either: a *version* of a
node lasts as long. The table has one row for every version that is asked for, and edges between its rows, so that it
is a graph like any other: a model is taken over it once, and every snapshot picks its rows. All reuse within a
snapshot, between snapshots and between windows is this one mechanism, exact and differentiable.

Shape letters: T snapshots, N nodes, E edges of a snapshot, R rows of the table, Q edges of the table, M = R + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timeloom.jit import kernel

Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]
NO_WEIGHTS: Float64s = np.empty(0)


@dataclass(frozen=True, slots=True)
class Heard:
    """Whom each node of a snapshot hears, in one direction of the edges."""

    starts_M: Int32s
    neighbours_E: Int32s
    weights_E: Float64s
    """Empty where every weight is 1."""


@dataclass(frozen=True, slots=True)
class RowTable:
    """The rows of several snapshots, each once."""

    place_TN: Int32s
    """Which row a node is in a snapshot; -1 where nobody asked for it."""
    node_R: Int32s
    at_R: Int32s
    """The place of a snapshot in which the row is what it is."""
    depth_R: Bytes
    """How many hops of messages the row must have heard; one of 0 is only read."""

    def __len__(self) -> int:
        return len(self.node_R)


@dataclass(frozen=True, slots=True)
class TableEdges:
    """Edges between rows of a table: by the row that hears, and by the row that is heard."""

    starts_M: Int32s
    neighbours_Q: Int32s
    weights_Q: Float64s
    """Empty where every weight is 1."""
    back_starts_M: Int32s
    back_neighbours_Q: Int32s
    order_Q: Int32s
    """Where each edge of the second order lies in the first."""


@kernel("void(int32[::1], int32[::1], float64[::1], int32[::1], int32[::1], float64[::1], boolean[::1], boolean[::1])")
def _hears_otherwise(
    starts: Int32s, neighbours: Int32s, weights: Float64s,
    new_starts: Int32s, new_neighbours: Int32s, new_weights: Float64s, sends_otherwise: Bools, out: Bools,
) -> None:  # fmt: skip
    for v in range(len(starts) - 1):
        before, after = starts[v], new_starts[v]
        count = starts[v + 1] - before
        differs = out[v] or new_starts[v + 1] - after != count
        i = 0
        while not differs and i < count:
            u = new_neighbours[after + i]
            differs = neighbours[before + i] != u or sends_otherwise[u]
            if len(weights) > 0 or len(new_weights) > 0:
                old = weights[before + i] if len(weights) > 0 else 1.0
                new = new_weights[after + i] if len(new_weights) > 0 else 1.0
                differs = differs or old != new
            i += 1
        out[v] = differs


@kernel("void(int32[::1], int32[::1], boolean[::1], boolean[::1])")
def _hears_one_of(starts: Int32s, neighbours: Int32s, marked: Bools, out: Bools) -> None:
    for v in range(len(starts) - 1):
        i = starts[v]
        while not out[v] and i < starts[v + 1]:
            out[v] = marked[neighbours[i]]
            i += 1


@kernel("void(int32[::1], int32[::1], uint8[::1], uint8)")
def _ask_for_sources(starts: Int32s, neighbours: Int32s, depth: Bytes, hops: int) -> None:
    for v in range(len(starts) - 1):
        if depth[v] == hops + 1:
            for i in range(starts[v], starts[v + 1]):
                depth[neighbours[i]] = max(depth[neighbours[i]], hops)


@kernel("int64(boolean[:,::1], uint8[:,::1], int32[:,::1], int32[::1], int32[::1], uint8[::1])")
def _name_rows(fresh: Bools, asked: Bytes, place: Int32s, node: Int32s, at: Int32s, depth: Bytes) -> int:
    size = 0
    current = np.full(fresh.shape[1], -1, np.int32)
    for t in range(fresh.shape[0]):
        for v in range(fresh.shape[1]):
            if fresh[t, v]:
                current[v] = -1
            place[t, v] = -1
            if asked[t, v] == 0:
                continue
            row = current[v]
            if row < 0:
                row, current[v], size = size, size, size + 1
                node[row], at[row], depth[row] = v, t, asked[t, v]
            elif asked[t, v] > depth[row]:
                # Whom it hears is only surely in the table where it was asked for as deeply.
                at[row], depth[row] = t, asked[t, v]
            place[t, v] = row
    return size


@kernel("void(int32[::1], int32[::1], uint8[::1], int64, int32[::1], int32[::1])")
def _count_edges(node: Int32s, at: Int32s, depth: Bytes, t: int, starts: Int32s, sizes: Int32s) -> None:
    for row in range(len(node)):
        if at[row] == t and depth[row] > 1:
            sizes[row + 1] = starts[node[row] + 1] - starts[node[row]]


@kernel(
    "void(int32[::1], int32[::1], uint8[::1], int64, int32[::1], int32[::1], float64[::1], int32[::1], int32[::1], "
    "int32[::1], float64[::1])"
)
def _link_rows(
    node: Int32s, at: Int32s, depth: Bytes, t: int, starts: Int32s, neighbours: Int32s, weights: Float64s,
    place: Int32s, row_starts: Int32s, linked: Int32s, row_weights: Float64s,
) -> None:  # fmt: skip
    for row in range(len(node)):
        if at[row] == t and depth[row] > 1:
            first = starts[node[row]]
            for i in range(row_starts[row + 1] - row_starts[row]):
                linked[row_starts[row] + i] = place[neighbours[first + i]]
                if len(row_weights) > 0:
                    row_weights[row_starts[row] + i] = weights[first + i] if len(weights) > 0 else 1.0


@kernel("void(int32[::1], int32[::1], int32[::1], int32[::1], int32[::1])")
def _turn_round(starts: Int32s, neighbours: Int32s, back_starts: Int32s, back: Int32s, order: Int32s) -> None:
    for i in range(len(neighbours)):
        back_starts[neighbours[i] + 1] += 1
    for row in range(1, len(back_starts)):
        back_starts[row] += back_starts[row - 1]
    for row in range(len(starts) - 1):
        for i in range(starts[row], starts[row + 1]):
            at = back_starts[neighbours[i]]
            back[at], order[at] = row, i
            back_starts[neighbours[i]] = at + 1
    for row in range(len(back_starts) - 1, 0, -1):
        back_starts[row] = back_starts[row - 1]
    back_starts[0] = 0


def changed_rows(before: Sequence[Heard], after: Sequence[Heard], sends_otherwise_N: Bools, own_N: Bools) -> Bools:
    """Return which nodes' rows after one hop differ from those of the snapshot before.

    ``sends_otherwise_N`` says what a node sends has changed (its row, its scale as a source, whether it is there),
    ``own_N`` that something else about it has. Both snapshots are given in each direction that messages take.
    """
    out = own_N | sends_otherwise_N
    for old, new in zip(before, after, strict=True):
        _hears_otherwise(*_arrays(old), *_arrays(new), sends_otherwise_N, out)
    return out


def spread(heard: Sequence[Heard], changed_N: Bools, hops: int) -> Bools:
    """Return which nodes are changed, or hear of one that is within so many hops."""
    for _ in range(hops):
        wider = changed_N.copy()
        for lists in heard:
            _hears_one_of(lists.starts_M, lists.neighbours_E, changed_N, wider)
        changed_N = wider
    return changed_N


def asked_for(heard: Sequence[Heard], wanted_N: Bools, hops: int) -> Bytes:
    """Return 1 + how many hops of messages each node's row must have heard; 0 where it is not needed at all."""
    depth = np.where(wanted_N, hops + 1, 0).astype(np.uint8)
    for left in range(hops, 0, -1):
        for lists in heard:
            _ask_for_sources(lists.starts_M, lists.neighbours_E, depth, left)
    return depth


def name_rows(fresh_TN: Bools, asked_TN: Bytes) -> RowTable:
    """Return the table of all versions that are asked for; a version begins where ``fresh`` says so."""
    most = int(np.count_nonzero(asked_TN))
    place, node, at = np.empty(fresh_TN.shape, np.int32), np.empty(most, np.int32), np.empty(most, np.int32)
    depth = np.empty(most, np.uint8)
    size = _name_rows(fresh_TN, asked_TN, place, node, at, depth)
    return RowTable(place, node[:size].copy(), at[:size].copy(), depth[:size].copy())


def link_rows(table: RowTable, heard_T: Sequence[Heard]) -> TableEdges:
    """Return the edges between the rows of a table, in one direction of the messages."""
    rows = (table.node_R, table.at_R, table.depth_R)
    starts = np.zeros(len(table) + 1, np.int32)
    for t, heard in enumerate(heard_T):
        _count_edges(*rows, t, heard.starts_M, starts)
    assert int(starts.sum(dtype=np.int64)) < 2**31, "a window of so many edges is refused before"
    starts = np.cumsum(starts, dtype=np.int32)
    linked = np.empty(starts[-1], np.int32)
    weighted = any(len(heard.weights_E) for heard in heard_T)
    weights = np.empty(len(linked)) if weighted else NO_WEIGHTS
    for t, heard in enumerate(heard_T):
        _link_rows(*rows, t, *_arrays(heard), table.place_TN[t], starts, linked, weights)
    return TableEdges(starts, linked, weights, *turned_round(starts, linked, len(table)))


def turned_round(starts_M: Int32s, neighbours_Q: Int32s, num_rows: int) -> tuple[Int32s, Int32s, Int32s]:
    """Return edges by the row that is heard, and where each of them lies in the given order (a stable sort)."""
    back_starts = np.zeros(num_rows + 1, np.int32)
    back, order = np.empty_like(neighbours_Q), np.empty_like(neighbours_Q)
    _turn_round(starts_M, neighbours_Q, back_starts, back, order)
    return back_starts, back, order


def _arrays(heard: Heard) -> tuple[Any, ...]:
    return heard.starts_M, heard.neighbours_E, heard.weights_E
