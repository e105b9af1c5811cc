"""Small graphs in memory, drawn at random: nodes that are born, leave and return, and labels that are missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.features import DegreeKind, Features, Float32s, Labels, degree_rows
from timeloom.graph.keys import layout_for
from timeloom.graph.names import IntegerIds, NodeIds
from timeloom.graph.snapshot import Snapshot

LabelKind = Literal["none", "value", "class"]
FeatureKind = Literal["none", "stored", "fixed", "raw", "log"]


@dataclass(frozen=True)
class Edge:
    """One edge of a snapshot."""

    source: int
    target: int
    kind: int
    weight: float


class TinyFeatures:
    """Rows given for every snapshot, or degrees."""

    def __init__(self, rows: Float32s, graph: TinyGraph, *, fixed: bool, degrees: DegreeKind | None) -> None:
        self._rows, self._graph, self.fixed, self.degrees = rows, graph, fixed, degrees
        self.num_features = 2 if degrees is not None else rows.shape[2]

    def at(self, t: int) -> Float32s:
        if self.degrees is not None:
            return degree_rows(self._graph.snapshot(t), log=self.degrees == "log")
        rows: Float32s = self._rows[0 if self.fixed else t]
        return rows


@dataclass
class TinyLabels:
    """Labels given for every snapshot."""

    kind: str
    classes: list[str]
    fixed: bool
    rows: NDArray[Any]

    def at(self, t: int) -> NDArray[Any]:
        return np.asarray(self.rows[0 if self.fixed else t])


class TinyGraph:
    """A graph in memory: what training reads of a graph on disk."""

    def __init__(self, snapshots: list[Snapshot], *, num_edge_types: int = 0) -> None:
        self.name, self.num_nodes = "tiny", snapshots[0].num_nodes
        self.ids: NodeIds = IntegerIds(np.arange(self.num_nodes) + 100)
        self.num_edge_types = num_edge_types
        self.all = snapshots
        empty = np.zeros((len(snapshots), self.num_nodes, 0), np.float32)
        self.features: Features = TinyFeatures(empty, self, fixed=True, degrees=None)
        self.labels: Labels = TinyLabels("none", [], True, np.full((1, self.num_nodes), -1))

    def __len__(self) -> int:
        return len(self.all)

    def num_edges(self, t: int) -> int:
        return len(self.snapshot(t))

    def snapshot(self, t: int) -> Snapshot:
        assert 0 <= t < len(self.all), f"snapshot {t} of {len(self.all)}"
        return self.all[t]

    def edges(self, t: int) -> list[Edge]:
        """Return the edges of a snapshot, one by one."""
        now = self.snapshot(t)
        rows = zip(now.sources.tolist(), now.targets.tolist(), now.types.tolist(), now.weights.tolist(), strict=True)
        return [Edge(*row) for row in rows]


def snapshot_of(t: int, num_nodes: int, edges: list[Edge], *, num_types: int = 0, alive: set[int]) -> Snapshot:
    """Return a snapshot of the given edges; nodes with an edge are alive, and those named beside."""
    layout = layout_for(num_nodes, num_types)
    columns = [np.array([getattr(edge, name) for edge in edges], np.int64) for name in ("source", "target", "kind")]
    keys = layout.pack(*columns)
    order = np.argsort(keys)
    weights = np.array([edge.weight for edge in edges])[order] if any(edge.weight != 1.0 for edge in edges) else None
    here = np.zeros(num_nodes, np.bool_)
    here[[*alive, *columns[0].tolist(), *columns[1].tolist()]] = True
    return Snapshot(t, num_nodes, layout, keys[order], weights, here)


def tiny(
    seed: int, *, num_nodes: int = 8, num_snapshots: int = 9, weighted: bool = False, num_types: int = 0,
    labels: LabelKind = "none", fixed_labels: bool = False, features: FeatureKind = "none", share: float = 0.2,
) -> TinyGraph:  # fmt: skip
    """Draw a graph. Node 0 is never there; others are born at some time, and come and go."""
    rng = np.random.default_rng([seed, num_nodes, num_snapshots, weighted, num_types])
    born = rng.integers(0, max(num_snapshots // 2, 1), num_nodes)
    born[0], born[1:3] = num_snapshots, 0
    snapshots = []
    for t in range(num_snapshots):
        there = [v for v in range(num_nodes) if born[v] <= t and (v % 3 or rng.random() < 0.7)]
        # One snapshot is empty but for a node.
        likely = 0.0 if t == 3 else share
        edges = [
            Edge(u, v, kind, float(rng.choice([-2.0, -0.5, 1.0, 3.0])) if weighted else 1.0)
            for u in there
            for v in there
            for kind in range(max(num_types, 1))
            if rng.random() < likely
        ]
        alone = {v for v in there if rng.random() < 0.3}
        snapshots.append(snapshot_of(t, num_nodes, edges, num_types=num_types, alive=alone))
    graph = TinyGraph(snapshots, num_edge_types=num_types)
    graph.labels = _labels(rng, labels, num_snapshots, num_nodes, fixed=fixed_labels)
    if features != "none":
        rows = rng.normal(size=(num_snapshots, num_nodes, 3)).astype(np.float32) * 2.0 + 1.0
        degrees: DegreeKind | None = features if features in ("raw", "log") else None
        graph.features = TinyFeatures(rows, graph, fixed=features == "fixed", degrees=degrees)
    return graph


def _labels(rng: np.random.Generator, kind: LabelKind, count: int, num_nodes: int, *, fixed: bool) -> TinyLabels:
    if kind == "none":
        return TinyLabels("none", [], True, np.full((1, num_nodes), -1))
    if kind == "class":
        return TinyLabels("class", ["red", "green", "blue"], fixed, rng.integers(-1, 3, (count, num_nodes)))
    values = np.cumsum(rng.normal(size=(count, num_nodes)), axis=0) + 5.0
    return TinyLabels("value", [], fixed, np.where(rng.random((count, num_nodes)) < 0.25, np.nan, values))
