"""Which nodes were ever linked in some snapshots: the graph that a partition for all of them is made on.

Directions, types, weights and self loops do not matter here: METIS wants simple graphs, and breaks on others.

Shape letters: N nodes, E edges of the union in both directions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.csr import Int32s
from timeloom.graph.dynamic import DynamicGraph
from timeloom.graph.keys import Int64s
from timeloom.graph.pairs import SeenPairs, merged
from timeloom.graph.snapshot import Snapshot


class GraphOfSnapshots(Protocol):
    """What a partition reads of a graph."""

    num_nodes: int

    def __len__(self) -> int:
        """How many snapshots there are."""
        ...

    def snapshot(self, t: int) -> Snapshot:
        """Return snapshot t."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """A simple undirected graph: row v holds the nodes that v was ever linked to, ascending."""

    starts: Int64s
    neighbours_E: Int32s
    events_N: Int64s
    """How many edges ended in each node, over all snapshots: what it costs to aggregate them all."""

    @property
    def num_nodes(self) -> int:
        """How many nodes there are, linked or not."""
        return len(self.starts) - 1

    @property
    def is_linked(self) -> NDArray[np.bool_]:
        """Whether each node has any neighbour."""
        return np.diff(self.starts) > 0

    def within(self, nodes: Int64s) -> Union:
        """Return the graph of some nodes (ascending) alone: node i of it is ``nodes[i]``."""
        place_N = np.full(self.num_nodes, -1, np.int64)
        place_N[nodes] = np.arange(len(nodes))
        counts = np.diff(self.starts)[nodes]
        firsts = np.cumsum(counts) - counts
        edges = np.repeat(self.starts[nodes] - firsts, counts) + np.arange(counts.sum())
        rows, columns = np.repeat(np.arange(len(nodes)), counts), place_N[self.neighbours_E[edges]]
        inside = columns >= 0
        return _by_row(rows[inside], columns[inside], len(nodes), self.events_N[nodes])


def snapshots_of(graph: GraphOfSnapshots, first: int, last: int) -> Iterator[Snapshot]:
    """Yield snapshots ``first`` to ``last`` (exclusive) in order, each made from the one before if cheaper."""
    if isinstance(graph, DynamicGraph):
        yield from graph.snapshots(first, last)
    else:
        yield from (graph.snapshot(t) for t in range(first, last))


def union_of(graph: GraphOfSnapshots, t_stop: int) -> Union:
    """Return the union of the snapshots before ``t_stop``; later ones are not looked at."""
    seen, events_N = SeenPairs(graph.num_nodes), np.zeros(graph.num_nodes, np.int64)
    for snapshot in snapshots_of(graph, 0, t_stop):
        events_N += np.bincount(snapshot.targets, minlength=graph.num_nodes)
        seen.add(_pairs(snapshot))
    return _symmetric(seen.keys, graph.num_nodes, events_N)


def union_of_snapshot(snapshot: Snapshot) -> Union:
    """Return the simple undirected graph of one snapshot."""
    events_N = np.bincount(snapshot.targets, minlength=snapshot.num_nodes)
    return _symmetric(_pairs(snapshot), snapshot.num_nodes, events_N)


def _pairs(snapshot: Snapshot) -> Int64s:
    """Return a key for each pair of different nodes that is linked, sorted, each once, by target and then source."""
    sources, targets = snapshot.sources, snapshot.targets
    # Edges are sorted by target and then source, and so are these keys; types repeat them.
    keys = (targets * snapshot.num_nodes + sources)[sources != targets]
    first: Int64s = keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys
    return first


def _symmetric(keys: Int64s, num_nodes: int, events_N: Int64s) -> Union:
    n = max(num_nodes, 1)
    both = merged(keys, np.sort(keys % n * n + keys // n))
    return _by_row(both // n, both % n, num_nodes, events_N)


def _by_row(rows: Int64s, columns: Int64s, num_nodes: int, events_N: Int64s) -> Union:
    starts = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=num_nodes), out=starts[1:])
    return Union(starts=starts, neighbours_E=columns.astype(np.int32), events_N=events_N)
