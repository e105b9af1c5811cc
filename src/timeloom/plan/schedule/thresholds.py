"""A lower bound that knows of steps: how many bins must be longer than each of some thresholds (a small MIP).

Over all thresholds, the time of an epoch is the integral of the number of steps that are longer, and D steps' places
hold D bins each. So for a grid of thresholds the unknowns are which groups are together, which may be fractions, and
the number of steps that are longer than each threshold, which is whole. Pairs that save something are unknowns of their
own; other groups are gathered into cells of about equal times, each counted as its shortest. What comes out is below
the time of any schedule, also where the solver is stopped before its end.

Shape letters: K groups, C cells, V unknowns, H thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array, diags_array, eye_array, hstack

from timeloom.plan.schedule.bounds import fewest_steps, lower_bound
from timeloom.plan.schedule.instance import Float64s, Instance


@dataclass(frozen=True, slots=True, eq=False)
class _Bins:
    """All bins that may be, as unknowns: how often each is."""

    load_V: Float64s
    cells_CV: coo_array
    """How many groups of each cell a bin holds."""
    size_C: Float64s
    """How many groups a cell has."""
    groups_KV: coo_array
    """Which single groups a bin holds, where it is a pair that saves something."""


def threshold_bound(
    problem: Instance, near_M: Float64s, *, cells: int = 60, thresholds: int = 30, limit_s: float = 30.0
) -> float:
    """Return a lower bound of the time of an epoch, at least as good as the quick ones; seconds to a minute.

    ``near_M`` are the lengths of the steps of a good schedule: thresholds are put about there. Unequal devices are all
    taken for the fastest one. Of bins of more than two groups it knows no more than `lower_bound`.
    """
    quick = lower_bound(problem)
    if problem.limit > 2 or not problem.seconds_K.max() > 0:
        return quick
    bins = _bins(problem, cells)
    return max(quick, _solved(problem, bins, _grid(bins, thresholds, near_M), limit_s))


def _bins(problem: Instance, cells: int) -> _Bins:
    """Return the bins of one group of a cell, of two groups of cells, and of two groups that save something."""
    order = np.argsort(problem.seconds_K, kind="stable")
    num_cells = min(cells, len(problem))
    cell_K = np.empty(len(problem), np.int64)
    cell_K[order] = np.arange(len(order)) * num_cells // len(order)
    shortest_C = np.full(num_cells, np.inf)
    np.minimum.at(shortest_C, cell_K, problem.seconds_K)
    left, right = np.triu_indices(num_cells if problem.limit == 2 else 0)
    i, d = np.nonzero(problem.reuse_KB[:, :] > 0) if problem.limit == 2 else np.empty((2, 0), np.int64)
    j, singles = i + d + 1, np.arange(num_cells)
    pairs, shared = num_cells + np.arange(len(left)), num_cells + len(left) + np.arange(len(i))
    num_bins = num_cells + len(left) + len(i)
    rows = np.concatenate([singles, left, right, cell_K[i], cell_K[j]])
    columns = np.concatenate([singles, pairs, pairs, shared, shared])
    alone_s = problem.seconds_K[i] + problem.seconds_K[j]
    load_V = np.concatenate([shortest_C, shortest_C[left] + shortest_C[right], alone_s - problem.reuse_KB[i, d]])
    return _Bins(
        load_V / float(problem.speeds_D.max()),
        coo_array((np.ones(len(rows)), (rows, columns)), (num_cells, num_bins)),
        np.bincount(cell_K, minlength=num_cells).astype(np.float64),
        coo_array((np.ones(2 * len(i)), (np.concatenate([i, j]), np.tile(shared, 2))), (len(problem), num_bins)),
    )  # fmt: skip


def _grid(bins: _Bins, thresholds: int, near_M: Float64s) -> Float64s:
    """Return thresholds: 0, then so many, half of them even and half around the lengths of a good schedule's steps."""
    shares = np.linspace(0, len(near_M) - 1, max(thresholds // 2, 1))
    around = np.interp(shares, np.arange(len(near_M)), np.sort(near_M))
    even = np.linspace(bins.load_V.min(), bins.load_V.max(), thresholds - len(around) + 2)[1:-1]
    grid: Float64s = np.unique(np.concatenate([[0.0], even, around]))
    return grid


def _solved(problem: Instance, bins: _Bins, grid_H: Float64s, limit_s: float) -> float:
    """Return the least integral of the number of steps that are longer than a threshold.

    The unknowns are how often each bin is, how many steps are longer than each threshold, and the integral from each
    threshold to the next: it is no less than what whole steps up to there make, nor than the share of the devices' work
    that lies between the two.
    """
    num_bins, num_parts, devices = len(bins.load_V), len(grid_H) - 1, problem.num_devices
    width_P = np.diff(grid_H)
    # A bin as long as a threshold counts as longer than all that is below it.
    longer_PV = coo_array(bins.load_V[None, :] >= grid_H[1:, None]).astype(np.float64)
    between_PV = coo_array(np.clip(bins.load_V[None, :] - grid_H[:-1, None], 0.0, width_P[:, None]))
    eye, none = eye_array(num_parts), coo_array((num_parts, num_parts))
    rows: list[tuple[Any, Any, Any]] = [
        (hstack([bins.cells_CV, _zeros(len(bins.size_C), 2 * num_parts)]), bins.size_C, bins.size_C),
        (hstack([bins.groups_KV, _zeros(len(problem), 2 * num_parts)]), 0.0, 1.0),
        (hstack([-longer_PV, devices * eye, none]), 0.0, np.inf),
        (hstack([_zeros(num_parts, num_bins), -diags_array(width_P), eye]), 0.0, np.inf),
        (hstack([-between_PV, none, devices * eye]), 0.0, np.inf),
    ]
    fewer = coo_array(eye_array(num_parts) - eye_array(num_parts, k=1))
    rows.append((hstack([_zeros(num_parts, num_bins), fewer, none]), 0.0, np.inf))
    # So many groups are longer than a threshold, whatever they are with.
    alone_s = problem.seconds_K / float(problem.speeds_D.max())
    num_longer = (alone_s[None, :] >= grid_H[1:, None]).sum(1)
    least = np.zeros(num_bins + 2 * num_parts)
    least[num_bins : num_bins + num_parts] = np.ceil(num_longer / (problem.limit * devices))
    least[num_bins] = fewest_steps(problem)
    cost = np.concatenate([np.zeros(num_bins + num_parts), np.ones(num_parts)])
    cost[num_bins] += problem.alpha_s
    whole = np.concatenate([np.zeros(num_bins), np.ones(num_parts), np.zeros(num_parts)])
    found = milp(
        cost, integrality=whole, bounds=Bounds(least, np.inf),
        constraints=[LinearConstraint(matrix, low, high) for matrix, low, high in rows],
        options={"time_limit": limit_s, "mip_rel_gap": 1e-4},
    )  # fmt: skip
    told = found.mip_dual_bound
    return float(told) if told is not None and np.isfinite(told) else 0.0


def _zeros(rows: int, columns: int) -> coo_array:
    return coo_array((rows, columns))
