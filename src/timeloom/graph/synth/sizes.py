"""What sizes snapshots would have, for a simulator that needs no edges.

Shape letters: T snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timeloom.errors import BadConfig
from timeloom.graph.keys import Float64s
from timeloom.graph.sizes import SnapshotSizes
from timeloom.graph.synth import options
from timeloom.graph.synth.curves import growth, whole
from timeloom.graph.synth.draw import Stream, keyed

CURVES = ("growing", "flat", "bursty")
_FIRST_SHARE = 0.05
_BURST_HEIGHT = 4.0
_BURST_LENGTH = 10
_SPACING = 200
_MEMORY = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class SizesOptions:
    """Sizes of snapshots along a curve with noise.

    growing: from a twentieth, by an even factor. flat: about the same throughout. bursty: flat, with sudden bursts (one
    in about 200 snapshots, of four times the usual on average) that fade over about 10 snapshots.
    """

    num_nodes: int = 1_000_000
    """Nodes with an edge in a snapshot of ``num_edges`` edges; fewer or more edges reach nodes in like proportion."""
    num_edges: int = 10_000_000
    """Edges of the last snapshot (growing) or of a usual one, but for the noise."""
    num_snapshots: int = 10_000
    curve: str = "growing"
    """growing | flat | bursty"""
    turnover: float = 0.05
    """The share of edges that go with each snapshot, but for the noise."""
    noise: float = 0.05
    """The standard deviation of the logarithm of the number of edges, which changes slowly, and of the turnover."""
    seed: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        options.whole_number("num_nodes", self.num_nodes, 2, options.MOST_NODES)
        options.whole_number("num_edges", self.num_edges, 1, 1 << 40)
        options.whole_number("num_snapshots", self.num_snapshots, 1, options.MOST_SNAPSHOTS)
        options.whole_number("seed", self.seed, 0, options.MOST_SEEDS - 1)
        options.one_of("curve", self.curve, CURVES)
        options.share("turnover", self.turnover)
        options.share("noise", self.noise, 0.0, 2.0)
        if self.num_nodes > 2 * self.num_edges:
            raise BadConfig(
                f"num_nodes={self.num_nodes} nodes with an edge were asked for, but {self.num_edges} edges have "
                f"{2 * self.num_edges} ends: ask for more edges or for fewer nodes"
            )


def make_sizes(asked: SizesOptions) -> SnapshotSizes:
    """Return sizes that fit together: each snapshot is the one before, with edges added and removed."""
    rng = keyed(asked.seed, Stream.sizes)
    size = asked.num_snapshots
    shares = _curve(asked, rng) * np.exp(asked.noise * _slow_noise(size, rng))
    edges = whole(shares, asked.num_edges, 1)
    before = np.concatenate([[0], edges[:-1]])
    rate = np.minimum(asked.turnover * np.exp(asked.noise * rng.standard_normal(size)), 1.0)
    # Where a snapshot shrinks by more than turns over, so many edges go.
    removed = np.maximum(np.rint(rate * before).astype(np.int64), before - edges)
    # Nodes follow edges slowly, as in real graphs, which grow denser (Leskovec et al. 2005).
    num_nodes = whole(shares**0.8, asked.num_nodes, 1)
    return SnapshotSizes(
        name=asked.name or f"sizes-{asked.curve}", num_nodes=np.minimum(num_nodes, 2 * edges), edges=edges,
        added=edges - before + removed, removed=removed,
    )  # fmt: skip


def _curve(asked: SizesOptions, rng: np.random.Generator) -> Float64s:
    """Return the [T] sizes, as shares of the usual, before noise."""
    size = asked.num_snapshots
    if asked.curve == "growing":
        return growth("exponential", _FIRST_SHARE, 1.0, size)
    if asked.curve == "flat":
        return np.ones(size)
    heights = np.where(rng.random(size) < 1.0 / _SPACING, rng.exponential(_BURST_HEIGHT, size), 0.0)
    fading = np.exp(-np.arange(8 * _BURST_LENGTH) / _BURST_LENGTH)
    return 1.0 + np.convolve(heights, fading)[:size]


def _slow_noise(size: int, rng: np.random.Generator) -> Float64s:
    """Return [T] numbers of variance 1 that are alike for about 40 snapshots."""
    fading = np.exp(-np.arange(8 * _MEMORY) / _MEMORY)
    fresh = rng.standard_normal(size + len(fading) - 1)
    return np.convolve(fresh, fading / np.linalg.norm(fading), mode="valid")
