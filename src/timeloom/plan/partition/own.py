"""What of a snapshot concerns the nodes of one rank: the edges that lead to them, in numbers of the rank's own.

Own nodes are numbered 0, 1, ... in the order of the graph; the halo of a snapshot (the other ends of these edges that
other ranks own) goes on from there, rank by rank and in the order of the graph. Whoever reads a snapshot knows the
owners of both ends of every edge, so that each rank finds by itself what it wants of others and what they want of it.

Shape letters: N all nodes, O own nodes, H halo nodes, L = O + H, S own rows that others want.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.snapshot import Snapshot
from timeloom.plan.partition.owners import Owners


@dataclass(frozen=True)
class OwnNodes:
    """The nodes of one rank."""

    owners: Owners
    rank: int

    @cached_property
    def nodes(self) -> Int64s:
        """The numbers of its nodes in the graph, ascending."""
        return self.owners.nodes_of(self.rank)

    @cached_property
    def places(self) -> Int32s:
        """The place of each node among those of its owner."""
        place_N = np.empty(self.owners.num_nodes, np.int32)
        for rank in range(self.owners.num_ranks):
            nodes = self.owners.nodes_of(rank)
            place_N[nodes] = np.arange(len(nodes))
        return place_N

    def __len__(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgesIn:
    """The edges of a snapshot that bring messages to own nodes, and where the rows of their other ends come from."""

    edges: Snapshot
    """Of own and halo nodes in their local numbers, sorted by target; all are taken to be alive."""
    received: tuple[int, ...]
    """How many halo nodes each rank owns; of the own rank 0."""
    wanted_S: Int64s
    """Which own nodes are in the halo of others, rank by rank, in local numbers."""
    sent: tuple[int, ...]
    """How many of them each rank wants."""
    into_L: Float64s
    """The degrees of own and halo nodes in the whole snapshot, along the way of the messages; weights by their size."""
    out_of_L: Float64s


def edges_in(own: OwnNodes, snapshot: Snapshot, *, reverse: bool) -> EdgesIn:
    """Return what concerns a rank's nodes; with ``reverse`` messages go from targets to sources."""
    owner_N = own.owners.owner_N
    sources, targets = snapshot.sources, snapshot.targets
    into_N, out_of_N = snapshot.strengths()
    if reverse:
        sources, targets, into_N, out_of_N = targets, sources, out_of_N, into_N
    is_source, is_target = owner_N[sources] == own.rank, owner_N[targets] == own.rank
    arriving, leaving = is_target & ~is_source, is_source & ~is_target
    halo_H, received = by_rank(sources[arriving], owner_N[sources[arriving]], own.owners)
    wanted_S, sent = by_rank(sources[leaving], owner_N[targets[leaving]], own.owners)
    nodes_L = np.concatenate([own.nodes, halo_H])
    place_N = np.empty(len(owner_N), np.int64)
    place_N[nodes_L] = np.arange(len(nodes_L))
    kept = np.flatnonzero(is_target)
    if reverse:
        # Edges lie by target; here by what was their source, and as before within each.
        kept = kept[np.argsort(targets[kept], kind="stable")]
    keys = snapshot.layout.pack(place_N[sources[kept]], place_N[targets[kept]], snapshot.types[kept])
    weights = None if snapshot.stored_weights is None else snapshot.stored_weights[kept]
    alive = np.concatenate([snapshot.alive[own.nodes], np.ones(len(halo_H), np.bool_)])
    local = Snapshot(snapshot.t, len(nodes_L), snapshot.layout, keys, weights, alive)
    return EdgesIn(
        edges=local, received=received, wanted_S=place_N[wanted_S], sent=sent, into_L=into_N[nodes_L],
        out_of_L=out_of_N[nodes_L],
    )  # fmt: skip


def by_rank(nodes: Int64s, ranks: Int32s, owners: Owners) -> tuple[Int64s, tuple[int, ...]]:
    """Return the nodes of each rank, rank by rank and ascending, each once a rank, and how many each rank has."""
    return pairs_by_rank(nodes, ranks, owners.num_nodes, owners.num_ranks)


def pairs_by_rank(nodes: Int64s, ranks: Int32s, num_nodes: int, num_ranks: int) -> tuple[Int64s, tuple[int, ...]]:
    """Return nodes that belong to ranks as `by_rank` does."""
    num_nodes = max(num_nodes, 1)
    pairs = np.unique(ranks.astype(np.int64) * num_nodes + nodes)
    counts = np.bincount(pairs // num_nodes, minlength=num_ranks)
    return pairs % num_nodes, tuple(counts.tolist())


@dataclass(frozen=True, slots=True)
class NodesIn:
    """What is known of a rank's nodes in a snapshot, as of all nodes in a `Snapshot`."""

    alive: NDArray[np.bool_]
    into_O: Float64s
    out_of_O: Float64s
    strength_into_O: Float64s
    strength_out_of_O: Float64s

    def degrees(self) -> tuple[Float64s, Float64s]:
        """Return the weighted in-degree and out-degree of each node in the whole snapshot."""
        return self.into_O, self.out_of_O

    def strengths(self) -> tuple[Float64s, Float64s]:
        """Return the same, weights counting by their size."""
        return self.strength_into_O, self.strength_out_of_O

    @property
    def num_bytes(self) -> int:
        """The memory that this takes."""
        return self.alive.nbytes + 4 * self.into_O.nbytes


def nodes_in(own: OwnNodes, snapshot: Snapshot) -> NodesIn:
    """Return what is known of a rank's nodes in a snapshot."""
    degrees = snapshot.degrees()
    strengths = degrees if snapshot.stored_weights is None else snapshot.strengths()
    return NodesIn(snapshot.alive[own.nodes], *(part[own.nodes] for part in (*degrees, *strengths)))
