"""How nodes are dealt out so that every rank has like work, and how a batch is drawn with like work (DynaHB 4.2).

What a node costs as a target is counted in walks (SPEC D8.1), not in different neighbours as DynaHB's Definition 2
says: a node that is reached in two ways is aggregated twice. With ``W_l`` the walks of l edges that end in a node, a
model of L layers costs ``sum over l = 1..L of (L - l + 1) W_l`` additions, summed over the snapshots.

Shape letters: N nodes, R ranks, G groups.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadConfig
from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Float64s, Int64s
from timeloom.plan.partition.owners import Owners, refuse_parts
from timeloom.plan.partition.union import GraphOfSnapshots, snapshots_of

Deal = Literal["serpentine", "round_robin", "lpt"]


def walk_loads(graph: GraphOfSnapshots, t_stop: int, layers: int) -> Float64s:
    """Return what each node costs as a target in the snapshots before ``t_stop``; the cost is layers x edges.

    Walks are as many as the degree to the power of the layers: float64, exact below 2**53 and never wrapped around.
    """
    if layers < 1:
        raise BadConfig(f"loads of a model of {layers} layers were asked for: give 1 or more")
    load_N = np.zeros(graph.num_nodes)
    for snapshot in snapshots_of(graph, 0, t_stop):
        sources, targets = snapshot.sources, snapshot.targets
        walks_N = np.ones(graph.num_nodes)
        for length in range(1, layers + 1):
            walks_N = np.bincount(targets, walks_N[sources], graph.num_nodes).astype(np.float64)
            load_N += (layers - length + 1) * walks_N
    return load_N


def heaviest_first(nodes: Int64s, load_N: Float64s) -> Int64s:
    """Return the nodes by falling load; those of the same load by number."""
    ascending = np.sort(nodes)
    ordered: Int64s = ascending[np.argsort(-load_N[ascending], kind="stable")]
    return ordered


def load_owners(load_N: Float64s, ranks: int, deal: Deal = "serpentine") -> Owners:
    """Return owners that have like loads.

    Nodes are dealt from the heaviest on. serpentine: there and back again, so that no rank always gets the larger of a
    round; counts differ by 1 at most. round_robin: as Algorithm 1 of DynaHB says. lpt: each to the rank with the least
    so far, which evens out a heavy tail best, but leaves unlike counts (SPEC D8.2).
    """
    refuse_parts("ranks", ranks)
    order = heaviest_first(np.arange(len(load_N)), load_N)
    owner_N = np.empty(len(load_N), np.int32)
    place = np.arange(len(load_N))
    if deal == "serpentine":
        turn = place % (2 * ranks)
        owner_N[order] = np.where(turn < ranks, turn, 2 * ranks - 1 - turn)
    elif deal == "round_robin":
        owner_N[order] = place % ranks
    else:
        owner_N[order] = _least_loaded(load_N[order], ranks)
    return Owners(owner_N=owner_N, num_ranks=ranks, name=f"load/{deal}")


def _least_loaded(loads: Float64s, ranks: int) -> Int32s:
    """Return for each load in turn the rank that had the least; every node counts 1 more, for its own row."""
    heap = [(0.0, rank) for rank in range(ranks)]
    chosen = np.empty(len(loads), np.int32)
    for place, load in enumerate((loads + 1.0).tolist()):
        before, rank = heap[0]
        chosen[place] = rank
        heapq.heapreplace(heap, (before + load, rank))
    return chosen


@dataclass(frozen=True, slots=True)
class BalancedGroups:
    """A rank's nodes from the heaviest to the lightest, cut into groups of equal count."""

    nodes: Int64s
    ends_G: Int64s

    @property
    def sizes_G(self) -> Int64s:  # noqa: N802
        """How many nodes each group has."""
        return np.diff(self.ends_G, prepend=0)

    def shares(self, count: int, rng: np.random.Generator) -> Int64s:
        """Return how many of ``count`` nodes come from each group: in proportion to its size, rounded to add up.

        What is left after rounding down goes to the groups that lost most by it; a draw breaks ties, so that over many
        batches every node is as likely as any other.
        """
        if not 0 <= count <= len(self.nodes):
            raise BadConfig(
                f"a batch of {count} targets was asked for, but there are {len(self.nodes)} nodes to draw from: "
                f"ask for 0 to {len(self.nodes)}"
            )
        whole_G, lost_G = np.divmod(count * self.sizes_G, max(len(self.nodes), 1))
        first = np.lexsort((rng.random(len(lost_G)), -lost_G))[: count - int(whole_G.sum())]
        whole_G[first] += 1
        return whole_G

    def draw(self, count: int, rng: np.random.Generator) -> Int64s:
        """Return ``count`` different nodes, ascending, from all groups alike."""
        shares_G = self.shares(count, rng)
        begins_G = self.ends_G - self.sizes_G
        drawn: list[NDArray[np.int64]] = [
            begin + rng.choice(size, share, replace=False, shuffle=False)
            for begin, size, share in zip(begins_G.tolist(), self.sizes_G.tolist(), shares_G.tolist(), strict=True)
        ]
        places = np.concatenate(drawn) if drawn else np.empty(0, np.int64)
        return np.sort(self.nodes[places])


def balanced_groups(nodes: Int64s, load_N: Float64s, num_groups: int = 10) -> BalancedGroups:
    """Return the groups of some nodes (DynaHB 4.2; its code has 10); with few nodes some groups are empty."""
    if num_groups < 1:
        raise BadConfig(f"{num_groups} balanced groups were asked for: give 1 or more")
    ends_G = np.arange(1, num_groups + 1) * len(nodes) // num_groups
    return BalancedGroups(heaviest_first(nodes, load_N), ends_G)
