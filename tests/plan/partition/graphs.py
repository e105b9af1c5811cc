"""Graphs in memory for partitions: any list of edges for each snapshot."""

from __future__ import annotations

import numpy as np

from tests.graph.tiny import Edge, TinyGraph, snapshot_of


def graph_of(num_nodes: int, *snapshots: list[tuple[int, int]], alive: set[int] | None = None) -> TinyGraph:
    """Return a graph of the given directed edges; those in ``alive`` are there in every snapshot."""
    return TinyGraph(
        [
            snapshot_of(t, num_nodes, [Edge(u, v, 0, 1.0) for u, v in edges], alive=alive or set())
            for t, edges in enumerate(snapshots)
        ]
    )


def drawn(
    seed: int, *, num_nodes: int = 60, num_snapshots: int = 6, num_edges: int = 150, groups: int = 3
) -> TinyGraph:
    """Return a graph of communities whose last third of nodes is born in the second half."""
    rng = np.random.default_rng(seed)
    snapshots = []
    for t in range(num_snapshots):
        most = num_nodes if t >= num_snapshots // 2 else num_nodes * 2 // 3
        sources = rng.integers(0, most, num_edges)
        near = (sources + groups * rng.integers(0, most // groups, num_edges)) % most
        targets = np.where(rng.random(num_edges) < 0.85, near, rng.integers(0, most, num_edges))
        snapshots.append(sorted(set(zip(sources.tolist(), targets.tolist(), strict=True))))
    return graph_of(num_nodes, *snapshots)
