"""Which rows of a cutout does each layer of a model read, and by which edges?

The first layer reads all rows. A layer above reads the rows that heard all hops below it: the first ones of the
cutout, as the deepest rows come first. What it gives are the rows that the next layer reads, and the last layer gives
the targets. So each layer has a cutout of its own, and rows that nobody reads are computed in no layer.

Shape letters: T snapshots, N nodes of a cutout.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from timeloom.plan.batch.cutout import Cutout, cut
from timeloom.plan.batch.neighbourhood import Depths, Layers, Neighbourhood

Levels = tuple[Cutout, ...]
"""What each layer reads, the first layer first."""


def levels_of(cutout: Cutout, layers: Layers) -> Levels:
    """Return what each layer reads; the first is the cutout itself."""
    below = list(accumulate(layer.hops for layer in layers))[:-1]
    return (cutout, *(_reading(cutout, hops) for hops in below))


def between(levels: Levels, first: int, last: int) -> Levels:
    """Return the same rows over fewer snapshots; nothing is copied."""
    return tuple(level.between(first, last) for level in levels)


def rows_given(levels: Levels) -> tuple[int, ...]:
    """Return how many rows each layer gives, the first ones of those that it reads."""
    return (*(level.num_nodes for level in levels[1:]), levels[0].num_targets)


def _reading(cutout: Cutout, hops: int) -> Cutout:
    """Return what is left for the layers above so many hops."""
    depth_TN, count = cutout.depth_TN, cutout.num_targets
    shared = not depth_TN.strides[0]
    if shared:
        # One row for all snapshots, as in the cutout.
        depth_TN = depth_TN[:1]
    deep = np.flatnonzero((depth_TN >= hops).any(axis=0))
    count = max(count, int(deep[-1]) + 1 if len(deep) else 0)
    left_TN: Depths = np.maximum(depth_TN[:, :count] - np.int8(hops), np.int8(-1))
    if shared:
        left_TN = np.lib.stride_tricks.as_strided(left_TN, (len(cutout), count), (0, 1))
    places = np.arange(count, dtype=np.int32)
    found = Neighbourhood(cutout.first, cutout.last, cutout.both, cutout.num_targets, places, left_TN)
    return cut(cutout, found, cutout.nodes_N)
