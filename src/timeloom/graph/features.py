"""What is known of every node: features that a model reads, and labels that it is to learn, by snapshot.

Shape letters: N nodes, F features, T snapshots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.snapshot import NodeFacts

if TYPE_CHECKING:
    from timeloom.graph.dynamic import DynamicGraph

Float32s = NDArray[np.float32]
DegreeKind = Literal["raw", "log"]


class Features(Protocol):
    """The features of all nodes."""

    @property
    def num_features(self) -> int:
        """How many features a node has."""
        ...

    @property
    def fixed(self) -> bool:
        """Whether every snapshot has the same features."""
        ...

    @property
    def degrees(self) -> DegreeKind | None:
        """Which degrees the features are, where that is all they are: they can then be made of a snapshot at hand."""
        ...

    def at(self, t: int) -> Float32s:
        """Return the [N, F] features of snapshot t."""
        ...


class NoFeatures:
    """No features at all."""

    num_features, fixed = 0, True
    degrees: DegreeKind | None = None

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes

    def at(self, t: int) -> Float32s:
        """Return an empty matrix."""
        return np.empty((self._num_nodes, 0), np.float32)


def degree_rows(snapshot: NodeFacts, *, log: bool) -> Float32s:
    """Return the weighted in-degree and out-degree of each node, or log(1 + |degree|) with the degree's sign."""
    degrees = np.stack(snapshot.degrees(), axis=1)
    with np.errstate(over="ignore"):
        # Beyond 1e38 it becomes infinite, which training refuses with its place (`train/faults.py`).
        return (np.copysign(np.log1p(np.abs(degrees)), degrees) if log else degrees).astype(np.float32)


class DegreeFeatures:
    """The degrees of each node, raw or as logarithms."""

    num_features, fixed = 2, False

    def __init__(self, graph: DynamicGraph, *, log: bool) -> None:
        self._graph = graph
        self.degrees: DegreeKind | None = "log" if log else "raw"

    def at(self, t: int) -> Float32s:
        """Return the degrees in snapshot t."""
        return degree_rows(self._graph.snapshot(t), log=self.degrees == "log")


class RandomFeatures:
    """Standard normal numbers that depend on the seed and the node alone."""

    fixed = True
    degrees: DegreeKind | None = None

    def __init__(self, num_nodes: int, num_features: int, seed: int) -> None:
        self._num_nodes, self.num_features, self._seed = num_nodes, num_features, seed

    def at(self, t: int) -> Float32s:
        """Return the numbers; nodes appended later change nobody else's."""
        rng = np.random.Generator(np.random.Philox(self._seed))
        return rng.standard_normal((self._num_nodes, self.num_features), np.float32)


class StoredFeatures:
    """Numbers that came with the data, once for all snapshots or for each."""

    degrees: DegreeKind | None = None

    def __init__(self, graph: DynamicGraph, name: str) -> None:
        self._graph, self._name = graph, name
        self.fixed = f"{name}.fixed" in graph.store
        self.num_features = int(self._rows(0).shape[1])

    def _rows(self, t: int) -> NDArray[Any]:
        if self.fixed:
            return self._graph.store.array(f"{self._name}.fixed")
        return self._graph.segment_row(self._name, t)

    def at(self, t: int) -> Float32s:
        """Return the features of snapshot t; a node appended after its values were given has zeros."""
        rows = self._rows(t)
        missing = self._graph.num_nodes - len(rows)
        return np.concatenate([rows, np.zeros((missing, rows.shape[1]), np.float32)]) if missing else rows


class OneHotFeatures:
    """One feature for each value of a column: 1 for a node's own value (class -1: all 0)."""

    fixed = True
    degrees: DegreeKind | None = None

    def __init__(self, graph: DynamicGraph, num_features: int) -> None:
        self._graph, self.num_features = graph, num_features

    def at(self, t: int) -> Float32s:
        """Return the one-hot rows."""
        classes = self._graph.store.array("features.classes")
        rows = np.zeros((self._graph.num_nodes, self.num_features), np.float32)
        known = np.flatnonzero(classes >= 0)
        rows[known, classes[known]] = 1.0
        return rows


def open_features(graph: DynamicGraph) -> Features:
    """Return the features that a graph's manifest names."""
    spec = graph.store.manifest["features"]
    kind = spec["kind"]
    if kind == "degree":
        return DegreeFeatures(graph, log=spec["log"])
    if kind == "random":
        return RandomFeatures(graph.num_nodes, spec["num_features"], spec["seed"])
    if kind == "one_hot":
        return OneHotFeatures(graph, len(spec["classes"]))
    if kind == "stored":
        return StoredFeatures(graph, "features")
    return NoFeatures(graph.num_nodes)


class Labels(Protocol):
    """The labels of all nodes: a class (-1: unknown) or a value (NaN: unknown), fixed or by snapshot."""

    kind: str
    """`none`, `class` or `value`."""
    classes: list[str]
    """The names of the classes; a class is a place in this list."""
    fixed: bool

    def at(self, t: int) -> NDArray[Any]:
        """Return the [N] classes (int64) or values (float64) of snapshot t."""
        ...


class StoredLabels:
    """Labels that came with the data."""

    def __init__(self, graph: DynamicGraph) -> None:
        self._graph = graph
        spec = graph.store.manifest["labels"]
        self.kind: str = spec["kind"]
        self.classes: list[str] = spec.get("classes", [])
        self.fixed = "labels.fixed" in graph.store

    def at(self, t: int) -> NDArray[Any]:
        """Return the [N] classes (int64) or values (float64) of snapshot t."""
        unknown: NDArray[Any] = (
            np.full(self._graph.num_nodes, -1) if self.kind != "value" else np.full(self._graph.num_nodes, np.nan)
        )
        if self.kind != "none":
            rows = self._graph.store.array("labels.fixed") if self.fixed else self._graph.segment_row("labels", t)
            unknown[: len(rows)] = rows
        return unknown


def open_labels(graph: DynamicGraph) -> Labels:
    """Return the labels that a graph's manifest names."""
    return StoredLabels(graph)
