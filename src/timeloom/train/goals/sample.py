"""Which targets are told one by one, beside what was predicted of them: the same ones on any number of ranks.

Every target has a number that depends on nothing but the snapshot and the target. Those with the lowest numbers are
kept, so that samples of snapshots, or of ranks, make the sample of all together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.keys import Float64s, Int64s

UInt64s = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the targets of a task are, for people."""

    what: str
    form: Literal["value", "class", "probability"]
    classes: tuple[str, ...] = ()
    """The names of the classes, whose places truth and prediction are."""


class Sample:
    """At most so many targets, each with its number, what was true, and what was predicted."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._rank_M: UInt64s = np.empty(0, np.uint64)
        self._pairs_M2: Float64s = np.empty((0, 2))

    def add(self, t: int, targets_P: Int64s, truth_P: NDArray[Any], predicted_P: NDArray[Any]) -> None:
        """Take in the targets of a snapshot; of two that are one (drawn twice) both may stay."""
        if not self.most:
            return
        pairs_P2 = np.stack([truth_P.astype(np.float64), predicted_P.astype(np.float64)], axis=1)
        self._keep(_mixed(t, targets_P), pairs_P2)

    def take_in(self, told: list[tuple[int, float, float]]) -> None:
        """Add what `as_json` made of another."""
        if told:
            ranks_P = np.array([rank for rank, _, _ in told], np.uint64)
            self._keep(ranks_P, np.array([pair for _, *pair in told], np.float64))

    def _keep(self, rank_P: UInt64s, pairs_P2: Float64s) -> None:
        if self.most < len(rank_P):
            lowest = np.argpartition(rank_P, self.most)[: self.most]
            rank_P, pairs_P2 = rank_P[lowest], pairs_P2[lowest]
        ranks, pairs = np.concatenate([self._rank_M, rank_P]), np.concatenate([self._pairs_M2, pairs_P2])
        order = np.argsort(ranks, kind="stable")[: self.most]
        self._rank_M, self._pairs_M2 = ranks[order], pairs[order]

    def as_json(self) -> list[tuple[int, float, float]]:
        """Return all of it."""
        pairs = self._pairs_M2.tolist()
        return [(rank, truth, told) for rank, (truth, told) in zip(self._rank_M.tolist(), pairs, strict=True)]

    @property
    def truth(self) -> list[float]:
        """What was true."""
        told: list[float] = self._pairs_M2[:, 0].tolist()
        return told

    @property
    def predicted(self) -> list[float]:
        """What was predicted."""
        told: list[float] = self._pairs_M2[:, 1].tolist()
        return told


def _mixed(t: int, targets_P: Int64s) -> UInt64s:
    """Return a number for each target in which every bit of the snapshot and of the target counts (splitmix64)."""
    start = (t + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    x = targets_P.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03) + np.uint64(start)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
