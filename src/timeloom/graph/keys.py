"""How an edge is one 64-bit number, so that sorting, merging and comparing edges is arithmetic.

A key holds, from its high bits to its low ones, the target, the source and the type of an edge. Sorted keys therefore
list a snapshot row by row in the order in which nodes aggregate: all edges into node 0, then all into node 1, ...
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import TooLarge

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """How many bits of a key hold a node, and how many hold an edge's type (0 in a graph without types)."""

    node_bits: int = 31
    type_bits: int = 0

    @property
    def most_nodes(self) -> int:
        """The number of nodes that keys of this layout can tell apart."""
        return 1 << self.node_bits

    @property
    def most_types(self) -> int:
        """The number of edge types that keys of this layout can tell apart."""
        return 1 << self.type_bits

    def pack(self, sources: NDArray[np.integer], targets: NDArray[np.integer], types: Int64s | None = None) -> Int64s:
        """Return the key of each edge ``sources[i] -> targets[i]``."""
        keys = (targets.astype(np.int64) << self.node_bits) | sources
        if self.type_bits:
            keys <<= self.type_bits
            if types is not None:
                keys |= types
        return keys

    def sources(self, keys: Int64s) -> Int64s:
        """Return the node each edge comes from."""
        return (keys >> self.type_bits) & (self.most_nodes - 1)

    def targets(self, keys: Int64s) -> Int64s:
        """Return the node each edge goes to."""
        return keys >> (self.node_bits + self.type_bits)

    def types(self, keys: Int64s) -> Int64s:
        """Return the type of each edge (all 0 in a graph without types)."""
        return keys & (self.most_types - 1)


def layout_for(num_nodes: int, num_types: int) -> KeyLayout:
    """Return the layout for a graph, with room for nodes and types that are appended later."""
    type_bits = max(8, num_types.bit_length() + 1) if num_types else 0
    layout = KeyLayout(node_bits=(62 - type_bits) // 2, type_bits=type_bits)
    if num_nodes > layout.most_nodes:
        raise TooLarge(
            f"{num_nodes} nodes with {num_types} edge types do not fit a 64-bit edge key, which holds "
            f"{layout.most_nodes} nodes here: use fewer edge types or split the graph"
        )
    return layout
