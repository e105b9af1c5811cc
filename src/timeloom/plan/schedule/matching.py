"""Which pairs of groups save the most in all: a matching of the greatest weight, and bounds of what can be saved.

Shape letters: K groups, B how far apart two groups may be and still share something.
"""

from __future__ import annotations

import numpy as np

from timeloom.jit import kernel
from timeloom.plan.schedule.instance import Float64s, Instance, Int64s

# Beyond this the exact search, which doubles with every place, gives way to the heaviest pairs first.
WIDEST = 10


@kernel("float64(float64[:,::1], int8[:,::1], int64[::1])")
def _heaviest(reuse: Float64s, chosen: np.ndarray, partner: Int64s) -> float:
    count, band = reuse.shape
    states = 1 << band
    value = np.full(states, -np.inf)
    value[0] = 0.0
    # Bit d - 1 of a state: the group d before the one at hand is still free.
    for k in range(count):
        after = np.full(states, -np.inf)
        for state in range(states):
            if value[state] == -np.inf:
                continue
            alone = ((state << 1) | 1) & (states - 1)
            if value[state] > after[alone]:
                after[alone] = value[state]
                chosen[k, alone] = 0 if (state >> (band - 1)) & 1 == 0 else -1
            for d in range(1, band + 1):
                if (state >> (d - 1)) & 1 == 0 or d > k:
                    continue
                left = ((state & ~(1 << (d - 1))) << 1) & (states - 1)
                told = value[state] + reuse[k - d, d - 1]
                if told > after[left]:
                    after[left] = told
                    dropped = (state & ~(1 << (d - 1))) >> (band - 1) & 1
                    chosen[k, left] = d if dropped == 0 else -1 - d
        value = after
    best = 0
    for state in range(states):
        if value[state] > value[best]:
            best = state
    state = best
    for k in range(count - 1, -1, -1):
        told = chosen[k, state]
        dropped, d = (0, told) if told >= 0 else (1, -1 - told)
        state = (state >> 1) | (dropped << (band - 1))
        if d > 0:
            partner[k], partner[k - d] = k - d, k
            state |= 1 << (d - 1)
    return float(value[best])


def heaviest_matching(problem: Instance) -> tuple[Int64s, float]:
    """Return the partner of each group (-1: none) in a matching that saves the most, and what it saves.

    Exact, in K 2^B B operations, for bands of up to `WIDEST`; of a wider one the heaviest pairs are taken first.
    """
    partner_K = np.full(len(problem), -1, np.int64)
    reuse = problem.reuse_KB[:, : len(problem) - 1]
    if not reuse.shape[1] or not (reuse > 0).any():
        return partner_K, 0.0
    if reuse.shape[1] > WIDEST:
        return _heaviest_first(reuse, partner_K)
    chosen = np.zeros((len(problem), 1 << reuse.shape[1]), np.int8)
    saved = _heaviest(np.ascontiguousarray(reuse), chosen, partner_K)
    return partner_K, saved


def _heaviest_first(reuse: Float64s, partner_K: Int64s) -> tuple[Int64s, float]:
    rows, columns = np.nonzero(reuse > 0)
    saved = 0.0
    for place in np.argsort(-reuse[rows, columns], kind="stable").tolist():
        i, j = int(rows[place]), int(rows[place] + columns[place] + 1)
        if partner_K[i] < 0 and partner_K[j] < 0:
            partner_K[i], partner_K[j] = j, i
            saved += float(reuse[i, j - i - 1])
    return partner_K, saved


def most_saved(problem: Instance) -> float:
    """Return a bound of what any schedule saves; for two groups at a time it is what the best matching saves."""
    if problem.limit == 1 or not problem.band:
        return 0.0
    if problem.limit == 2 and problem.band <= WIDEST:
        return heaviest_matching(problem)[1]
    # Every group but the first of its bin saves something with one before it, and a bin holds so many at most.
    best_K = np.zeros(len(problem))
    for d in range(1, min(problem.band, len(problem) - 1) + 1):
        best_K[d:] = np.maximum(best_K[d:], problem.reuse_KB[:-d, d - 1])
    most = len(problem) * (problem.limit - 1) // problem.limit
    return float(np.sort(best_K)[::-1][:most].sum())
