"""A snapshot's edges by row: which sources each node aggregates from, or which targets it sends to.

Shape letters: E edges, N nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.keys import Int64s, KeyLayout
from timeloom.jit import kernel

Int32s = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Csr:
    """Rows of neighbours: row v holds ``neighbours[starts[v]:starts[v + 1]]``."""

    starts: Int64s
    neighbours: Int32s
    edges: Int64s | None
    """Where each neighbour's edge lies in the snapshot; None where rows follow the snapshot's own order."""


@kernel("void(int64[::1], int64, int64, int64, int64[::1], int32[::1])")
def _rows_of_sorted(keys: Int64s, low: int, high: int, mask: int, starts: Int64s, neighbours: Int32s) -> None:
    row = 0
    for i in range(len(keys)):
        key = keys[i]
        target = key >> high
        while row <= target:
            starts[row] = i
            row += 1
        neighbours[i] = (key >> low) & mask
    while row < len(starts):
        starts[row] = len(keys)
        row += 1


@kernel("void(int64[::1], int64, int64, int64, int64[::1], int32[::1], int64[::1])")
def _rows_by_counting(
    keys: Int64s, low: int, high: int, mask: int, starts: Int64s, neighbours: Int32s, edges: Int64s
) -> None:
    for i in range(len(keys)):
        starts[((keys[i] >> low) & mask) + 1] += 1
    for row in range(1, len(starts)):
        starts[row] += starts[row - 1]
    for i in range(len(keys)):
        key = keys[i]
        row = (key >> low) & mask
        at = starts[row]
        neighbours[at] = key >> high
        edges[at] = i
        starts[row] = at + 1
    for row in range(len(starts) - 1, 0, -1):
        starts[row] = starts[row - 1]
    starts[0] = 0


def incoming(keys: Int64s, layout: KeyLayout, num_nodes: int) -> Csr:
    """Return, for each node, the sources of its incoming edges; ``keys`` are sorted, so this is one pass."""
    starts, neighbours = np.empty(num_nodes + 1, np.int64), np.empty(len(keys), np.int32)
    high, mask = layout.node_bits + layout.type_bits, layout.most_nodes - 1
    _rows_of_sorted(keys, layout.type_bits, high, mask, starts, neighbours)
    return Csr(starts, neighbours, None)


def outgoing(keys: Int64s, layout: KeyLayout, num_nodes: int) -> Csr:
    """Return, for each node, the targets of its outgoing edges, by one counting sort (targets stay ascending)."""
    starts, neighbours = np.zeros(num_nodes + 1, np.int64), np.empty(len(keys), np.int32)
    edges = np.empty(len(keys), np.int64)
    high, mask = layout.node_bits + layout.type_bits, layout.most_nodes - 1
    _rows_by_counting(keys, layout.type_bits, high, mask, starts, neighbours, edges)
    return Csr(starts, neighbours, edges)
