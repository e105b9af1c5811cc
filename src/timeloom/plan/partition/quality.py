"""How good a partition is: edges it cuts, rows that ranks need of each other, and how even the work is.

Shape letters: T snapshots, R ranks, N nodes, W words of R bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Int64s
from timeloom.jit import kernel
from timeloom.plan.partition.owners import Chunks, Owners
from timeloom.plan.partition.union import GraphOfSnapshots, snapshots_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What a partition costs, snapshot by snapshot."""

    name: str
    first: int
    """The snapshot that row 0 tells of."""
    nodes_R: Int64s
    """Nodes of each rank, whether they are ever there or not."""
    cut_T: Int64s
    """Edges whose ends lie on two ranks."""
    edges_TR: Int64s
    """Edges into the nodes of each rank: what it aggregates."""
    halo_TR: Int64s
    """Rows that each rank needs and does not own: different nodes of other ranks with an edge into its own."""

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return len(self.nodes_R)

    @property
    def cut_share(self) -> float:
        """The share of all edges of all snapshots that are cut."""
        return float(self.cut_T.sum() / max(self.edges_TR.sum(), 1))

    @property
    def node_balance(self) -> float:
        """Nodes of the largest rank over the mean: 1 is even."""
        return balance(self.nodes_R)

    @property
    def edge_balance(self) -> float:
        """Edges, over all snapshots, of the busiest rank over the mean."""
        return balance(self.edges_TR.sum(axis=0))

    @property
    def step_balance(self) -> float:
        """The same where ranks wait for each other after every snapshot: mean over snapshots, weighted by edges."""
        return float(self.edges_TR.max(axis=1, initial=0).sum() * self.num_ranks / max(self.edges_TR.sum(), 1))

    def as_json(self) -> dict[str, Any]:
        """Return the numbers by name."""
        arrays = {name: getattr(self, name).tolist() for name in ("nodes_R", "cut_T", "edges_TR", "halo_TR")}
        shares = {name: getattr(self, name) for name in ("cut_share", "node_balance", "edge_balance", "step_balance")}
        return {"name": self.name, "first": self.first, "num_ranks": self.num_ranks, **shares, **arrays}


def balance(loads: NDArray[Any]) -> float:
    """Return the largest over the mean (1 where there is nothing to do)."""
    return float(loads.max() * len(loads) / total) if (total := loads.sum()) else 1.0


def quality(owners: Owners, graph: GraphOfSnapshots, first: int = 0, last: int | None = None) -> Quality:
    """Return what a partition costs in snapshots ``first`` to ``last`` (exclusive; None: all)."""
    last = len(graph) if last is None else last
    assert owners.num_nodes == graph.num_nodes, "owners of another graph"
    ranks, count = owners.num_ranks, last - first
    cut_T, edges_TR, halo_TR = (np.zeros(shape, np.int64) for shape in (count, (count, ranks), (count, ranks)))
    seen_NW = np.empty((graph.num_nodes, -(-ranks // 64)), np.uint64)
    for row, snapshot in enumerate(snapshots_of(graph, first, last)):
        seen_NW.fill(0)
        cut_T[row] = _count(snapshot.sources, snapshot.targets, owners.owner_N, seen_NW, edges_TR[row], halo_TR[row])
    return Quality(name=owners.name, first=first, nodes_R=owners.sizes, cut_T=cut_T, edges_TR=edges_TR, halo_TR=halo_TR)


def chunk_quality(chunks: Chunks, graph: GraphOfSnapshots) -> Quality:
    """Return the same of the chunks of all owners, as if each was a rank's: what is cut leaves a chunk."""
    owners, per_owner = chunks.owners, np.int32(chunks.per_owner)
    numbers_N = owners.owner_N * per_owner + chunks.chunk_N
    name = f"{chunks.per_owner} chunks by {chunks.name}"
    return quality(Owners(owner_N=numbers_N, num_ranks=owners.num_ranks * chunks.per_owner, name=name), graph)


@kernel("int64(int64[::1], int64[::1], Array(int32, 1, 'C', readonly=True), uint64[:, ::1], int64[::1], int64[::1])")
def _count(
    sources: Int64s, targets: Int64s, owner_N: Int32s, seen_NW: NDArray[np.uint64], edges_R: Int64s, halo_R: Int64s
) -> int:
    cut = 0
    for i in range(len(sources)):
        u, rank = sources[i], owner_N[targets[i]]
        edges_R[rank] += 1
        if owner_N[u] == rank:
            continue
        cut += 1
        bit = np.uint64(1) << np.uint64(rank % 64)
        if not seen_NW[u, rank // 64] & bit:
            seen_NW[u, rank // 64] |= bit
            halo_R[rank] += 1
    return cut
