"""How likely each edge is to carry a row when neighbours are sampled: what a cut edge would cost (DistDy 3.4, mended).

A node of the frontier keeps each of its d in-edges with probability ``q = min(f, d) / d``, anew in every layer that it
is in. ``kept_u`` is the probability that u kept a given edge in any layer so far; a node is in the next frontier if it
is a target or was kept by anyone: ``r'_v = 1 - (1 - r_v) * product over v -> u of (1 - kept_u)``. DistDy's formula is
off where d < f, and says nothing of a second layer (SPEC section 9; the recursion there counts what both layers keep
twice). Nodes are taken to be drawn independently of each other, as they nearly are in a small part of a graph.

Shape letters: N nodes, E edges of a snapshot, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timeloom.errors import BadConfig
from timeloom.graph.keys import Float64s
from timeloom.graph.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How neighbours are sampled."""

    batch: int = 1024
    """Target nodes of a batch, of all ranks together."""
    fanouts: tuple[int, ...] = (5, 10)  # DistDy 5.1; the first is what a target keeps
    """Neighbours that a node keeps in each layer, from the targets outwards."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise BadConfig(f"sampling.batch={self.batch} draws no target: give 1 or more")
        if not self.fanouts or min(self.fanouts) < 1:
            raise BadConfig(f"sampling.fanouts={self.fanouts}: give one number for each layer, each 1 or more")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a batch is expected to read of a snapshot."""

    node_N: Float64s
    """The probability that each node's row is read."""
    edge_E: Float64s
    """The probability that each edge is kept in some layer, in the order of the snapshot."""


def fetch_probabilities(snapshot: Snapshot, settings: SamplingSettings, targets_N: Float64s | None = None) -> Fetched:
    """Return what a batch of targets, drawn evenly from the nodes that are there, is expected to read.

    ``targets_N`` says instead how likely each node is to be a target. The cost is layers x edges.
    """
    sources, targets = snapshot.sources, snapshot.targets
    degree_N = np.maximum(np.bincount(targets, minlength=snapshot.num_nodes), 1)
    even = min(1.0, settings.batch / max(int(snapshot.alive.sum()), 1))
    first_N: Float64s = (snapshot.alive * even if targets_N is None else targets_N).astype(np.float64)
    others = sources != targets
    # What is in the frontier by now, and of that what has not kept a given edge of its own.
    nothing: Float64s = np.zeros(snapshot.num_nodes)
    frontier_N, before_N, idle_N, kept_N = first_N, nothing, nothing, nothing
    with np.errstate(divide="ignore"):
        for fanout in settings.fanouts:
            idle_N = (idle_N + frontier_N - before_N) * (1.0 - np.minimum(fanout, degree_N) / degree_N)
            kept_N = frontier_N - idle_N
            log_unasked_N = np.bincount(sources[others], np.log1p(-kept_N)[targets[others]], snapshot.num_nodes)
            before_N, frontier_N = frontier_N, -np.expm1(np.log1p(-first_N) + log_unasked_N)
    return Fetched(frontier_N, kept_N[targets])
