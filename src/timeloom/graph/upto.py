"""A graph as it was when some snapshot had just arrived, whatever has arrived since.

Shape letters: N nodes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.dynamic import DynamicGraph
from timeloom.graph.features import DegreeKind, Features, Float32s, Labels
from timeloom.graph.names import NodeIds
from timeloom.graph.snapshot import Snapshot


class _FirstFeatures:
    """The features of the first nodes."""

    def __init__(self, features: Features, num_nodes: int) -> None:
        self._features, self._num_nodes = features, num_nodes
        self.num_features, self.fixed = features.num_features, features.fixed
        self.degrees: DegreeKind | None = features.degrees

    def at(self, t: int) -> Float32s:
        """Return the [N, F] features of snapshot t."""
        return self._features.at(t)[: self._num_nodes]


class _FirstLabels:
    """The labels of the first nodes."""

    def __init__(self, labels: Labels, num_nodes: int) -> None:
        self._labels, self._num_nodes = labels, num_nodes
        self.kind, self.classes, self.fixed = labels.kind, labels.classes, labels.fixed

    def at(self, t: int) -> NDArray[Any]:
        """Return the [N] labels of snapshot t."""
        return self._labels.at(t)[: self._num_nodes]


class UpTo:
    """The first ``count`` snapshots of a graph, and the nodes that are in them.

    Which nodes these are does not depend on what was appended later: what is computed of this graph is the same
    whenever it is computed. They are the first ones, up to the last one that has an edge in these snapshots: nodes that
    an append brings are numbered after all others.
    """

    def __init__(self, graph: DynamicGraph, count: int) -> None:
        assert 1 <= count <= len(graph), f"{count} of {len(graph)} snapshots"
        self._graph, self._count = graph, count
        self.name = graph.name
        seen = np.flatnonzero((graph.first_seen >= 0) & (graph.first_seen < count))
        # A graph that lists which nodes are present is never appended to.
        listed = "nodes.present" in graph.store
        self.num_nodes = graph.num_nodes if listed or not len(seen) else int(seen[-1]) + 1
        self.ids: NodeIds = graph.ids

    def __len__(self) -> int:
        return self._count

    @property
    def num_edge_types(self) -> int:
        """How many types edges have."""
        return self._graph.num_edge_types

    @property
    def features(self) -> Features:
        """The features of the nodes."""
        return _FirstFeatures(self._graph.features, self.num_nodes)

    @property
    def labels(self) -> Labels:
        """The labels of the nodes."""
        return _FirstLabels(self._graph.labels, self.num_nodes)

    def num_edges(self, t: int) -> int:
        """Return how many edges snapshot t has."""
        return self._graph.num_edges(t)

    def snapshot(self, t: int) -> Snapshot:
        """Return snapshot t."""
        assert 0 <= t < self._count, f"snapshot {t} of {self._count}"
        whole = self._graph.snapshot(t)
        return replace(whole, num_nodes=self.num_nodes, alive=whole.alive[: self.num_nodes])
