"""A small graph that resembles a large one: as dense, changing as fast, with features and labels of the same kinds.

Shape letters: E edges, N nodes, F features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.features import DegreeKind, Features, Float32s, Labels, degree_rows
from timeloom.graph.keys import layout_for
from timeloom.graph.names import IntegerIds, NodeIds
from timeloom.graph.snapshot import Snapshot
from timeloom.graph.tasks import GraphLike


@dataclass(frozen=True, slots=True)
class Likeness:
    """What is told of a snapshot of a large graph."""

    edges: float
    """Edges a node."""
    change: float
    """The share of the edges that is gone in the next snapshot."""
    alive: float
    """The share of the nodes that is there."""
    known: float
    """The share of the nodes that has a label."""
    weighted: bool


def likeness_of(graph: GraphLike, t: int) -> Likeness:
    """Return what snapshot t is like, beside the one before it (or after it, if it is the first)."""
    here, other = graph.snapshot(t), graph.snapshot(abs(t - 1))
    common = len(here.keys) + len(other.keys) - len(np.union1d(here.keys, other.keys))
    label = graph.labels.at(t) if graph.labels.kind != "none" else np.zeros(0)
    known = label >= 0 if graph.labels.kind == "class" else ~np.isnan(label)
    return Likeness(
        edges=len(here.keys) / graph.num_nodes, change=1.0 - common / max(len(here.keys), 1),
        alive=float(here.alive.mean()), known=float(known.mean()) if len(known) else 0.0,
        weighted=here.stored_weights is not None,
    )  # fmt: skip


class MadeUpFeatures:
    """Numbers drawn at random, or degrees."""

    def __init__(self, like: Features, graph: MadeUpGraph) -> None:
        self.num_features, self.fixed = like.num_features, like.fixed
        self.degrees: DegreeKind | None = like.degrees
        self._graph = graph

    def at(self, t: int) -> Float32s:
        """Return the [N, F] features of snapshot t."""
        if self.degrees is not None:
            return degree_rows(self._graph.snapshot(t), log=self.degrees == "log")
        rng = np.random.Generator(np.random.Philox([0, 0 if self.fixed else t]))
        return rng.normal(size=(self._graph.num_nodes, self.num_features)).astype(np.float32)


class MadeUpLabels:
    """Values or classes drawn at random."""

    def __init__(self, like: Labels, num_nodes: int, known: float) -> None:
        self.kind, self.classes, self.fixed = like.kind, like.classes, like.fixed
        self._num_nodes, self._known = num_nodes, known

    def at(self, t: int) -> NDArray[Any]:
        """Return the [N] classes or values of snapshot t."""
        rng = np.random.Generator(np.random.Philox([1, 0 if self.fixed else t]))
        known = rng.random(self._num_nodes) < self._known
        if self.kind == "class":
            return np.where(known, rng.integers(0, max(len(self.classes), 1), self._num_nodes), -1)
        return np.where(known, rng.normal(size=self._num_nodes), np.nan)


class MadeUpGraph:
    """So many nodes and snapshots that resemble those of another graph."""

    def __init__(self, like: GraphLike, told: Likeness, *, num_nodes: int, num_snapshots: int) -> None:
        self.name, self.num_nodes, self.num_edge_types = f"made up like {like.name}", num_nodes, like.num_edge_types
        self.ids: NodeIds = IntegerIds(np.arange(num_nodes))
        self._all = _snapshots(like, told, num_nodes, num_snapshots)
        self.features: Features = MadeUpFeatures(like.features, self)
        self.labels: Labels = MadeUpLabels(like.labels, num_nodes, told.known)

    def __len__(self) -> int:
        return len(self._all)

    def snapshot(self, t: int) -> Snapshot:
        """Return snapshot t."""
        return self._all[t]

    def num_edges(self, t: int) -> int:
        """Return the number of edges of snapshot t."""
        return len(self._all[t])


def _snapshots(like: GraphLike, told: Likeness, num_nodes: int, count: int) -> list[Snapshot]:
    rng, layout = np.random.Generator(np.random.Philox(2)), layout_for(num_nodes, like.num_edge_types)
    alive = np.arange(num_nodes) < max(1, round(told.alive * num_nodes))

    def draw(number: int) -> NDArray[np.int64]:
        ends = rng.integers(0, int(alive.sum()), (2, number))
        return layout.pack(ends[0], ends[1], rng.integers(0, max(like.num_edge_types, 1), number))

    keys, made = np.unique(draw(round(told.edges * num_nodes))), list[Snapshot]()
    for t in range(count):
        weights = rng.choice([-1.0, 1.0, 2.0], len(keys)) if told.weighted else None
        made.append(Snapshot(t, num_nodes, layout, keys, weights, alive))
        stays = rng.random(len(keys)) >= told.change
        keys = np.union1d(keys[stays], draw(int((~stays).sum())))
    return made
