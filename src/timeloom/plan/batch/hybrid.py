"""What a hybrid batch is, and how one is made of a rank's cache: some target nodes over consecutive snapshots.

The content of a batch depends on (seed, rank, action, number) alone, so that any thread may build it at any time, and
one that was lost can be built again.

Shape letters: T snapshots, N nodes of a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from timeloom.errors import BadConfig
from timeloom.graph.keys import Float64s, Int64s
from timeloom.plan.batch.cutout import Cutout, cut, cut_from, forecast
from timeloom.plan.batch.hybrid_settings import BatchSize
from timeloom.plan.batch.layered import Levels, between, levels_of
from timeloom.plan.batch.neighbourhood import Layers, Sets, find_neighbourhood, refuse_over_budget, total_hops
from timeloom.plan.batch.rows import Int32s, Source

Sample = Callable[[int, np.random.Generator], Int64s]
"""So many different nodes of a rank's own, in any order."""


@dataclass(frozen=True, slots=True)
class HybridBatch:
    """A batch: the loss is that of the first ``cutout.num_targets`` rows, in all snapshots.

    ``cutout.places_N`` are rows of the cache: features are picked by it, and need not be held for the whole graph.
    """

    action: int
    number: int
    """Which batch of this size it is; -1: one of all nodes that stands in for it."""
    version: int
    """Of the graph that it was cut from."""
    levels: Levels
    """What each layer of the model reads; the first is all of the batch."""

    @property
    def cutout(self) -> Cutout:
        """All rows and edges of the batch."""
        return self.levels[0]

    @property
    def num_bytes(self) -> int:
        """The memory that the arrays take."""
        return sum(level.num_bytes for level in self.levels)

    @property
    def is_snapshot_batch(self) -> bool:
        """Whether it has all of the rank's nodes."""
        return self.number < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What training takes beside a batch's edges."""

    row_bytes: int = 0
    """Features and labels of a node in a snapshot."""
    layer_bytes: tuple[int, ...] = ()
    """What each layer keeps of a row for backward, the first layer first."""


def make_cache(
    source: Source, owned: Int64s, layers: Layers, *, first: int, last: int, sets: Sets, both: bool, row_bytes: int,
    budget_bytes: int,
) -> Cutout:  # fmt: skip
    """Return the cache for the nodes that a rank owns, over the snapshots that it trains on (SPEC D8.3).

    What it takes with ``row_bytes`` of features a row is counted first, and refused where it is over the budget.
    """
    if not 0 <= first < last:
        raise BadConfig(f"a cache of snapshots {first} to {last} was asked for: give at least one snapshot to train on")
    targets = np.sort(owned).astype(np.int32)
    found = find_neighbourhood(source, targets, layers, first=first, last=last, sets=sets, both=both)
    told = forecast(source, found)
    refuse_over_budget(told, row_bytes=row_bytes, budget_bytes=budget_bytes, hops=total_hops(layers))
    return cut(source, found)


def evenly(owned: Int64s) -> Sample:
    """Return a draw in which all nodes are equally likely."""
    nodes = np.sort(owned)
    return lambda count, rng: rng.choice(nodes, count, replace=False)


@dataclass(frozen=True)
class BatchMaker:
    """Makes a rank's batches."""

    cache: Cutout
    layers: Layers
    sets: Sets
    sizes: Sequence[BatchSize]
    sample: Sample
    seed: int
    rank: int
    version: int = 0
    """Counts what was appended to the graph since training began."""
    work: Work = Work()

    def window(self, snapshots: int, rng: np.random.Generator) -> tuple[int, int]:
        """Return the first snapshot of a window, and the one after its last; all windows are equally likely (T25)."""
        cache = self.cache
        assert 1 <= snapshots <= len(cache), f"{snapshots} of {len(cache)} snapshots"
        first = int(rng.integers(cache.first, cache.last - snapshots + 1))
        return first, first + snapshots

    def hybrid(self, action: int, number: int) -> HybridBatch:
        """Return batch ``number`` of a size: always the same one."""
        size = self.sizes[action]
        rng = np.random.Generator(np.random.Philox([self.seed, self.rank, action, number]))
        first, last = self.window(size.snapshots, rng)
        cache = self.cache
        if size.nodes >= cache.num_targets:
            return HybridBatch(action, number, self.version, self._whole(first, last))
        targets = self._targets(size.nodes, rng)
        found = cut_from(cache, targets, self.layers, first=first, last=last, sets=self.sets, both=cache.both)
        return HybridBatch(action, number, self.version, levels_of(found, self.layers))

    def _targets(self, count: int, rng: np.random.Generator) -> Int32s:
        own = self.cache.nodes_N[: self.cache.num_targets]
        nodes = np.sort(self.sample(count, rng))
        rows = np.minimum(np.searchsorted(own, nodes), len(own) - 1)
        assert len(nodes) == count, f"{len(nodes)} nodes were drawn, not {count}"
        assert (own[rows] == nodes).all(), "drawn nodes are a rank's own"
        assert (nodes[1:] > nodes[:-1]).all(), "drawn nodes are different"
        return rows.astype(np.int32)

    def snapshots(self, action: int, rng: np.random.Generator) -> HybridBatch:
        """Return a batch of all the rank's nodes over a window of the action's length; nothing is copied."""
        first, last = self.window(self.sizes[action].snapshots, rng)
        return HybridBatch(action, -1, self.version, self._whole(first, last))

    def _whole(self, first: int, last: int) -> Levels:
        return between(self._all_levels, first, last)

    @cached_property
    def _all_levels(self) -> Levels:
        # As a batch it lies in the cache, not in the graph that the cache was cut from.
        rows = np.arange(self.cache.num_nodes, dtype=np.int32)
        return levels_of(replace(self.cache, places_N=rows), self.layers)

    def bytes_of(self, first: int, last: int) -> int:
        """Return what training takes on all the rank's nodes over these snapshots."""
        low, high = first - self.cache.first, last - self.cache.first
        return int(self._bytes_before[high] - self._bytes_before[low])

    @cached_property
    def _bytes_before(self) -> Float64s:
        """What training takes on each snapshot, summed from the first one on."""
        cache, work = self.cache, self.work
        ends = np.cumsum([layer.hops for layer in self.layers]).tolist()
        depth_TN = cache.depth_TN if cache.depth_TN.strides[0] else cache.depth_TN[:1]
        # A layer's rows are those that must have heard all hops up to it.
        each_T = np.count_nonzero(depth_TN >= 0, axis=1) * float(work.row_bytes)
        for depth, layer_bytes in zip(ends, work.layer_bytes, strict=bool(work.layer_bytes)):
            each_T += np.count_nonzero(depth_TN >= depth, axis=1) * float(layer_bytes)
        graph_T = np.array([graph.num_bytes for graph in cache.graphs], np.float64)
        return np.concatenate([[0.0], np.cumsum(each_T + graph_T)])


def working_bytes(cutout: Cutout, layers: Layers, work: Work) -> int:
    """Return what training on a batch takes: its arrays, its features and what its layers keep."""
    ends = np.cumsum([layer.hops for layer in layers]).tolist()
    total = cutout.num_bytes + cutout.rows_read * work.row_bytes
    for depth, layer_bytes in zip(ends, work.layer_bytes, strict=bool(work.layer_bytes)):
        total += int(np.count_nonzero(cutout.depth_TN >= depth)) * layer_bytes
    return total
