"""How strongly nodes are tied to each other: a snapshot's edges in both directions, with weights.

Shape letters: N nodes, E edges of the snapshot, D entries of the rows: two for each edge that is no self loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.snapshot import Snapshot
from timeloom.jit import kernel


@dataclass(frozen=True, slots=True)
class Ties:
    """Row v holds the nodes that v is tied to; a node is there as often as there are edges between them."""

    starts: Int64s
    neighbours_D: Int32s
    weights_D: Float64s
    total_weight: float
    """The weight of all edges, each once."""


def ties_of(snapshot: Snapshot, weights_E: Float64s) -> Ties:
    """Return the ties of a snapshot; self loops tie nothing."""
    sources, targets = snapshot.sources, snapshot.targets
    others = sources != targets
    sources, targets, weights = sources[others], targets[others], weights_E[others]
    starts = np.zeros(snapshot.num_nodes + 1, np.int64)
    neighbours, both = np.empty(2 * len(sources), np.int32), np.empty(2 * len(sources))
    _fill(sources, targets, weights, starts, neighbours, both)
    return Ties(starts, neighbours, both, float(weights.sum()))


@kernel("void(int64[::1], int64[::1], float64[::1], int64[::1], int32[::1], float64[::1])")
def _fill(
    sources: Int64s, targets: Int64s, weights: Float64s, starts: Int64s, neighbours: Int32s, both: Float64s
) -> None:
    for i in range(len(sources)):
        starts[sources[i] + 1] += 1
        starts[targets[i] + 1] += 1
    for v in range(1, len(starts)):
        starts[v] += starts[v - 1]
    for i in range(len(sources)):
        u, v, weight = sources[i], targets[i], weights[i]
        at = starts[u]
        neighbours[at], both[at] = v, weight
        starts[u] = at + 1
        at = starts[v]
        neighbours[at], both[at] = u, weight
        starts[v] = at + 1
    for v in range(len(starts) - 1, 0, -1):
        starts[v] = starts[v - 1]
    starts[0] = 0
