"""How much memory a window takes, before it is tried: rows and edges of its blocks, and bytes for each (SPEC D7.6).

Shape letters: T snapshots, C chunks of an owner, N nodes, R owners, E edges, L loads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.keys import Int64s
from timeloom.graph.snapshot import Snapshot
from timeloom.plan.batch.flare import FlareSettings
from timeloom.plan.batch.order import ChunkOrder
from timeloom.plan.batch.trapezoid import trapezoids

_TRUST = 1e-3  # a law's coefficients count as much as a measurement with 30 times the relative error


@dataclass(frozen=True, slots=True)
class Load:
    """How much the largest window of an epoch holds at once."""

    rows: int
    edges: int


@dataclass(frozen=True, slots=True)
class MemoryLaw:
    """Bytes that a window takes: so many always, and so many a row and an edge of its blocks."""

    fixed: float
    row: float
    edge: float

    def predict(self, load: Load) -> float:
        """Return the bytes that a load is predicted to take."""
        return self.fixed + self.row * load.rows + self.edge * load.edges

    def fitted(self, loads: Sequence[Load], peaks: Sequence[float]) -> MemoryLaw:
        """Return a law near this one that tells what was measured, by least relative errors.

        What the loads measured so far do not tell apart stays as it is here.
        """
        if not loads:
            return self
        before = np.array([self.fixed, self.row, self.edge])
        terms_L = np.array([(1.0, load.rows, load.edges) for load in loads]) * before / np.array(peaks)[:, None]
        squares = terms_L.T @ terms_L + _TRUST * np.eye(3)
        factors = np.linalg.solve(squares, terms_L.sum(0) + _TRUST)
        fixed, row, edge = (before * np.maximum(factors, 0.0)).tolist()
        return MemoryLaw(fixed, row, edge)


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """How many rows and edges the first n chunks of each snapshot have, in the order of one epoch, on the busiest rank.

    Orders of other epochs come near it: chunks are of like size.
    """

    rows_C: Int64s
    """[C + 1]"""
    edges_TC: Int64s
    """[T, C + 1]"""

    def load(self, flare: FlareSettings) -> Callable[[MemoryLaw], Load]:
        """Return which window is the largest by a law."""
        units = [units[-1] for units in trapezoids(flare, len(self.edges_TC))]
        loads = [
            Load(
                int(self.rows_C[list(unit.chunks)].sum()),
                int(self.edges_TC[np.arange(unit.first, unit.last), list(unit.chunks)].sum()),
            )
            for unit in units
        ]
        return lambda law: max(loads, key=law.predict)


def chunk_sizes(snapshots: Iterable[Snapshot], order: ChunkOrder, *, temporal_halo: bool) -> ChunkSizes:
    """Return the sizes of the first chunks of each snapshot, by one pass over all edges.

    Without ``temporal_halo`` edges between ranks count in whole snapshots only.
    """
    chunking = order.chunking
    owners, per_owner = chunking.num_owners, chunking.per_owner
    position_N = (order.place_Q // owners)[chunking.numbers].astype(np.int64)
    rows_RC = _sums(chunking.owner_N, position_N, owners, per_owner)
    edges_TC = []
    for snapshot in snapshots:
        sources, targets = snapshot.sources, snapshot.targets
        owner_E, last_E = chunking.owner_N[targets], np.maximum(position_N[sources], position_N[targets])
        whole_RC = _sums(owner_E, last_E, owners, per_owner)
        left_RC = whole_RC
        if not temporal_halo:
            inner = chunking.owner_N[sources] == owner_E
            left_RC = _sums(owner_E[inner], last_E[inner], owners, per_owner)
        edges_TC.append(np.append(left_RC.max(0)[:-1], whole_RC[:, -1].max()))
    return ChunkSizes(rows_RC.max(0), np.array(edges_TC).reshape(-1, per_owner + 1))


def _sums(owners: NDArray[np.integer], positions: Int64s, num_owners: int, per_owner: int) -> Int64s:
    """Return [R, C + 1] how many things each owner has in the first so many positions."""
    counts = np.bincount(owners.astype(np.int64) * per_owner + positions, minlength=num_owners * per_owner)
    sums = np.cumsum(counts.reshape(num_owners, per_owner), axis=1)
    return np.concatenate([np.zeros((num_owners, 1), np.int64), sums], axis=1)


@dataclass(frozen=True, slots=True)
class Shares:
    """How large the largest window is, each as a share of the largest of Full-History."""

    memory: float
    rows: float
    edges: float


def shares_of_full_history(sizes: ChunkSizes, flare: FlareSettings, law: MemoryLaw) -> Shares:
    """Return what windows take of what they would if no snapshot shrank."""
    whole = replace(flare, history="full")
    ours, theirs = sizes.load(flare)(law), sizes.load(whole)(law)
    return Shares(law.predict(ours) / law.predict(theirs), ours.rows / theirs.rows, ours.edges / max(theirs.edges, 1))
