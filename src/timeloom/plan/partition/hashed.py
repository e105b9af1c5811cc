"""Partitions that look at no edge: by a hash of the node, or dealt out at random.

A hash leaves every node where it is when others are appended; parts then differ in size by chance. Dealing gives parts
whose sizes differ by 1 at most, but another number of nodes is another deal.
"""

from __future__ import annotations

import numpy as np

from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Int64s
from timeloom.plan.partition.owners import Owners, refuse_parts


def hash_owners(num_nodes: int, ranks: int, seed: int) -> Owners:
    """Return owners that follow from the node and the seed alone."""
    refuse_parts("ranks", ranks)
    return Owners(owner_N=hashed(np.arange(num_nodes), ranks, seed), num_ranks=ranks, name="hash")


def random_owners(num_nodes: int, ranks: int, seed: int) -> Owners:
    """Return owners dealt out at random, so that no rank has two nodes more than another."""
    refuse_parts("ranks", ranks)
    return Owners(owner_N=dealt(num_nodes, ranks, seed), num_ranks=ranks, name="random")


def hashed(nodes: Int64s, parts: int, seed: int) -> Int32s:
    """Return the part of each node by the last steps of splitmix64, which every bit of node and seed reaches."""
    with np.errstate(over="ignore"):
        mixed = nodes.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15) * np.uint64((seed + 1) % (1 << 64))
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed % np.uint64(parts)).astype(np.int32)


def dealt(num_nodes: int, parts: int, seed: int) -> Int32s:
    """Return parts dealt out at random: sizes differ by 1 at most."""
    part_N = (np.arange(num_nodes) % parts).astype(np.int32)
    np.random.Generator(np.random.Philox([seed, parts])).shuffle(part_N)
    return part_N
