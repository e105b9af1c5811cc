"""Which community each node of a drifting graph is in, how busy each community is, and the classes that follow from it.

Shape letters: T snapshots, N nodes, C communities.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.keys import Float64s
from timeloom.graph.synth.draw import Stream, keyed

Communities = NDArray[np.int16]
Classes = NDArray[np.int8]
MOST_COMMUNITIES = int(np.iinfo(np.int16).max)


def wander(num_nodes: int, num_communities: int, num_snapshots: int, *, drift: float, seed: int) -> Communities:
    """Return the [T, N] communities: in each snapshot a share ``drift`` of the nodes moves to any other community."""
    communities = np.empty((num_snapshots, num_nodes), np.int16)
    for t in range(num_snapshots):
        rng = keyed(seed, Stream.communities, t=t)
        if t == 0:
            communities[t] = rng.integers(num_communities, size=num_nodes)
            continue
        moves = np.flatnonzero(rng.random(num_nodes) < drift)
        communities[t] = communities[t - 1]
        steps = rng.integers(1, max(num_communities, 2), size=len(moves))
        communities[t, moves] = (communities[t, moves] + steps) % num_communities
    return communities


def tides(num_communities: int, num_snapshots: int, period: int) -> Float64s:
    """Return how busy [T, C] communities are, from -1 to 1: waves of this period, at C evenly spread phases.

    All tides ever met are the corners of one regular polygon. It is turned so that it mirrors itself: whatever the
    tide, it is met rising as often as falling, and none is 0.
    """
    corners = math.lcm(period, num_communities)
    phases = np.arange(num_communities) / num_communities + 0.5 / corners
    return np.cos(2 * np.pi * (np.arange(num_snapshots)[:, None] / period + phases))


def past_classes(communities_TN: Communities, tides_TC: Float64s, lag: int) -> Classes:
    """Return the [T, N] classes: 1 where the community that a node was in ``lag`` snapshots ago was busy then, else 0.

    Before snapshot ``lag`` there is no such past, and the class is -1 (unknown).
    """
    num_snapshots = len(communities_TN)
    classes = np.full(communities_TN.shape, -1, np.int8)
    for t in range(lag, num_snapshots):
        classes[t] = tides_TC[t - lag][communities_TN[t - lag]] > 0.0
    return classes
