"""The partitions that DistDy is compared with, placed snapshot by snapshot like its own (DistDy 5.1).

metis: METIS on the union of the training snapshots, and hash: both are `Owners`, which `FollowOwners` follows. greedy:
METIS on the first snapshot, then every node stays. metis_layer: METIS on every snapshot anew. None of them looks at
memory: what is more than a server holds is recorded as an overflow.

Shape letters: N nodes, K servers.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from timeloom.errors import BadConfig
from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Int64s
from timeloom.graph.snapshot import Snapshot
from timeloom.plan.partition.hashed import hashed
from timeloom.plan.partition.ledger import Ledger, padded
from timeloom.plan.partition.metis import metis_parts
from timeloom.plan.partition.newborn import part_sizes, place_in
from timeloom.plan.partition.online import Arrival, Placement, refuse_capacities
from timeloom.plan.partition.online_base import Overflow
from timeloom.plan.partition.online_moves import kept_weight
from timeloom.plan.partition.owners import Owners
from timeloom.plan.partition.ties import ties_of
from timeloom.plan.partition.union import union_of_snapshot
from timeloom.plan.partition.weights import SamplingSettings, fetch_probabilities


class Placer(Protocol):
    """Places snapshots, one after the other."""

    def place(self, arrival: Arrival) -> Placement:
        """Return where the nodes of the next snapshot go."""
        ...

    def resize(self, capacity_K: Int64s) -> None:
        """Go on with servers that hold so much."""
        ...


class _Counted:
    """What placers that look at no memory have in common: the account of it."""

    def __init__(self, capacity_K: Int64s, *, window: int, sampling: SamplingSettings) -> None:
        refuse_capacities(capacity_K)
        self._capacity_K, self._sampling = capacity_K, sampling
        self.ledger = Ledger(servers=len(capacity_K), window=window)

    def resize(self, capacity_K: Int64s) -> None:
        """Go on with servers that hold so much."""
        refuse_capacities(capacity_K)
        self._capacity_K = capacity_K

    def before(self, num_nodes: int) -> Int32s:
        """Return where nodes were in the snapshot before."""
        return padded(self.ledger.last_N, num_nodes)

    def placed(self, arrival: Arrival, server_N: Int32s) -> Placement:
        """Return the placement with its account."""
        snapshot, before_N = arrival.snapshot, self.before(arrival.snapshot.num_nodes)
        self.ledger.append(server_N, arrival.full_N, arrival.changed_N)
        ties = ties_of(snapshot, fetch_probabilities(snapshot, self._sampling).edge_E)
        held_K = self.ledger.held_K
        over = tuple(
            Overflow(t=snapshot.t, node=-1, server=k, needed_bytes=int(held_K[k]), free_bytes=int(self._capacity_K[k]))
            for k in np.flatnonzero(held_K > self._capacity_K).tolist()
        )
        return Placement(
            t=snapshot.t, server_N=server_N, held_K=held_K, kept_weight=kept_weight(server_N, ties),
            total_weight=ties.total_weight, overflows=over,
            moved=int(((before_N >= 0) & (server_N >= 0) & (before_N != server_N)).sum()),
        )  # fmt: skip


class FollowOwners:
    """Every node is where its owner is, in every snapshot."""

    def __init__(
        self, owners: Owners, capacity_K: Int64s, *, window: int = 4, sampling: SamplingSettings | None = None
    ) -> None:
        if owners.num_ranks != len(capacity_K):
            raise BadConfig(f"owners for {owners.num_ranks} ranks were given for {len(capacity_K)} servers")
        self._owners = owners
        self._counted = _Counted(capacity_K, window=window, sampling=sampling or SamplingSettings())

    def resize(self, capacity_K: Int64s) -> None:
        """Go on with servers that hold so much."""
        self._counted.resize(capacity_K)

    def place(self, arrival: Arrival) -> Placement:
        """Return where the nodes of the next snapshot go; nodes that have no owner go by their hash."""
        num_nodes = arrival.snapshot.num_nodes
        later = hashed(np.arange(self._owners.num_nodes, num_nodes), self._owners.num_ranks, 0)
        owner_N = np.concatenate([self._owners.owner_N[:num_nodes], later])
        return self._counted.placed(arrival, np.where(arrival.snapshot.alive, owner_N, -1).astype(np.int32))


class Greedy:
    """Nodes stay where METIS put them in the first snapshot; new ones follow their neighbours."""

    def __init__(
        self, capacity_K: Int64s, *, seed: int = 0, window: int = 4, sampling: SamplingSettings | None = None
    ) -> None:
        self._counted = _Counted(capacity_K, window=window, sampling=sampling or SamplingSettings())
        self._servers, self._seed, self._home_N = len(capacity_K), seed, np.empty(0, np.int32)

    def resize(self, capacity_K: Int64s) -> None:
        """Go on with servers that hold so much."""
        self._counted.resize(capacity_K)

    def place(self, arrival: Arrival) -> Placement:
        """Return where the nodes of the next snapshot go: a node that comes back goes where it was."""
        snapshot = arrival.snapshot
        home_N = padded(self._home_N, snapshot.num_nodes)
        if not (home_N >= 0).any():
            home_N = np.where(snapshot.alive, _by_metis(snapshot, self._servers, self._seed), -1).astype(np.int32)
        new = np.flatnonzero(snapshot.alive & (home_N < 0))
        groups = np.zeros(len(home_N), np.int32)
        sizes = part_sizes(home_N, groups, self._servers)
        place_in(snapshot, new, groups, self._servers, home_N, sizes, self._seed)
        self._home_N = home_N
        return self._counted.placed(arrival, np.where(snapshot.alive, home_N, -1).astype(np.int32))


class MetisLayer:
    """METIS on every snapshot anew, so that which server a part is on means nothing from one to the next."""

    def __init__(
        self, capacity_K: Int64s, *, seed: int = 0, window: int = 4, sampling: SamplingSettings | None = None
    ) -> None:
        self._counted = _Counted(capacity_K, window=window, sampling=sampling or SamplingSettings())
        self._servers, self._seed = len(capacity_K), seed

    def resize(self, capacity_K: Int64s) -> None:
        """Go on with servers that hold so much."""
        self._counted.resize(capacity_K)

    def place(self, arrival: Arrival) -> Placement:
        """Return where the nodes of the next snapshot go."""
        snapshot = arrival.snapshot
        part_N = _by_metis(snapshot, self._servers, self._seed)
        return self._counted.placed(arrival, np.where(snapshot.alive, part_N, -1).astype(np.int32))


def _by_metis(snapshot: Snapshot, servers: int, seed: int) -> Int32s:
    """Return the part of each node that is there (0 of the others) by METIS on one snapshot, nodes alike."""
    alive = np.flatnonzero(snapshot.alive)
    part_N = np.zeros(snapshot.num_nodes, np.int32)
    part_N[alive] = metis_parts(union_of_snapshot(snapshot).within(alive), servers, seed, balance="nodes")
    return part_N
