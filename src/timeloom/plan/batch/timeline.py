"""When were batches built, by whom, and when did training wait for one?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from timeloom.graph.keys import Float64s

Stretch = tuple[float, float]
"""When something began, and when it ended, in seconds."""


@dataclass(frozen=True, slots=True)
class Built:
    """When a batch was built, and by whom (-1: by training itself)."""

    builder: int
    action: int
    number: int
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened since the last one."""

    built: Sequence[Built] = ()
    waits: Sequence[Stretch] = ()
    """When training asked for a batch, and when it had it; one after the other."""

    @property
    def beside(self) -> list[Built]:
        """What was built by threads beside training."""
        return [one for one in self.built if one.builder >= 0]

    @property
    def waited_s(self) -> float:
        """How long training waited."""
        return sum(ended - began for began, ended in self.waits)

    @property
    def beside_s(self) -> float:
        """How long threads beside training built, added up."""
        return sum(one.ended_s - one.began_s for one in self.beside)

    @property
    def hidden_s(self) -> float:
        """How much of that passed while training did not wait for a batch."""
        waits_W2 = np.array(self.waits).reshape(-1, 2)
        told = np.array([(one.began_s, one.ended_s) for one in self.beside]).reshape(-1, 2)
        overlaps = _waited_before(waits_W2, told[:, 1]) - _waited_before(waits_W2, told[:, 0])
        return self.beside_s - float(overlaps.sum())


def _waited_before(waits_W2: Float64s, moments: Float64s) -> Float64s:
    """Return how long training had waited by each moment."""
    begins, lengths = waits_W2[:, 0], waits_W2[:, 1] - waits_W2[:, 0]
    passed = np.concatenate([[0.0], np.cumsum(lengths)])
    before = np.searchsorted(begins, moments)
    # The last wait that had begun may not be over.
    last = np.maximum(before - 1, 0)
    over: Float64s = passed[before]
    if len(begins):
        over = over - np.where(before > 0, np.maximum(waits_W2[last, 1] - moments, 0.0), 0.0)
    return over
