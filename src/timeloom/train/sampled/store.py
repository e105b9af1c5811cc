"""What one rank holds of a window, and what it tells of it: rows of features, and which neighbours nodes keep.

Shape letters: M nodes asked for, F features, E edges kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timeloom.graph.features import Float32s
from timeloom.graph.keys import Float64s, Int64s, KeyLayout
from timeloom.graph.segment_edges import EdgeChange, EdgeWindow
from timeloom.graph.segment_log import SegmentLog
from timeloom.graph.segments import FeatureChange, FeatureWindow, SegmentLayout
from timeloom.plan.batch.sample import keep_some


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The in-edges that nodes keep, node by node."""

    sizes_M: Int64s
    sources_E: Int64s
    weights_E: Float64s | None
    """None where every weight is 1."""


class Store:
    """One rank's nodes, with the edges into them, in additive form (DistDy 3.2)."""

    def __init__(
        self, layout: SegmentLayout, keys: KeyLayout, *, window: int, weighted: bool, log: SegmentLog | None = None
    ) -> None:  # fmt: skip
        self.features = FeatureWindow(layout, window=window, log=log)
        self.edges = EdgeWindow(keys, window=window, weighted=weighted, log=log)
        self._laid: dict[int, tuple[Int64s, Float64s | None]] = {}

    @property
    def snapshots(self) -> range:
        """The snapshots that are held."""
        return self.features.snapshots

    @property
    def run_bytes(self) -> int:
        """The bytes of rows, edges and what changed in them: what a partitioner counts."""
        return self.features.whole_bytes + self.features.changed_bytes + self.edges.run_bytes

    @property
    def held_bytes(self) -> int:
        """The bytes of all arrays that are kept from snapshot to snapshot."""
        return self.features.held_bytes + self.edges.held_bytes

    @property
    def laid_bytes(self) -> int:
        """The bytes of edge lists that were put together to sample from, and are thrown away with the window."""
        return sum(
            keys.nbytes + (0 if weights is None else weights.nbytes)
            for t, (keys, weights) in self._laid.items()
            if t != self.edges.snapshots.start
        )

    def append(self, t: int, num_nodes: int, features: FeatureChange, edges: EdgeChange) -> None:
        """Add snapshot t; the oldest leaves where the window is full."""
        self.features.append(t, num_nodes, features)
        self.edges.append(t, edges)
        # Lists of the oldest snapshot are those of the window itself, which has moved on.
        self._laid = {}

    def rows(self, t: int, nodes_M: Int64s) -> Float32s:
        """Return the features of nodes that are here in snapshot t."""
        return self.features.rows(t, nodes_M)

    def neighbours(self, t: int, nodes_M: Int64s, *, fanout: int, key: int) -> Neighbours:
        """Return the in-neighbours that nodes that are here keep in snapshot t."""
        if t not in self._laid:
            self._laid[t] = self.edges.edges(t)
        keys, weights = self._laid[t]
        layout = self.edges.layout
        shift = layout.node_bits + layout.type_bits
        firsts, lasts = np.searchsorted(keys, nodes_M << shift), np.searchsorted(keys, (nodes_M + 1) << shift)
        kept = keep_some(nodes_M, firsts, lasts, fanout=fanout, key=key)
        return Neighbours(
            np.diff(kept.starts), layout.sources(keys[kept.places_E]),
            None if weights is None else weights[kept.places_E],
        )  # fmt: skip
