"""The blocks of a rank, window by window, with only as many edges in memory as there is room for."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol, final

from timeloom.graph.snapshot import Snapshot
from timeloom.plan.batch.blocks import Block, RankedSides, Sides, Slicer, ranked_sides, sides_of
from timeloom.plan.batch.flare import FlareSettings
from timeloom.plan.batch.order import Chunking, ChunkOrder
from timeloom.plan.batch.trapezoid import exchanging
from timeloom.plan.types import Unit


class GraphOfSnapshots(Protocol):
    """What blocks are cut from: a graph on disk, or one in memory."""

    def snapshot(self, t: int) -> Snapshot:
        """Return snapshot t."""


@final
class SidesStore:
    """The edges of a rank in buckets, by snapshot: made when asked for, the last ones kept up to a size in bytes.

    It outlives epochs. Windows ask for a snapshot again and again until it has left them, so there should be room for
    the snapshots of a window; with less each is read and sorted anew in every window, and nothing else changes.
    """

    def __init__(self, graph: GraphOfSnapshots, chunking: Chunking, owner: int, *, budget_bytes: int) -> None:
        self.chunking, self.owner = chunking, owner
        self._graph, self._budget_bytes = graph, budget_bytes
        self._kept: OrderedDict[int, Sides] = OrderedDict()
        self.num_bytes = 0
        """What the kept ones take."""
        self.num_made = 0
        """How many were made, those that were made again included."""

    def __contains__(self, t: int) -> bool:
        return t in self._kept

    def sides(self, t: int) -> Sides:
        """Return the edges of snapshot t that touch the rank's nodes."""
        if (found := self._kept.get(t)) is not None:
            self._kept.move_to_end(t)
            return found
        made = sides_of(self._graph.snapshot(t), self.chunking, self.owner)
        self.num_made += 1
        self._kept[t] = made
        self.num_bytes += made.num_bytes
        while self.num_bytes > self._budget_bytes:
            self.num_bytes -= self._kept.popitem(last=False)[1].num_bytes
        return made


@final
class EpochCut:
    """The blocks of a rank in one epoch."""

    def __init__(self, store: SidesStore, order: ChunkOrder, settings: FlareSettings) -> None:
        assert settings.chunks == order.chunking.per_owner, f"{order.chunking.per_owner} chunks, not {settings.chunks}"
        self._store, self._order, self._settings = store, order, settings
        self._slicer = Slicer(order, store.owner, shrink=settings.shrink)
        self._ranked: dict[int, RankedSides] = {}

    def block(self, unit: Unit, t: int) -> Block:
        """Return the block of one of a unit's snapshots; what is known of snapshots outside the unit is forgotten."""
        sides, edges = self._store.sides(t), self._ranked.get(t)
        if edges is None or edges.inner.buckets is not sides.inner:
            edges = self._ranked[t] = ranked_sides(sides, self._order)
        # An order holds on to the edges: it must not outlive them where they had to give way.
        within = range(unit.first, unit.last)
        self._ranked = {at: known for at, known in self._ranked.items() if at in within and at in self._store}
        place = t - unit.first
        return self._slicer.block(edges, unit.chunks[place], halo=exchanging(self._settings, unit)[place])
