"""In which order nodes lie in an epoch, so that what is left of any snapshot is the first so many of them (SPEC 7).

Every owner shuffles its chunks once an epoch. The first `n` chunks of every owner are then the first `ends[n]` of all
nodes, and the first `ends_own[n]` of an owner's own: a prefix of the order of all nodes, restricted to an owner's, is a
prefix of that owner's order. A node's place is its *row*; inside a chunk rows follow node ids.

Shape letters: N nodes, O nodes of an owner, R owners, C chunks of an owner, Q = R * C chunks of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Int64s

# What is drawn is the third word of a key, after the seed and the epoch (see `trapezoid.py`).
_OF_CHUNKS = 0x6368756E6B


@dataclass(frozen=True)
class Chunking:
    """Which chunk each node is in. Chunks are numbered through, `owner * per_owner + chunk of the owner`."""

    owner_N: Int32s
    chunk_N: Int32s
    """The chunk of its owner, from 0 to below `per_owner`; it may have no node at all."""
    num_owners: int
    per_owner: int

    def __post_init__(self) -> None:
        assert len(self.owner_N) == len(self.chunk_N), f"{len(self.owner_N)} owners for {len(self.chunk_N)} chunks"
        for part_N, parts in ((self.owner_N, self.num_owners), (self.chunk_N, self.per_owner)):
            assert not len(part_N) or 0 <= part_N.min() <= part_N.max() < parts, f"a part outside 0 to {parts}"

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return len(self.owner_N)

    @cached_property
    def numbers(self) -> Int32s:
        """The number of each node's chunk among those of all owners."""
        numbers: Int32s = self.owner_N.astype(np.int32) * np.int32(self.per_owner) + self.chunk_N.astype(np.int32)
        return numbers

    @cached_property
    def nodes_by_chunk(self) -> tuple[Int64s, Int64s]:
        """All nodes, chunk after chunk, and where each chunk begins among them ([Q + 1])."""
        sizes = np.bincount(self.numbers, minlength=self.num_owners * self.per_owner)
        return np.argsort(self.numbers, kind="stable"), np.concatenate([[0], np.cumsum(sizes)])


@dataclass(frozen=True)
class ChunkOrder:
    """The order of nodes in one epoch."""

    chunking: Chunking
    place_Q: Int32s
    """The place of each chunk among all: `position in its owner's order * R + owner`."""

    @cached_property
    def nodes(self) -> Int64s:
        """The node at each row."""
        nodes, starts = self.chunking.nodes_by_chunk
        by_place = np.argsort(self.place_Q)
        firsts, sizes = starts[by_place], starts[by_place + 1] - starts[by_place]
        shifts = firsts - (np.cumsum(sizes) - sizes)
        found: Int64s = nodes[np.arange(len(nodes)) + np.repeat(shifts, sizes)]
        return found

    @cached_property
    def rows(self) -> Int32s:
        """The row of each node."""
        rows = np.empty(self.chunking.num_nodes, np.int32)
        rows[self.nodes] = np.arange(len(rows), dtype=np.int32)
        return rows

    @cached_property
    def ends(self) -> Int64s:
        """How many nodes the first n chunks of every owner have, for n from 0 to C."""
        sizes = np.diff(self.chunking.nodes_by_chunk[1])
        of_place = np.empty_like(sizes)
        of_place[self.place_Q] = sizes
        by_position = of_place.reshape(self.chunking.per_owner, self.chunking.num_owners).sum(1)
        return np.concatenate([[0], np.cumsum(by_position)])

    @cached_property
    def own_rows(self) -> Int32s:
        """The row of each node among those of its owner."""
        owners = self.chunking.owner_N[self.nodes]
        by_owner = np.argsort(owners, kind="stable")
        sizes = np.bincount(owners, minlength=self.chunking.num_owners)
        rows = np.empty(len(owners), np.int32)
        rows[self.nodes[by_owner]] = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return rows

    def own(self, owner: int) -> OwnOrder:
        """Return the order of one owner's nodes."""
        chunking = self.chunking
        nodes = self.nodes[chunking.owner_N[self.nodes] == owner]
        position_O = self.place_Q[chunking.numbers[nodes]] // chunking.num_owners
        return OwnOrder(nodes, np.searchsorted(position_O, np.arange(chunking.per_owner + 1)))


@dataclass(frozen=True, slots=True)
class OwnOrder:
    """The order of one owner's nodes in one epoch."""

    nodes: Int64s
    """The node at each of the owner's rows."""
    ends: Int64s
    """How many nodes the first n chunks have, for n from 0 to C."""


def chunk_order(chunking: Chunking, *, seed: int, epoch: int) -> ChunkOrder:
    """Return the order of an epoch; each owner's shuffle is keyed by (seed, epoch, owner), so every rank knows all."""
    owners, per_owner = chunking.num_owners, chunking.per_owner
    place_Q = np.empty(owners * per_owner, np.int32)
    for owner in range(owners):
        rng = np.random.Generator(np.random.Philox([seed, epoch, _OF_CHUNKS, owner]))
        chunks = rng.permutation(per_owner)
        place_Q[owner * per_owner + chunks] = np.arange(per_owner) * owners + owner
    return ChunkOrder(chunking, place_Q)
