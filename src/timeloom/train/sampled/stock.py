"""The window of snapshots that is stored on this rank, and how it moves on.

Every rank reads a snapshot as it arrives and keeps its own part. What all ranks know of every node is where it is in
each snapshot of the window, and since when its row of features is what it is.

Shape letters: N nodes, F features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timeloom.dist.collectives import World
from timeloom.graph.csr import Int32s
from timeloom.graph.delta import NO_KEYS, NO_WEIGHTS, Delta, diff
from timeloom.graph.features import Float32s
from timeloom.graph.segment_parts import edge_change, feature_change, stored_bytes
from timeloom.graph.segments import Masks, SegmentLayout, changed_segments
from timeloom.graph.snapshot import Snapshot
from timeloom.plan.batch.sample import DistdySettings
from timeloom.plan.partition.ledger import padded
from timeloom.plan.partition.online import Arrival
from timeloom.train.feed import Feed
from timeloom.train.sampled.coordinator import Coordinator
from timeloom.train.sampled.store import Store


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A snapshot, and what of it is new."""

    snapshot: Snapshot
    raw_NF: Float32s
    delta: Delta
    masks_N: Masks


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What every rank knows of the nodes in one snapshot of the window."""

    server_N: Int32s
    """The rank that stores each node; -1: it is not there."""
    since_N: Int32s
    """The snapshot since which each node's row of features is the same, as far as it is known."""


class Stock:
    """A rank's store, and the whereabouts of all nodes."""

    def __init__(
        self, feed: Feed, coordinator: Coordinator, settings: DistdySettings, world: World, *, window: int
    ) -> None:  # fmt: skip
        self.feed, self.coordinator, self._world, self._window = feed, coordinator, world, window
        self._layout = SegmentLayout(feed.num_features, min(settings.segments, feed.num_features))
        self._store: Store | None = None
        self.known: dict[int, Whereabouts] = {}
        """The whereabouts in each snapshot that is held."""

    @property
    def store(self) -> Store:
        """What this rank stores."""
        assert self._store is not None, "a window is held first"
        return self._store

    def hold(self, first: int, last: int) -> None:
        """Collective. Hold the snapshots from ``first`` to ``last`` (exclusive), as many as a window at most.

        A window that moves on costs what changes; one that goes back is filled anew.
        """
        while self.coordinator.num_placed < first:
            t = self.coordinator.num_placed
            arrival = self._arrival(self._read(t)) if self._world.rank == 0 else None
            self.coordinator.place(self.feed.graph, arrival)
        while not (self._store is not None and self._spans(self._store.snapshots, first, last)):
            held = range(0) if self._store is None else self._store.snapshots
            if not len(held) or not held.start <= first <= held.stop:
                self._begin(first)
            self._append(self.store.snapshots.stop if len(self.store.snapshots) else first)

    def move_to(self, feed: Feed) -> None:
        """Go on with a graph that has grown; what is held stays."""
        self.feed = feed
        size = feed.graph.num_nodes
        self.known = {
            t: Whereabouts(padded(one.server_N, size), padded(one.since_N, size)) for t, one in self.known.items()
        }

    @staticmethod
    def _spans(held: range, first: int, last: int) -> bool:
        return len(held) > 0 and held.start <= first and last <= held.stop

    def _begin(self, first: int) -> None:
        """Forget what is held."""
        keys = self.feed.snapshot(first).layout
        self._store, self.known = Store(self._layout, keys, window=self._window, weighted=self.coordinator.weighted), {}

    def _append(self, t: int) -> None:
        """Collective. Add snapshot t to what is held."""
        new = self.coordinator.num_placed == t
        before = self.known.get(t - 1)
        # Where nothing is held before it, what changed matters only to whoever places it.
        arrived = self._read(t, alone=before is None and not (new and self._world.rank == 0))
        size = self.feed.graph.num_nodes
        if new:
            server_N = self.coordinator.place(self.feed.graph, self._arrival(arrived))
        else:
            server_N = padded(self.coordinator.moves.at(t, None if before is None else before.server_N), size)
        if self.coordinator.weighted and not self.store.edges.weighted:
            # The first weights ever: what is held has no room for them.
            self._store = None
            return
        since_N = np.full(size, t, np.int32)
        before_N = np.full(size, -1, np.int32)
        if before is not None:
            before_N = padded(before.server_N, size)
            since_N = np.where(arrived.masks_N != 0, t, padded(before.since_N, size)).astype(np.int32)
        parts = before_N, server_N, self._world.rank
        self.store.append(
            t, size, feature_change(arrived.raw_NF, arrived.masks_N, *parts),
            edge_change(arrived.delta, arrived.snapshot, *parts),
        )  # fmt: skip
        self.known[t] = Whereabouts(server_N, since_N)
        self.known = {s: known for s, known in self.known.items() if s in self.store.snapshots}

    def _read(self, t: int, *, alone: bool = False) -> _Arrived:
        """Return snapshot t and what is new in it; ``alone``, as if there were none before it."""
        snapshot, raw_NF = self.feed.snapshot(t), self.feed.raw(t)
        masks_N: Masks = np.zeros(len(raw_NF), np.uint32)
        if alone or not t:
            delta = Delta(snapshot.layout, NO_KEYS, NO_WEIGHTS, NO_WEIGHTS)
            if not alone:
                delta = diff(NO_KEYS, None, snapshot.keys, snapshot.stored_weights, snapshot.layout)
            return _Arrived(snapshot, raw_NF, delta, masks_N)
        before = self.feed.snapshot(t - 1)
        delta = diff(
            before.keys, before.stored_weights, snapshot.keys, snapshot.stored_weights, snapshot.layout
        )  # fmt: skip
        if not self.feed.unchanging:
            masks_N = changed_segments(self.feed.raw(t - 1), raw_NF, self._layout)
        return _Arrived(snapshot, raw_NF, delta, masks_N)

    def _arrival(self, arrived: _Arrived) -> Arrival:
        weighted = self.coordinator.weighted or arrived.snapshot.stored_weights is not None
        full_N, changed_N = stored_bytes(
            arrived.snapshot, arrived.delta, arrived.masks_N, self._layout, weighted=weighted
        )  # fmt: skip
        return Arrival(snapshot=arrived.snapshot, full_N=full_N, changed_N=changed_N)
