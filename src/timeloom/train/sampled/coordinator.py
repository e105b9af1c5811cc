"""Who stores a node in a snapshot: decided on the first rank as snapshots arrive, told to all.

Shape letters: N nodes, K ranks.
"""

from __future__ import annotations

import numpy as np
import torch

from timeloom.dist.collectives import World
from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Int64s
from timeloom.graph.tasks import GraphLike
from timeloom.plan.batch.sample import DistdySettings
from timeloom.plan.partition.baselines import FollowOwners, Greedy, MetisLayer, Placer
from timeloom.plan.partition.choose import PartitionSettings, partition
from timeloom.plan.partition.moves import Moves
from timeloom.plan.partition.online import Arrival, OnlinePartitioner, OnlineSettings, Placement
from timeloom.plan.partition.weights import SamplingSettings
from timeloom.records import Placed, Record, Warned

_EXAMPLES = 8
SLACK = 1.3  # as `plan/partition/settled.py`


class Coordinator:
    """It places each snapshot once, in order; later passes over the same snapshots find them where they were."""

    def __init__(
        self, partition: PartitionSettings, distdy: DistdySettings, world: World, *, window: int, train_stop: int
    ) -> None:  # fmt: skip
        """Owners that never move are found from the snapshots before ``train_stop``."""
        self._partition, self._distdy, self._world = partition, distdy, world
        self._window, self._train_stop = window, train_stop
        self._placer: Placer | None = None
        self._capacity = distdy.capacity_bytes or 1
        self.moves = Moves()
        self.weighted = False
        """Some snapshot so far has weights."""
        self.last: Placement | None = None
        """What came of the newest snapshot; on the first rank alone."""
        self._untold: list[Placed] = []
        self._has_warned = False

    @property
    def num_placed(self) -> int:
        """How many snapshots were placed."""
        return len(self.moves)

    def place(self, graph: GraphLike, arrival: Arrival | None) -> Int32s:
        """Collective. Return where the nodes of the next snapshot go; the first rank gives what it is like."""
        told = np.empty(graph.num_nodes + 1, np.int32)
        if self._world.rank == 0:
            assert arrival is not None, "the first rank knows what arrives"
            assert arrival.snapshot.t == self.num_placed, "snapshots are placed in order"
            self.last = self._placed(graph, arrival)
            self._untold.append(_told_of(self.last, self._capacity))
            weighted = self.weighted or arrival.snapshot.stored_weights is not None
            told = np.append(self.last.server_N, np.int32(weighted))
        # In the group of the thread that samples and fetches.
        told = self._world.broadcast(torch.from_numpy(told).to(self._world.device), "fetch/servers").cpu().numpy()
        server_N, self.weighted = told[:-1], bool(told[-1])
        self.moves.append(server_N)
        return server_N

    def tell(self) -> tuple[Record, ...]:
        """Return what came of the snapshots that were placed since this was asked last; on the first rank alone.

        The first snapshot that does not fit is also told in a sentence.
        """
        placed, self._untold = self._untold, []
        over = next((record for record in placed if record.overflows), None)
        if over is None or self._has_warned:
            return tuple(placed)
        self._has_warned = True
        return (*placed, Warned(sentence=_sentence(over)))

    def _placed(self, graph: GraphLike, arrival: Arrival) -> Placement:
        if self._distdy.capacity_bytes is None:
            here = arrival.snapshot.alive
            needed = int((arrival.full_N + (self._window - 1) * arrival.changed_N)[here].sum())
            self._capacity = max(self._capacity, int(SLACK * needed / self._world.size) + 1)
        capacity_K: Int64s = np.full(self._world.size, self._capacity, np.int64)
        if self._placer is None:
            self._placer = self._make(graph, arrival, capacity_K)
        self._placer.resize(capacity_K)
        return self._placer.place(arrival)

    def _make(self, graph: GraphLike, arrival: Arrival, capacity_K: Int64s) -> Placer:
        settings = self._partition
        batch = max(1, int(arrival.snapshot.alive.sum()) // self._distdy.updates)
        sampling = SamplingSettings(batch=batch, fanouts=self._distdy.fanouts)
        if settings.by == "online":
            return OnlinePartitioner(capacity_K, online_settings(settings.online, self._window, sampling))
        if settings.by == "greedy":
            return Greedy(capacity_K, seed=settings.seed, window=self._window, sampling=sampling)
        if settings.by == "metis_layer":
            return MetisLayer(capacity_K, seed=settings.seed, window=self._window, sampling=sampling)
        owners = partition(graph, self._train_stop, self._world.size, settings)
        return FollowOwners(owners, capacity_K, window=self._window, sampling=sampling)


def _told_of(placed: Placement, capacity_bytes: int) -> Placed:
    return Placed(
        t=placed.t, held_bytes=tuple(placed.held_K.tolist()), capacity_bytes=capacity_bytes,
        # Sums in another order may differ in the last digit.
        kept_share=min(1.0, placed.kept_weight / placed.total_weight) if placed.total_weight else 1.0,
        moved=placed.moved,
        rounds=placed.rounds, swaps=placed.swaps, overflows=len(placed.overflows),
        examples=tuple(
            (one.node, one.server, one.needed_bytes, one.free_bytes) for one in placed.overflows[:_EXAMPLES]
        ),
    )  # fmt: skip


def _sentence(placed: Placed) -> str:
    rank, held = max(enumerate(placed.held_bytes), key=lambda one: one[1])
    return (
        f"snapshot {placed.t} does not fit in the {placed.capacity_bytes} bytes that each rank may store: rank {rank} "
        f"stores {held} ({placed.overflows} overflows); training goes on, and its numbers are the same. Raise "
        "distdy.capacity_bytes, use more ranks, or end such runs with --set system.partition.online.overflow=raise"
    )


def online_settings(online: OnlineSettings, window: int, sampling: SamplingSettings) -> OnlineSettings:
    """Return DistDy's settings for a run: its own window, and its own fan-outs."""
    return OnlineSettings(
        window=window, payoff=online.payoff, rounds=online.rounds, eta=online.eta, price=online.price,
        swaps=online.swaps, overflow=online.overflow, sampling=sampling,
    )  # fmt: skip
