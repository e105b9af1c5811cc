"""Bins to begin a search with, and how bins become steps.

Shape letters: K groups, S bins, L groups of a bin at most (-1 where there is none).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from timeloom.plan.schedule.instance import Float64s, Instance, Int64s
from timeloom.plan.schedule.matching import heaviest_matching
from timeloom.plan.schedule.schedule import Schedule, schedule_of

_MOST_FOLDS = 16


def works_of(problem: Instance, groups_SL: Int64s) -> Float64s:
    """Return the [S] seconds of bins on a device of speed 1; the groups of each are in order."""
    there = groups_SL >= 0
    told: Float64s = np.where(there, problem.seconds_K[groups_SL], 0.0).sum(1)
    for place in range(1, groups_SL.shape[1]):
        before, after = groups_SL[:, place - 1], groups_SL[:, place]
        shares = there[:, place] & (after - before <= problem.band)
        told[shares] -= problem.reuse_KB[before[shares], after[shares] - before[shares] - 1]
    return told


def cut(problem: Instance, groups_SL: Int64s) -> tuple[Schedule, float]:
    """Return the steps that bins make, the longest bins first, and the time of an epoch."""
    works_S = works_of(problem, groups_SL)
    order = np.argsort(-works_S, kind="stable")
    devices = problem.num_devices
    if (problem.speeds_D == problem.speeds_D[0]).all():
        places = [order[first : first + devices].tolist() for first in range(0, len(order), devices)]
        heads = works_S[order[::devices]] / problem.speeds_D[0]
    else:
        places, heads = _fit(works_S[order], problem.speeds_D)
        places = [[int(order[place]) if place >= 0 else -1 for place in step] for step in places]
    rows: list[list[int]] = groups_SL.tolist()
    steps = [[[g for g in rows[place] if g >= 0] if place >= 0 else [] for place in step] for step in places]
    return schedule_of(steps, devices), float(heads.sum()) + problem.alpha_s * len(heads)


def seconds_of(problem: Instance, groups_SL: Int64s) -> float:
    """Return the time of an epoch of bins that are cut into steps."""
    if not (problem.speeds_D == problem.speeds_D[0]).all():
        return cut(problem, groups_SL)[1]
    works_S = np.sort(works_of(problem, groups_SL))[::-1]
    heads = works_S[:: problem.num_devices] / problem.speeds_D[0]
    return float(heads.sum()) + problem.alpha_s * len(heads)


def _fit(works_S: Float64s, speeds_D: Float64s) -> tuple[list[list[int]], Float64s]:
    """Deal out bins, the longest first, to unequal devices: places by step and device (-1: none), and the heads.

    In every step the fastest device takes the longest bin that is left, and each other one the longest that it can do
    in that time. A device too slow for any of them rests.
    """
    left = np.arange(len(works_S))
    fastest = np.argsort(-speeds_D, kind="stable")
    steps, heads = list[list[int]](), list[float]()
    while len(left):
        head = works_S[left[0]] / speeds_D[fastest[0]]
        step, begin = [-1] * len(speeds_D), 0
        taken = np.zeros(len(left), np.bool_)
        for device in fastest.tolist():
            # Devices come by falling speed, so that what was too long for one is too long for those after it.
            most = head * speeds_D[device] * (1 + 1e-12)
            begin = max(begin, int(np.searchsorted(-works_S[left], -most, side="left")))
            if begin == len(left):
                break
            step[device], taken[begin], begin = int(left[begin]), True, begin + 1
        steps.append(step)
        heads.append(head)
        left = left[~taken]
    return steps, np.array(heads)


def as_bins(pairs_K: Int64s, limit: int) -> Int64s:
    """Return the bins of a matching, given as each group's partner (-1: none)."""
    count = len(pairs_K)
    first = np.flatnonzero((pairs_K < 0) | (pairs_K > np.arange(count)))
    bins = np.full((len(first), limit), -1, np.int64)
    bins[:, 0] = first
    if limit > 1:
        bins[:, 1] = pairs_K[first]
    return bins


def bins_in(found: Schedule, limit: int) -> Int64s:
    """Return the bins of a schedule."""
    rows = [[*groups, *[-1] * (limit - len(groups))] for step in found.steps for groups in step if groups]
    return np.array(rows, np.int64).reshape(-1, limit)


def folded(problem: Instance, free_F: Int64s, num_bins: int) -> Int64s:
    """Return so many bins of the given groups: the longest ones alone, of the rest the longest with the shortest.

    With more than two groups a bin, each group in turn, the longest first, goes to the shortest bin that has room.
    """
    by_time = free_F[np.argsort(-problem.seconds_K[free_F], kind="stable")]
    bins = np.full((num_bins, problem.limit), -1, np.int64)
    bins[: min(num_bins, len(by_time)), 0] = by_time[:num_bins]
    rest = by_time[num_bins:]
    row, column = num_bins, 1
    while len(rest):
        if column > 1:
            works = works_of(problem, np.sort(bins, 1)[:, ::-1][:, ::-1])
            order = np.argsort(-works, kind="stable")
            bins = bins[order]
        take = min(num_bins, len(rest))
        bins[row - take : row, column] = rest[:take][::-1]
        rest, column = rest[take:], column + 1
    return in_time(bins)


def in_time(groups_SL: Int64s) -> Int64s:
    """Return bins with the groups of each in the order of time, none last; a bin without any is left out."""
    put = np.where(groups_SL < 0, np.iinfo(np.int64).max, groups_SL)
    put.sort(1)
    kept: Int64s = np.where(put == np.iinfo(np.int64).max, -1, put)
    return kept[kept[:, 0] >= 0]


def starts(problem: Instance) -> Iterator[Int64s]:
    """Yield bins to begin with; the best of them is near the best there is where steps are many."""
    count, limit, devices = len(problem), problem.limit, problem.num_devices
    everyone = np.arange(count)
    yield as_bins(np.full(count, -1, np.int64), limit)
    if limit == 1:
        return
    for run in range(2, limit + 1):
        padded = np.full(-(-count // run) * run, -1, np.int64)
        padded[:count] = everyone
        rows = np.full((len(padded) // run, limit), -1, np.int64)
        rows[:, :run] = padded.reshape(-1, run)
        yield rows
    partner_K, saved = heaviest_matching(problem)
    alone = np.flatnonzero(partner_K < 0)
    if saved > 0:
        paired = as_bins(partner_K, limit)
        yield paired
        whole = paired[paired[:, 1] >= 0]
        for num_bins in sorted({-(-len(alone) // limit), -(-len(alone) // 2)}):
            yield np.concatenate([whole, folded(problem, alone, num_bins)]) if len(alone) else whole
    fewest, most = math.ceil(count / (limit * devices)), math.ceil(count / devices)
    for num_steps in np.unique(np.linspace(fewest, most, _MOST_FOLDS).round()).astype(int).tolist():
        yield folded(problem, everyone, min(num_steps * devices, count))
