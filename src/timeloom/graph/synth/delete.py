"""What snapshots of a static graph are that are made by deleting edges: the options, and how the edges change.

This is how BLAD (Fu et al. 2023), DyGNeX and REAL make dynamic graphs of Arxiv, Products and Reddit.

Shape letters: T snapshots, P parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from timeloom.errors import BadConfig
from timeloom.graph.dynamic import DynamicGraph
from timeloom.graph.ingest.attributes import Attributes
from timeloom.graph.ingest.rows import RowBlock
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.names import IdList
from timeloom.graph.synth import options
from timeloom.graph.synth.curves import CURVES, growth, whole
from timeloom.graph.synth.draw import Stream, apportion, keyed
from timeloom.graph.synth.evolve import NO_EDGES, PART_EDGES, Change, are_among, with_edges, without_edges


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Snapshots of a static graph that hold a growing share of its edges, chosen at random.

    Ids, features and labels are those of the graph, and the same in every snapshot.
    """

    graph: DynamicGraph
    snapshot: int | None = None
    """The snapshot that is the static graph; None: all edges of all snapshots, with the features of the last."""
    num_snapshots: int = 50
    curve: str = "linear"
    """linear | exponential"""
    first_share: float = 0.1
    """The share of the edges that the first snapshot has."""
    last_share: float = 1.0
    edges_by_snapshot: tuple[int, ...] = ()
    """The edges of every snapshot where no curve describes them; replaces num_snapshots, curve and both shares."""
    turnover: float = 0.0
    """The share of edges that go with each snapshot, whichever they are; as many others take their place."""
    seed: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        options.whole_number("num_snapshots", self.num_snapshots, 1, options.MOST_SNAPSHOTS)
        options.whole_number("seed", self.seed, 0, options.MOST_SEEDS - 1)
        options.one_of("curve", self.curve, CURVES)
        options.share("first_share", self.first_share, 1e-6)
        options.share("last_share", self.last_share, 1e-6)
        options.share("turnover", self.turnover)
        if self.snapshot is not None:
            options.whole_number("snapshot", self.snapshot, 0, len(self.graph) - 1)
        if self.edges_by_snapshot and (min(self.edges_by_snapshot) < 0 or not any(self.edges_by_snapshot)):
            raise BadConfig(
                f"edges_by_snapshot goes from {min(self.edges_by_snapshot)} to {max(self.edges_by_snapshot)}, but "
                f"snapshots have 0 edges or more, and some have edges: give such numbers"
            )

    def sizes(self, num_edges: int) -> Int64s:
        """Return the edges of each snapshot, of a static graph with so many."""
        if self.edges_by_snapshot:
            return np.array(self.edges_by_snapshot, np.int64)
        return whole(growth(self.curve, self.first_share, self.last_share, self.num_snapshots), num_edges, 1)


