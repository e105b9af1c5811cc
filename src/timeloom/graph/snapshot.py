"""A graph at one index of time.

Shape letters: E edges, N nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.csr import Csr, incoming, outgoing
from timeloom.graph.delta import ones_if_none
from timeloom.graph.keys import Float64s, Int64s, KeyLayout

STATISTICS = ("edges", "added", "removed", "reweighted", "active", "born", "returned", "left")
"""What is counted for every snapshot: its edges; edges added, removed and reweighted since the one before; nodes with
an edge; of these, nodes never seen before and nodes back again; and nodes with an edge in the snapshot before only."""


class NodeFacts(Protocol):
    """What is known of nodes in a snapshot beside their edges."""

    @property
    def alive(self) -> NDArray[np.bool_]:
        """Which nodes are here."""
        ...

    @property
    def num_bytes(self) -> int:
        """The memory that this takes."""
        ...

    def degrees(self) -> tuple[Float64s, Float64s]:
        """Return the weighted in-degree and out-degree of each node."""
        ...

    def strengths(self) -> tuple[Float64s, Float64s]:
        """Return the same, weights counting by their size."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The edges of one index of time, sorted by target, then source, then type; each occurs once.

    Note: an edge `u -> v` brings u's message to v, so a node's row holds its *incoming* edges.
    """

    t: int
    num_nodes: int
    layout: KeyLayout
    keys: Int64s
    stored_weights: Float64s | None
    """None where every weight is 1."""
    alive: NDArray[np.bool_]
    """Which nodes are here: those with an edge, and those that the source listed."""

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def sources(self) -> Int64s:
        """The node each edge comes from."""
        return self.layout.sources(self.keys)

    @property
    def targets(self) -> Int64s:
        """The node each edge goes to."""
        return self.layout.targets(self.keys)

    @property
    def types(self) -> Int64s:
        """The type of each edge (all 0 in a graph without types)."""
        return self.layout.types(self.keys)

    @property
    def weights(self) -> Float64s:
        """The weight of each edge."""
        return ones_if_none(self.keys, self.stored_weights)

    def incoming(self) -> Csr:
        """Return the sources of each node's incoming edges, in the order of the snapshot's edges."""
        return incoming(self.keys, self.layout, self.num_nodes)

    def outgoing(self) -> Csr:
        """Return the targets of each node's outgoing edges, and where each edge lies in the snapshot."""
        return outgoing(self.keys, self.layout, self.num_nodes)

    def degrees(self) -> tuple[Float64s, Float64s]:
        """Return the weighted in-degree and out-degree of each node."""
        into = np.bincount(self.targets, self.stored_weights, self.num_nodes).astype(np.float64)
        out_of = np.bincount(self.sources, self.stored_weights, self.num_nodes).astype(np.float64)
        return into, out_of

    def strengths(self) -> tuple[Float64s, Float64s]:
        """Return the in-degree and out-degree of each node, weights counting by their size."""
        weights = None if self.stored_weights is None else np.abs(self.stored_weights)
        into = np.bincount(self.targets, weights, self.num_nodes).astype(np.float64)
        out_of = np.bincount(self.sources, weights, self.num_nodes).astype(np.float64)
        return into, out_of

    @property
    def num_bytes(self) -> int:
        """The memory that the snapshot takes."""
        weights = 0 if self.stored_weights is None else self.stored_weights.nbytes
        return self.keys.nbytes + weights + self.alive.nbytes
