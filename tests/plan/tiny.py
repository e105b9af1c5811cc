"""Small graphs for tests of plans, and a model so plain that what it computes can be followed by hand.

Shape letters: N nodes, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.keys import Float64s, KeyLayout
from timeloom.graph.snapshot import Snapshot
from timeloom.plan.batch.neighbourhood import LayerReach
from timeloom.plan.batch.rows import SnapshotRows, rows_of

Edges = Sequence[tuple[int, int]]
LAYOUT = KeyLayout()


def snapshot_of(t: int, num_nodes: int, edges: Edges, weights: Sequence[float] | None = None) -> Snapshot:
    """Return a snapshot with these edges ``(u, v)``: v aggregates from u."""
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    keys = LAYOUT.pack(pairs[:, 0], pairs[:, 1])
    order = np.argsort(keys)
    alive = np.zeros(num_nodes, np.bool_)
    alive[pairs.ravel()] = True
    return Snapshot(t, num_nodes, LAYOUT, keys[order], None if weights is None else np.array(weights)[order], alive)


@dataclass(frozen=True)
class Listed:
    """Snapshots in memory, as a source of rows."""

    snapshots: tuple[Snapshot, ...]

    @property
    def num_nodes(self) -> int:
        return self.snapshots[0].num_nodes

    def rows(self, t: int) -> SnapshotRows:
        return rows_of(self.snapshots[t])


def listed(num_nodes: int, *edges: Edges) -> Listed:
    """Return these edges of consecutive snapshots."""
    return Listed(tuple(snapshot_of(t, num_nodes, some) for t, some in enumerate(edges)))


def drawn(seed: int, *, num_nodes: int, num_snapshots: int, num_edges: int, weighted: bool = False) -> Listed:
    """Return random snapshots that share about half of their edges; some are empty, some edges are loops."""
    rng = np.random.default_rng(seed)
    snapshots, pairs = [], np.empty((0, 2), np.int64)
    for t in range(num_snapshots):
        kept = pairs[rng.random(len(pairs)) < 0.5]
        new = rng.integers(0, num_nodes, (num_edges - len(kept), 2))
        pairs = np.unique(np.concatenate([kept, new]), axis=0) if rng.random() < 0.9 else pairs[:0]
        weights = rng.uniform(-1.0, 2.0, len(pairs)).tolist() if weighted else None
        snapshots.append(snapshot_of(t, num_nodes, [(int(u), int(v)) for u, v in pairs], weights))
    return Listed(tuple(snapshots))


@dataclass(frozen=True)
class TinyModel:
    """Layers of normalised sums, each hop followed by tanh, and a state for each node where a layer remembers."""

    layers: tuple[LayerReach, ...]
    both: bool

    def outputs(self, graphs: Sequence[SnapshotRows], features: Sequence[Float64s], seed: int = 0) -> list[Float64s]:
        """Return [N, F] what comes out of every snapshot; parameters are drawn by the seed."""
        rng = np.random.default_rng(seed)
        width = features[0].shape[1]
        weights = [rng.normal(size=(layer.hops + 1, width, width)) / width for layer in self.layers]
        states: list[Float64s] = [np.zeros_like(features[0]) for _ in self.layers]
        found: list[Float64s] = []
        for graph, rows in zip(graphs, features, strict=True):
            for place, (layer, matrices) in enumerate(zip(self.layers, weights, strict=True)):
                for hop in range(layer.hops):
                    rows = np.tanh(self.heard(graph, rows) @ matrices[hop])
                if layer.remembers:
                    rows = states[place] = np.tanh(rows + states[place] @ matrices[-1])
            found.append(rows)
        return found

    def heard(self, graph: SnapshotRows, rows_NF: Float64s) -> Float64s:
        """Return the GCN sum of each node, by the degrees that the graph tells, and in both directions if asked."""
        into = _root(graph.into_degree_N + graph.alive_N)
        total: Float64s = np.einsum("nf,n->nf", rows_NF, np.where(graph.alive_N, into**2, 0.0))
        sources, targets, weights = edges_of(graph)
        np.add.at(total, targets, rows_NF[sources] * (weights * into[sources] * into[targets])[:, None])
        if self.both:
            out_of = _root(graph.out_degree_N + graph.alive_N)
            np.add.at(total, sources, rows_NF[targets] * (weights * out_of[sources] * out_of[targets])[:, None])
        return total


def edges_of(graph: SnapshotRows) -> tuple[NDArray[np.int64], NDArray[np.int64], Float64s]:
    """Return source, target and weight of each edge."""
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.starts_M))
    weights = np.ones(len(graph)) if graph.weights_E is None else graph.weights_E
    return graph.neighbours_E.astype(np.int64), targets, weights


def _root(degrees_N: Float64s) -> Float64s:
    found: Float64s = np.where(degrees_N > 0, np.maximum(degrees_N, 1e-300) ** -0.5, 0.0)
    return found
