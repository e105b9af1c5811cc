"""What a batch is cut from: a snapshot's edges by row, with the degrees that the whole snapshot gives its nodes.

Shape letters: E edges, N nodes, M = N + 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.keys import Float64s
from timeloom.graph.snapshot import Snapshot
from timeloom.plan.partition.union import GraphOfSnapshots, snapshots_of

Bools = NDArray[np.bool_]
Int32s = NDArray[np.int32]
NO_WEIGHTS: Float64s = np.empty(0)


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """The edges of a snapshot by target and by source, as far as they are held here; indices are local."""

    starts_M: Int32s
    """Row v aggregates from ``neighbours_E[starts_M[v]:starts_M[v + 1]]``."""
    neighbours_E: Int32s
    weights_E: Float64s | None
    """None where every weight is 1."""
    out_starts_M: Int32s
    out_neighbours_E: Int32s
    out_order_E: Int32s
    """Where each edge of ``out_neighbours_E`` lies in ``neighbours_E``."""
    into_degree_N: Float64s
    """The sum of the absolute weights of a node's incoming edges in the whole snapshot, not only of those held here."""
    out_degree_N: Float64s
    alive_N: Bools

    @property
    def num_nodes(self) -> int:
        """How many rows there are."""
        return len(self.starts_M) - 1

    def __len__(self) -> int:
        return len(self.neighbours_E)

    @property
    def num_bytes(self) -> int:
        """The memory that the arrays take."""
        weights = 0 if self.weights_E is None else self.weights_E.nbytes
        return weights + sum(
            part.nbytes
            for part in (
                self.starts_M, self.neighbours_E, self.out_starts_M, self.out_neighbours_E, self.out_order_E,
                self.into_degree_N, self.out_degree_N, self.alive_N,
            )
        )  # fmt: skip


class Source(Protocol):
    """Snapshots by row that a neighbourhood may be cut from."""

    @property
    def num_nodes(self) -> int:
        """How many rows every snapshot has."""

    def rows(self, t: int) -> SnapshotRows:
        """Return snapshot t."""


def rows_of(snapshot: Snapshot) -> SnapshotRows:
    """Return a whole snapshot by row; a snapshot of 2^31 edges or more is refused by its readers."""
    into, out_of = snapshot.incoming(), snapshot.outgoing()
    assert out_of.edges is not None
    stored = snapshot.stored_weights
    weights = None if stored is None else np.ascontiguousarray(stored, np.float64)
    sizes = None if weights is None else np.abs(weights)
    count = snapshot.num_nodes
    return SnapshotRows(
        into.starts.astype(np.int32), into.neighbours, weights,
        out_of.starts.astype(np.int32), out_of.neighbours, out_of.edges.astype(np.int32),
        np.bincount(snapshot.targets, sizes, count).astype(np.float64),
        np.bincount(snapshot.sources, sizes, count).astype(np.float64),
        snapshot.alive,
    )  # fmt: skip


class StoredRows:
    """The snapshots of a graph, one in memory at a time; on disk, in the order of time, each is made from the last."""

    def __init__(self, graph: GraphOfSnapshots) -> None:
        self._graph = graph
        self._ahead: Iterator[Snapshot] = iter(())
        self._last: tuple[int, SnapshotRows] | None = None

    @property
    def num_nodes(self) -> int:
        """How many nodes the graph has."""
        return self._graph.num_nodes

    def rows(self, t: int) -> SnapshotRows:
        """Return snapshot t."""
        if self._last is not None and self._last[0] == t:
            return self._last[1]
        if self._last is None or self._last[0] != t - 1:
            self._ahead = snapshots_of(self._graph, t, len(self._graph))
        self._last = (t, rows_of(next(self._ahead)))
        return self._last[1]
