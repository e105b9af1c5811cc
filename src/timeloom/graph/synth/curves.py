"""How many edges or nodes a synthetic graph has in each snapshot.

Shape letters: T snapshots.
"""

from __future__ import annotations

import numpy as np

from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.synth.options import one_of

CURVES = ("linear", "exponential")


def growth(curve: str, first_share: float, last_share: float, num_snapshots: int) -> Float64s:
    """Return the [T] shares that lead from the first to the last in even steps, or by an even factor."""
    one_of("curve", curve, CURVES)
    if num_snapshots == 1:
        return np.array([last_share])
    along = np.arange(num_snapshots) / (num_snapshots - 1)
    if curve == "linear":
        return first_share + (last_share - first_share) * along
    return first_share * (last_share / first_share) ** along


def whole(shares: Float64s, count: int, least: int) -> Int64s:
    """Return the [T] whole numbers nearest to these shares of ``count``, none below ``least``."""
    return np.maximum(np.rint(shares * count).astype(np.int64), least)