class DeleteLaw:
    """How snapshots of a static graph change: an edge is its place in the sorted edges of that graph."""

    def __init__(self, asked: Delete) -> None:
        self._asked, self._graph = asked, asked.graph
        self._keys, self._weights = _static_edges(asked)
        self._ids, self._type_ids = _column(asked.graph.ids.all()), _column(asked.graph.type_ids.all())
        size = len(self._keys)
        self.sizes_T = asked.sizes(size)
        self._refuse_too_many(size)
        self.num_parts = -(-size // PART_EDGES)
        self._bounds = np.minimum(np.arange(self.num_parts + 1) * PART_EDGES, size)
        self._gone_TP, self._new_TP = self._plan()
        self.num_rows = int(self._gone_TP.sum() + self._new_TP.sum())

    def _num_gone(self) -> Int64s:
        """Return how many edges go with each snapshot: those that turn over, and those that are too many."""
        before = np.concatenate([[0], self.sizes_T[:-1]])
        turning = np.rint(self._asked.turnover * before).astype(np.int64)
        return np.maximum(turning, before - self.sizes_T)

    def _refuse_too_many(self, size: int) -> None:
        if size == 0:
            raise BadConfig(f"{self._graph.name!r} has no edges to delete: choose another snapshot")
        if (most := int(self.sizes_T.max())) > size:
            raise BadConfig(
                f"a snapshot of {most} edges was asked for, but {self._graph.name!r} has {size}: ask for fewer"
            )
        num_gone = self._num_gone()
        t = int((num_gone + self.sizes_T).argmax())
        if num_gone[t] + self.sizes_T[t] > size:
            raise BadConfig(
                f"turnover={self._asked.turnover:g} takes {num_gone[t]} edges out of snapshot {t - 1} and puts others "
                f"in their place, but the {self.sizes_T[t]} edges of snapshot {t} leave only {size - self.sizes_T[t]} "
                f"of {size} to choose from: lower turnover or last_share"
            )

    def _plan(self) -> tuple[Int64s, Int64s]:
        """Return how many edges go from, and appear in, every part with each snapshot; sums over parts are exact."""
        gone_TP = np.zeros((len(self.sizes_T), self.num_parts), np.int64)
        new_TP = np.zeros_like(gone_TP)
        room = np.diff(self._bounds)
        sizes, before = np.zeros(self.num_parts, np.int64), 0
        for t, (num_edges, num_gone) in enumerate(zip(self.sizes_T.tolist(), self._num_gone().tolist(), strict=True)):
            gone_TP[t] = apportion(num_gone, sizes.astype(np.float64))
            new_TP[t] = apportion(num_edges - before + num_gone, (room - sizes).astype(np.float64))
            sizes += new_TP[t] - gone_TP[t]
            before = num_edges
        return gone_TP, new_TP

    def change(self, part: int, t: int, edges: Int64s) -> Change:
        """Let any edges go, and let any of those that are not there appear."""
        rng = keyed(self._asked.seed, Stream.edges, part=part, t=t)
        gone = edges[np.sort(rng.choice(len(edges), int(self._gone_TP[t, part]), replace=False, shuffle=False))]
        absent = without_edges(np.arange(self._bounds[part], self._bounds[part + 1]), edges)
        new = absent[np.sort(rng.choice(len(absent), int(self._new_TP[t, part]), replace=False, shuffle=False))]
        return Change(gone, new)

    def rows(self, edges: Int64s) -> RowBlock:
        """Return the edges under their original ids."""
        keys, layout = self._keys[edges], self._graph.layout
        return RowBlock(
            source=_of(self._ids, layout.sources(keys)), target=_of(self._ids, layout.targets(keys)),
            weight=None if self._weights is None else self._weights[edges],
            type=_of(self._type_ids, layout.types(keys)) if len(self._type_ids) else None,
        )  # fmt: skip


def _static_edges(asked: Delete) -> tuple[Int64s, Float64s | None]:
    """Return the sorted keys and the weights (None: all 1) of the static graph; a union has the last weights."""
    if asked.snapshot is not None:
        only = asked.graph.snapshot(asked.snapshot)
        return only.keys, only.stored_weights
    keys: Int64s = NO_EDGES
    weights: Float64s | None = None
    for snapshot in asked.graph.snapshots():
        union = with_edges(keys, snapshot.keys[~are_among(snapshot.keys, keys)])
        if weights is not None or snapshot.stored_weights is not None:
            before, weights = weights, np.ones(len(union))
            if before is not None:
                weights[np.searchsorted(union, keys)] = before
            weights[np.searchsorted(union, snapshot.keys)] = snapshot.weights
        keys = union
    return keys, weights


def static_attributes(asked: Delete) -> Attributes:
    """Return the features and labels of the static graph, under its original ids."""
    graph, t = asked.graph, -1 if asked.snapshot is None else asked.snapshot
    t %= len(graph)
    spec, ids = graph.store.manifest["features"], graph.ids.all()
    labels = None if graph.labels.kind == "none" else graph.labels.at(t)
    here = Attributes(ids=ids, labels=labels, classes=tuple(graph.labels.classes))
    if spec["kind"] in ("degree", "random"):
        return replace(here, spec=spec)
    if spec["kind"] == "one_hot":
        known = graph.store.array("features.classes")
        classes = np.full(graph.num_nodes, -1)
        classes[: len(known)] = known
        return replace(here, feature_classes=(classes, spec["classes"]))
    return here if spec["kind"] == "none" else replace(here, features=graph.features.at(t))


def _column(ids: IdList) -> Any:
    """Return ids as a column of integers or of names."""
    return ids if isinstance(ids, np.ndarray) else pa.array(ids, pa.string())


def _of(column: Any, numbers: Int64s) -> Any:
    return column[numbers] if isinstance(column, np.ndarray) else column.take(pa.array(numbers))
