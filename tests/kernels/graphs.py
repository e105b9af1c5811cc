"""Graphs for the tests of kernels: drawn at random, and as `Edges`."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from timeloom.graph.keys import layout_for
from timeloom.graph.snapshot import Snapshot
from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.reference import EdgeList

WEIGHTS = (0.0, -2.0, -0.5, 0.25, 1.0, 3.0, 1e-3)


@st.composite
def graphs(draw: st.DrawFn) -> EdgeList:
    """Draw a small graph: parallel edges (of several types), self loops, isolated nodes, absent nodes; maybe empty."""
    num_nodes = draw(st.integers(1, 7))
    node, kind = st.integers(0, num_nodes - 1), st.integers(0, 2)
    rows = draw(st.lists(st.tuples(node, node, kind), max_size=25, unique=True))
    weights = draw(st.none() | st.lists(st.sampled_from(WEIGHTS), min_size=len(rows), max_size=len(rows)))
    alive = draw(st.lists(st.booleans(), min_size=num_nodes, max_size=num_nodes))
    return edge_list([row[:2] for row in rows], weights, alive)


def edge_list(rows: list[tuple[int, int]], weights: list[float] | None, alive: list[bool]) -> EdgeList:
    """Return the edges ``rows`` (source, target) between ``len(alive)`` nodes."""
    source_E, target_E = torch.tensor(rows, dtype=torch.int64).reshape(-1, 2).T
    weight_E = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    return EdgeList(source_E, target_E, weight_E, torch.tensor(alive))


def edges_of(graph: EdgeList, dtype: torch.dtype = torch.float64) -> Edges:
    """Return the edges by target and by source; edges of one row stay in their order."""
    by_target = torch.argsort(graph.target_E, stable=True)
    source_E, target_E = graph.source_E[by_target], graph.target_E[by_target]
    weight_E = None if graph.weight_E is None else graph.weight_E[by_target].to(dtype)
    by_source = torch.argsort(source_E, stable=True)
    return Edges(
        Rows(_starts(target_E, graph.num_nodes), source_E.int(), weight_E),
        Rows(
            _starts(source_E, graph.num_nodes),
            target_E[by_source].int(),
            None if weight_E is None else weight_E[by_source],
        ),
        by_source.int(),
    )


def _starts(rows_E: Tensor, num_nodes: int) -> Tensor:
    counts = torch.bincount(rows_E, minlength=num_nodes)
    return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int()


def shuffled(graph: EdgeList, seed: int) -> EdgeList:
    """Return the same edges in another order."""
    order = torch.randperm(len(graph.source_E), generator=torch.Generator().manual_seed(seed))
    weight_E = None if graph.weight_E is None else graph.weight_E[order]
    return EdgeList(graph.source_E[order], graph.target_E[order], weight_E, graph.alive_N)


def snapshot_of(graph: EdgeList) -> Snapshot:
    """Return the edges as a snapshot; parallel ones get types 0, 1, 2 and so on."""
    layout = layout_for(graph.num_nodes, 4)
    seen: dict[tuple[int, int], int] = {}
    types = np.zeros(len(graph.source_E), np.int64)
    for place, pair in enumerate(zip(graph.source_E.tolist(), graph.target_E.tolist(), strict=True)):
        types[place] = seen[pair] = seen.get(pair, -1) + 1
    keys = layout.pack(graph.source_E.numpy(), graph.target_E.numpy(), types)
    order = np.argsort(keys)
    weights = None if graph.weight_E is None else graph.weight_E.numpy()[order]
    return Snapshot(0, graph.num_nodes, layout, keys[order], weights, graph.alive_N.numpy())


def large(num_nodes: int, num_edges: int, seed: int = 0) -> EdgeList:
    """Return a weighted graph that is large enough for several threads; half of the edges lead to a few nodes."""
    rng = torch.Generator().manual_seed(seed)
    source_E = torch.randint(num_nodes, (num_edges,), generator=rng)
    target_E = torch.randint(num_nodes, (num_edges,), generator=rng)
    target_E[::2] %= 5
    weight_E = torch.rand(num_edges, generator=rng, dtype=torch.float64) + 0.1
    return EdgeList(source_E, target_E, weight_E, torch.ones(num_nodes, dtype=torch.bool))


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return a tensor of normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def as_rows(edges: Edges) -> list[tuple[int, int, float]]:
    """Return source, target and weight of each edge, by target."""
    weight_E = torch.ones(len(edges)) if edges.into.weights_E is None else edges.into.weights_E
    return list(zip(edges.into.neighbours_E.tolist(), edges.into.row_of_edges.tolist(), weight_E.tolist(), strict=True))
