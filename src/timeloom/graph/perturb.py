"""A graph whose future is another: what leak checks compare with the true one.

Shape letters: N nodes, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.features import Features, Float32s, Labels, degree_rows
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.names import NodeIds
from timeloom.graph.snapshot import Snapshot
from timeloom.graph.tasks import GraphLike


class Perturbed:
    """A graph that is the true one up to snapshot ``after``, and noise from there on: edges, features and labels.

    Labels are noise after ``labels_after`` already where that is given, and those of ``hidden_N`` in every snapshot.
    """

    def __init__(
        self, graph: GraphLike, after: int, *, seed: int, labels_after: int | None = None,
        hidden_N: NDArray[np.bool_] | None = None,
    ) -> None:  # fmt: skip
        self._graph, self._after, self._seed = graph, after, seed
        self._labels_after, self._hidden_N = after if labels_after is None else labels_after, hidden_N
        self.name, self.num_nodes = graph.name, graph.num_nodes
        self.ids: NodeIds = graph.ids

    def __len__(self) -> int:
        return len(self._graph)

    @property
    def num_edge_types(self) -> int:
        """How many types edges have."""
        return self._graph.num_edge_types

    def _rng(self, t: int, what: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox([self._seed, t, what]))

    def num_edges(self, t: int) -> int:
        """Return how many edges snapshot t has."""
        return len(self.snapshot(t))

    def snapshot(self, t: int) -> Snapshot:
        """Return the true snapshot, or one of as many edges drawn at random."""
        true = self._graph.snapshot(t)
        if t <= self._after:
            return true
        rng, size = self._rng(t, 0), self.num_nodes
        sources, targets = rng.integers(0, size, (2, len(true) + 1))
        types: Int64s | None = rng.permutation(np.resize(true.types, len(true) + 1)) if len(true) else None
        keys = np.unique(true.layout.pack(sources, targets, types))
        weights: Float64s | None = None
        if true.stored_weights is not None:
            weights = rng.normal(size=len(keys)) * 3.0
        return Snapshot(t, size, true.layout, keys, weights, rng.random(size) < 0.8)

    @property
    def features(self) -> Features:
        """The true features, or noise."""
        return _NoisyFeatures(self, self._graph.features, self._after, self._rng)

    @property
    def labels(self) -> Labels:
        """The true labels, or noise."""
        return _NoisyLabels(self._graph.labels, self._labels_after, self._hidden_N, self._rng)


class _NoisyFeatures:
    def __init__(
        self, graph: Perturbed, true: Features, after: int, rng: Callable[[int, int], np.random.Generator]
    ) -> None:
        self._graph, self._true, self._after, self._rng = graph, true, after, rng
        self.num_features, self.fixed, self.degrees = true.num_features, true.fixed, true.degrees

    def at(self, t: int) -> Float32s:
        if t <= self._after or self.fixed:
            return self._true.at(t)
        if self.degrees is not None:
            return degree_rows(self._graph.snapshot(t), log=self.degrees == "log")
        return self._rng(t, 1).normal(size=(self._graph.num_nodes, self.num_features)).astype(np.float32) * 5.0


class _NoisyLabels:
    def __init__(
        self, true: Labels, after: int, hidden_N: NDArray[np.bool_] | None,
        rng: Callable[[int, int], np.random.Generator],
    ) -> None:  # fmt: skip
        self._true, self._after, self._hidden_N, self._rng = true, after, hidden_N, rng
        self.kind, self.classes, self.fixed = true.kind, true.classes, true.fixed

    def at(self, t: int) -> NDArray[Any]:
        true = self._true.at(t)
        if self.kind != "none" and t > self._after and not self.fixed:
            return self._noise(true, t)
        if self.kind != "none" and self._hidden_N is not None:
            # Labels that never change are hidden behind noise that never does.
            return np.where(self._hidden_N, self._noise(true, 0 if self.fixed else t), true)
        return true

    def _noise(self, true: NDArray[Any], t: int) -> NDArray[Any]:
        rng = self._rng(t, 2)
        if self.kind == "class":
            return rng.integers(-1, len(self.classes), len(true))
        noise: NDArray[Any] = rng.normal(size=len(true)) * 10.0 * (1.0 + float(np.nanmax(np.abs(true), initial=0.0)))
        return noise
