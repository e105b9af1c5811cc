"""The input rows of a cache: read for the nodes and snapshots that it needs, and no others.

Shape letters: N rows of the cache, B rows of a batch, R rows that are held of a snapshot, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.snapshot import NodeFacts, Snapshot
from timeloom.graph.tasks import GraphLike
from timeloom.plan.batch.cutout import Cutout
from timeloom.plan.batch.rows import Int32s
from timeloom.plan.partition.own import NodesIn
from timeloom.train.drifting import Drifting
from timeloom.train.feed import Feed, Scales
from timeloom.train.holding import Holding
from timeloom.train.localise import WholeView
from timeloom.train.settings import RunSettings

D = TypeVar("D", bound=np.generic)


class HoldsRows(Holding):
    """Some nodes, in whatever order; rows of them are read, and nothing is computed here."""

    holds_all = overlaps = False

    def __init__(self, nodes_N: Int64s) -> None:
        self._nodes_N = nodes_N

    def count(self, num_nodes: int) -> int:
        """Return how many nodes there are."""
        return len(self._nodes_N)

    def own(self, rows: NDArray[D]) -> NDArray[D]:
        """Return the rows of these nodes."""
        return rows[self._nodes_N]

    def facts(self, snapshot: Snapshot) -> NodeFacts:
        """Return what is known of these nodes."""
        parts = (*snapshot.degrees(), *snapshot.strengths())
        return NodesIn(snapshot.alive[self._nodes_N], *(part[self._nodes_N] for part in parts))

    def view(
        self, snapshot: Snapshot, again: Callable[[], Snapshot], *, dtype: torch.dtype, device: torch.device,
        drifting: Drifting | None = None,
    ) -> WholeView:  # fmt: skip
        """Not here."""
        raise AssertionError("edges come from the cache")

    def total(self, x: NDArray[Any], name: str) -> Float64s:
        """Not here."""
        raise AssertionError("nothing is counted of nodes that others own")


class Inputs:
    """The input rows of a cutout's nodes, in each snapshot those that are read there."""

    def __init__(self, feed: Feed, cutout: Cutout) -> None:
        """``feed`` holds the cutout's nodes, in its order."""
        self._first, self._num_rows = cutout.first, cutout.num_nodes
        self._fixed = feed.rows(cutout.first) if feed.unchanging else None
        self._rows: list[Tensor] = []
        self._places: list[Tensor | None] = []
        whole = not cutout.depth_TN.strides[0]
        for t in range(cutout.first, cutout.last) if self._fixed is None else ():
            rows_NF = feed.rows(t)
            read = np.arange(0) if whole else np.flatnonzero(cutout.depth_TN[t - cutout.first] >= 0)
            if whole or len(read) == self._num_rows:
                self._rows.append(rows_NF)
                self._places.append(None)
                continue
            # Behind the rows that are held lies one of zeros, which stands for all others.
            places_N = np.full(self._num_rows, len(read), np.int32)
            places_N[read] = np.arange(len(read))
            held = rows_NF.index_select(0, torch.from_numpy(read).to(rows_NF.device))
            self._rows.append(torch.cat([held, held.new_zeros(1, held.shape[1])]))
            self._places.append(torch.from_numpy(places_N).to(rows_NF.device))

    def over(self, cutout: Cutout) -> list[Tensor]:
        """Return the rows of each snapshot of a cutout of the cache; those that are not held are 0."""
        places = cutout.places_N
        everything = len(places) == self._num_rows and bool((places == np.arange(len(places))).all())
        places_B = None if everything else self._on_device(places)
        times = range(cutout.first, cutout.last)
        if self._fixed is not None:
            # One tensor for all snapshots: what a layer makes of it may be made once.
            return [self._picked(cutout.first, places_B)] * len(times)
        return [self._picked(t, places_B) for t in times]

    def _on_device(self, places_B: Int32s) -> Tensor:
        like = self._rows[0] if self._fixed is None else self._fixed
        return torch.from_numpy(places_B).to(like.device)

    def _picked(self, t: int, places_B: Tensor | None) -> Tensor:
        """Return some rows (None: all) of a snapshot."""
        if self._fixed is not None:
            return self._fixed if places_B is None else self._fixed.index_select(0, places_B)
        rows, places_N = self._rows[t - self._first], self._places[t - self._first]
        if places_N is None:
            return rows if places_B is None else rows.index_select(0, places_B)
        return rows.index_select(0, places_N if places_B is None else places_N.index_select(0, places_B))


def row_bytes(feed: Feed, num_snapshots: int) -> int:
    """Return what a row of a cache of so many snapshots takes; rows that never change are held once."""
    size = feed.num_features * feed.dtype.itemsize
    return -(-size // num_snapshots) if feed.unchanging else size + 4


def read_inputs(settings: RunSettings, graph: GraphLike, cutout: Cutout, feed: Feed) -> Inputs:
    """Return the input rows of a cutout, on the scales of a feed; one snapshot's are in memory beside them."""
    assert feed.scales is not None, "scales are measured or loaded before anything is read"
    scales: Scales = feed.scales
    reader = Feed(
        graph, settings.task, settings.inputs, dtype=feed.dtype, device=feed.device, cache_bytes=0, at_hand=1,
        holding=HoldsRows(cutout.nodes_N),
    )  # fmt: skip
    reader.scales = scales
    return Inputs(reader, cutout)
