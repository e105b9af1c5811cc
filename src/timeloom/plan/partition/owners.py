"""Who owns each node, and which chunk of its owner it lies in.

Shape letters: N nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadConfig
from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """The rank that each node lives on. Every node has exactly one, also one that is born later."""

    owner_N: Int32s
    num_ranks: int
    name: str
    """How it was found, such as `metis`."""

    def __post_init__(self) -> None:
        refuse_parts("ranks", self.num_ranks)
        _freeze(self.owner_N, self.num_ranks)

    @property
    def num_nodes(self) -> int:
        """How many nodes are owned."""
        return len(self.owner_N)

    def nodes_of(self, rank: int) -> Int64s:
        """Return the nodes of a rank, ascending."""
        return np.flatnonzero(self.owner_N == rank)

    @property
    def sizes(self) -> Int64s:
        """How many nodes each rank owns."""
        return np.bincount(self.owner_N, minlength=self.num_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """The chunk of its owner that each node lies in: a number from 0 on, which means nothing on another rank."""

    owners: Owners
    chunk_N: Int32s
    per_owner: int
    name: str
    """How they were found, such as `metis`."""

    def __post_init__(self) -> None:
        refuse_parts("chunks", self.per_owner)
        assert len(self.chunk_N) == self.owners.num_nodes, "one chunk for each node"
        _freeze(self.chunk_N, self.per_owner)

    def sizes_of(self, rank: int) -> Int64s:
        """Return how many nodes each chunk of a rank has."""
        return np.bincount(self.chunk_N[self.owners.owner_N == rank], minlength=self.per_owner)


def refuse_parts(what: str, count: int) -> None:
    """Refuse a number of ranks or chunks that cannot be meant."""
    if count < 1:
        raise BadConfig(f"a partition into {count} {what} was asked for: give 1 or more")


def _freeze(part_N: NDArray[np.int32], parts: int) -> None:
    """Make an array of parts read-only; what others compute from it must stay true."""
    assert part_N.dtype == np.int32, part_N.dtype
    assert not len(part_N) or (part_N.min() >= 0 and part_N.max() < parts), "a part that does not exist"
    part_N.flags.writeable = False
