"""Which neighbours a node keeps where neighbours are sampled, and what can be chosen of that (DistDy 2.1, 5.1).

A draw is keyed by (seed, epoch, snapshot, layer, node): whoever samples a node, on whatever rank, finds the same.

Shape letters: M nodes that are sampled, E edges that are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timeloom.errors import BadConfig
from timeloom.graph.keys import Int64s
from timeloom.jit import kernel
from timeloom.plan.partition.fetches import draw_some


@dataclass(frozen=True, slots=True, kw_only=True)
class DistdySettings:
    """Where targets are divided (system.divide=targets): how they are sampled, and what ranks store of a window."""

    fanouts: tuple[int, ...] = (5, 10)  # DistDy 5.1
    """Neighbours that a node keeps in each layer of the model, from the targets outwards: one number for each of
    model.layers. With as many as any node has, nothing is left out."""
    updates: int = 1
    """Updates of the parameters a window: its targets are dealt out to so many batches, anew in every epoch."""
    segments: int = 4  # DistDy 5.1
    """Into how many segments a row of features is cut: only those that change are stored."""
    capacity_bytes: int | None = None
    """What a rank may store of a window (default: 1.3 times its even share of the fullest window so far)."""
    cache_bytes: int = 67_108_864
    """Room on each rank for rows that were fetched from others (0: all are fetched again for every batch)."""

    def __post_init__(self) -> None:
        if not self.fanouts or min(self.fanouts) < 1:
            raise BadConfig(f"distdy.fanouts={list(self.fanouts)}: give one number for each layer, each 1 or more")
        for name, least in (("updates", 1), ("segments", 1), ("cache_bytes", 0)):
            if getattr(self, name) < least:
                raise BadConfig(f"distdy.{name}={getattr(self, name)} is too small: give {least} or more")
        if self.capacity_bytes is not None and self.capacity_bytes < 1:
            raise BadConfig(f"distdy.capacity_bytes={self.capacity_bytes} holds nothing: give 1 or more")


@dataclass(frozen=True, slots=True)
class Kept:
    """The in-edges that nodes keep."""

    starts: Int64s
    """[M + 1] where those of each node begin."""
    places_E: Int64s
    """Their places among all in-edges."""


@kernel("void(int64[::1], int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])")
def _draw(
    nodes: Int64s, firsts: Int64s, degrees: Int64s, fanout: int, key: int, starts: Int64s, places: Int64s
) -> None:
    chosen = np.empty(fanout, np.int64)
    for i in range(len(nodes)):
        kept = min(fanout, degrees[i])
        draw_some(key, nodes[i], degrees[i], kept, chosen)
        for j in range(kept):
            places[starts[i] + j] = firsts[i] + chosen[j]


def keep_some(nodes_M: Int64s, firsts_M: Int64s, lasts_M: Int64s, *, fanout: int, key: int) -> Kept:
    """Return which in-edges each node keeps: all, or ``fanout`` of them, drawn evenly and none twice.

    Those of node ``nodes[i]`` lie from ``firsts[i]`` to ``lasts[i]`` (exclusive).
    """
    degrees = lasts_M - firsts_M
    starts = np.zeros(len(nodes_M) + 1, np.int64)
    np.cumsum(np.minimum(degrees, fanout), out=starts[1:])
    places = np.empty(int(starts[-1]), np.int64)
    # No node has more edges than there are, whatever fan-out stands for "all".
    most = int(degrees.max(initial=0))
    _draw(nodes_M, firsts_M, degrees, min(fanout, max(most, 1)), key, starts, places)
    return Kept(starts, places)
